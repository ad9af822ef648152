package evidence

import (
	"hash/fnv"
	"math"
)

// Lead compares a candidate with the champion on the same events, one labelled event after the other. The lead is
// the candidate's accuracy minus the champion's.
//
// Answers of one group, such as those of one conversation, depend on each other: a hundred of them are not a
// hundred pieces of evidence. Only the first result of a group counts, so that each group has one vote. It is the
// one rule that is valid at every look: a mean over a group that is still growing would change results that have
// been looked at, and later results of a group depend on the group's first one.
//
// A Lead is small and encodes to JSON. Its bounds depend only on its counts, so they do not depend on the order of
// the answers, except that the first of a group counts.
type Lead struct {
	Alpha  float64 `json:"alpha"`            // probability with which a bound may ever be wrong
	Won    int64   `json:"won"`              // votes where only the candidate is right
	Lost   int64   `json:"lost"`             // votes where only the champion is right
	Tied   int64   `json:"tied"`             // votes where both are right or both are wrong
	Pairs  int64   `json:"pairs"`            // labelled events, including those without a vote
	Groups []byte  `json:"groups,omitempty"` // bit of each group that has had its vote; nil if no answer had a group
}

// NewLead returns an empty comparison. Its lower bound and its upper bound are each wrong, ever, with a
// probability of at most alpha.
func NewLead(alpha float64) *Lead { return &Lead{Alpha: alpha} }

// Add counts a labelled event. An empty group means that the answer depends on no other one.
func (l *Lead) Add(group string, candidateRight, championRight bool) {
	l.Pairs++
	if group != "" && !l.first(group) {
		return
	}
	switch {
	case candidateRight == championRight:
		l.Tied++
	case candidateRight:
		l.Won++
	default:
		l.Lost++
	}
}

// groupBits is the size of the table of groups. A group whose bit is taken by another one has no vote. That loses a
// little evidence (7 % of 10,000 groups) and favours neither side, because the bit does not depend on the answers.
const groupBits = 1 << 16

func (l *Lead) first(group string) bool {
	if l.Groups == nil {
		l.Groups = make([]byte, groupBits/8)
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(group))
	sum := h.Sum64()
	bit := (sum ^ sum>>32) % groupBits
	if l.Groups[bit/8]&(1<<(bit%8)) != 0 {
		return false
	}
	l.Groups[bit/8] |= 1 << (bit % 8)
	return true
}

func (l *Lead) counts() counts { return counts{l.Won, l.Tied, l.Lost} }

// Votes returns the number of results that count: all pairs, or one of each group.
func (l *Lead) Votes() int64 { return l.Won + l.Tied + l.Lost }

// Bounds returns the lead and its bounds, which are valid at every look: with a probability of 1-alpha the true
// lead is never below low, and with the same probability it is never above high. Without votes the bounds are -1
// and 1.
func (l *Lead) Bounds() (low, value, high float64) {
	if v := l.Votes(); v > 0 {
		value = rounded(float64(l.Won-l.Lost) / float64(v))
	}
	return l.counts().lowest(l.Alpha), value, -l.counts().mirrored().lowest(l.Alpha)
}

// EValue is the evidence against "the candidate is not better". It is 1 without evidence, and reaches 1/alpha, ever,
// with a probability of at most alpha if the candidate is not better.
func (l *Lead) EValue() float64 { return l.Better(0) }

// Better is the evidence against "the candidate is not better by more than margin".
func (l *Lead) Better(margin float64) float64 { return finite(l.counts().logE(margin)) }

// Worse is the evidence against "the candidate is not worse by more than margin": a rollout stops once it is
// 1/alpha.
func (l *Lead) Worse(margin float64) float64 { return finite(l.counts().mirrored().logE(margin)) }

// finite returns the number with a logarithm, at most 1e300, so that JSON can have it.
func finite(log float64) float64 { return math.Exp(min(log, 300*math.Ln10)) }

// The bets of the e-process. A bet of size s wins s times the result of each answer (1, 0 or -1), so its capital
// is a product. If the null hypothesis is true, no bet is expected to win, so the mean capital of all bets is an
// e-process: it reaches 1/alpha, ever, with a probability of at most alpha (Ville's inequality).
//
// Many bets are placed because the best size depends on the unknown lead: it is about the lead divided by the
// share of answers that differ. Small leads need small bets and many labels. Most of the money is on the leads of
// half a point to a few points that a trial wants to decide.
var bets = []struct{ size, share float64 }{
	{0.001, 0.01}, {0.003, 0.01}, {0.008, 0.02}, {0.02, 0.05}, {0.04, 0.09}, {0.07, 0.13}, {0.11, 0.16},
	{0.16, 0.16}, {0.23, 0.14}, {0.33, 0.10}, {0.48, 0.07}, {0.68, 0.04}, {0.94, 0.02},
}

// counts has the results of a comparison: all that an e-value depends on.
type counts struct{ won, tied, lost int64 }

