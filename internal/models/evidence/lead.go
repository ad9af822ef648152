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