// logE returns the logarithm of the e-value against the hypothesis that the lead is at most m. It falls with m.
//
// For m = 0 ties do not count: this is the test of discordant pairs by a mixture of binomial likelihood
// ratios, and a bet of size s is the alternative that a share (1+s)/2 of the discordant pairs is won.
func (c counts) logE(m float64) float64 {
	if m >= 1 {
		return 0 // a lead is never above 1: nothing speaks against that hypothesis
	}
	terms := make([]float64, 0, 32)
	largest := math.Inf(-1)
	for _, b := range bets {
		s := min(b.size, 0.99/(1+m)) // a loss leaves a rest of the capital
		// The conversions keep the compiler from fusing operations, which would round otherwise on some processors.
		l := math.Log(b.share) + float64(float64(c.won)*math.Log1p(float64(s*(1-m)))) +
			float64(float64(c.tied)*math.Log1p(-float64(s*m))) + float64(float64(c.lost)*math.Log1p(-float64(s*(1+m))))
		terms, largest = append(terms, l), max(largest, l)
	}
	var sum float64
	for _, l := range terms {
		sum += math.Exp(l - largest)
	}
	return largest + math.Log(sum)
}

// lowest returns the lead below which the data contradicts every lead: the largest m whose e-value is at least
// 1/alpha. It is -1 if there is none.
func (c counts) lowest(alpha float64) float64 {
	low, high := -1.0, 1.0
	enough := -math.Log(alpha)
	if !(c.logE(low) >= enough) {
		return low
	}
	for range 40 { // to 2e-12
		if middle := (low + high) / 2; c.logE(middle) >= enough {
			low = middle
		} else {
			high = middle
		}
	}
	return rounded(low)
}

func (c counts) mirrored() counts { return counts{c.lost, c.tied, c.won} }

// rounded cuts a bound to nine digits, so that its text is short and the last bits of a processor's logarithm
// do not matter.
func rounded(x float64) float64 { return math.Round(x*1e9) / 1e9 }

// Mean bounds the mean of figures, such as one of each key of a fleet. The figures must come one after the other,
// each one independent of the choice of the others; their spread need not be known.
//
// The bound is that of the capital process of Waudby-Smith and Ramdas: for each possible mean m, a bet on figures
// above m wins nothing if the mean is at most m. A mean is excluded for ever once the mixture of all bets against it
// has reached 1/alpha.
type Mean struct {
	low, high float64
	n         int64
	sum       float64
	// bins counts the figures by their place between low and high, rounded down, so that the bound stays valid
	// and its cost does not grow.
	bins [meanBins + 1]int64
}

const meanBins = 1000

// NewMean returns an empty Mean of figures that are at least low and at most high.
func NewMean(low, high float64) *Mean { return &Mean{low: low, high: high} }

// Add counts a figure. One outside the limits counts as the limit.
func (m *Mean) Add(x float64) {
	x = min(max(x, m.low), m.high)
	m.n++
	m.sum += x
	m.bins[int(math.Floor((x-m.low)/(m.high-m.low)*meanBins))]++
}

// Len returns the number of figures.
func (m *Mean) Len() int64 { return m.n }

// Value returns the mean of the figures, and 0 without any.
func (m *Mean) Value() float64 {
	if m.n == 0 {
		return 0
	}
	return rounded(m.sum / float64(m.n))
}

// fractions of the largest bet that cannot lose everything. The money is spread evenly over them.
var fractions = []float64{0.003, 0.01, 0.02, 0.04, 0.07, 0.11, 0.17, 0.25, 0.36, 0.5, 0.7, 0.9}

// Lowest returns the lower bound: with a probability of 1-alpha the true mean is never below it, however often one
// looks. It is the least possible figure if there is no evidence.
func (m *Mean) Lowest(alpha float64) float64 {
	low, high := 0.0, 1.0 // places between the limits
	enough := -math.Log(alpha)
	if m.n == 0 || m.logCapital(1e-9) < enough {
		return m.low
	}
	for range 16 { // to 0.00002
		if middle := (low + high) / 2; m.logCapital(middle) >= enough {
			low = middle
		} else {
			high = middle
		}
	}
	return rounded(m.low + low*(m.high-m.low))
}

// Above reports whether the lower bound is above a figure.
func (m *Mean) Above(x, alpha float64) bool {
	return m.n > 0 && m.logCapital((x-m.low)/(m.high-m.low)) > -math.Log(alpha)
}

// logCapital returns the logarithm of the capital of the bets against a mean at a place. It falls with the place.
func (m *Mean) logCapital(place float64) float64 {
	logs, largest := make([]float64, len(fractions)), math.Inf(-1)
	for bin, n := range m.bins {
		if n == 0 {
			continue
		}
		gain := (float64(bin)/meanBins - place) / place
		for i, f := range fractions {
			logs[i] += float64(float64(n) * math.Log1p(float64(f*gain)))
		}
	}
	for _, l := range logs {
		largest = max(largest, l)
	}
	var sum float64
	for _, l := range logs {
		sum += math.Exp(l-largest) / float64(len(fractions))
	}
	return largest + math.Log(sum)
}

// Before has the last results of a key's version before a rollout, at most 64, for the comparison with the
// version after it: the pairs of a Lead, if old and new version have not answered the same events.
//
// Each old result is used once. If one were compared with many new ones, its luck would count many times.
type Before struct {
	Right uint64 `json:"right"` // results, the last one in the lowest bit
	Count int    `json:"count"` // number of them that are not used
}

// Add remembers a result of the old version.
func (b *Before) Add(right bool) {
	b.Right <<= 1
	if right {
		b.Right |= 1
	}
	b.Count = min(b.Count+1, 64)
}

// Take uses up the last result of the old version. It reports false for ok if none is left: the new result then
// has nothing to be compared with and does not count.
func (b *Before) Take() (right, ok bool) {
	if b.Count == 0 {
		return false, false
	}
	right = b.Right&1 != 0
	b.Right >>= 1
	b.Count--
	return right, true
}
