package evidence

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// world is a stream of labelled events whose truth is known: a candidate and a champion decide a share of them
// differently, and the candidate is ahead by lead.
type world struct{ differ, lead float64 }

func (w world) next(r *rand.Rand) (candidate, champion bool) {
	switch x := r.Float64(); {
	case x < (w.differ+w.lead)/2:
		return true, false
	case x < w.differ:
		return false, true
	}
	return true, true
}

// promoted returns the number of labels after which a candidate is promoted that is looked at after every 100
// labels, or 0 if it is not promoted within limit labels.
func promoted(w world, seed uint64, limit int) int {
	r, l := rand.New(rand.NewPCG(seed, 1)), NewLead(0.05)
	for n := 1; n <= limit; n++ {
		candidate, champion := w.next(r)
		l.Add("", candidate, champion)
		if n%100 == 0 {
			if l.EValue() >= 1/l.Alpha {
				return n
			}
		}
	}
	return 0
}

const seeds = 1000

// The bar of the issue: of 1,000 candidates that are no better, looked at after every 100 labels, at most 5 % are
// promoted. The worlds differ in the share of answers that differ.
func TestNoBetterCandidatesAreRarelyPromoted(t *testing.T) {
	t.Parallel()
	for _, differ := range []float64{0.02, 0.1, 0.5} {
		wrong := 0
		for seed := range uint64(seeds) {
			if promoted(world{differ, 0}, seed, 5000) > 0 {
				wrong++
			}
		}
		t.Logf("%.0f %% of the answers differ: %.1f %% promoted wrongly", 100*differ, 100*float64(wrong)/seeds)
		if wrong > seeds*5/100 {
			t.Errorf("%d of %d candidates that are no better were promoted, at most 5 %% may be", wrong, seeds)
		}
	}
}

// The bar of the issue: of 1,000 candidates that are 2 points better, at least 90 % are promoted within 5,000
// labels.
func TestBetterCandidatesArePromoted(t *testing.T) {
	t.Parallel()
	var after []int
	for seed := range uint64(seeds) {
		if n := promoted(world{0.1, 0.02}, seed, 5000); n > 0 {
			after = append(after, n)
		}
	}
	slices.Sort(after)
	t.Logf("%.1f %% promoted, the median after %d labels", 100*float64(len(after))/seeds, after[len(after)/2])
	if len(after) < seeds*90/100 {
		t.Errorf("%d of %d better candidates were promoted within 5,000 labels, at least 90 %% must be", len(after), seeds)
	}
}

// Both bounds hold at every look, for leads of all sizes: each is wrong in at most 5 % of all worlds.
func TestBoundsHoldAtEveryLook(t *testing.T) {
	t.Parallel()
	const worlds = 200
	for _, w := range []world{{0.1, 0.02}, {0.1, -0.05}, {0.4, 0.3}, {0.03, 0.03}} {
		var low, high int
		for seed := range uint64(worlds) {
			r, l := rand.New(rand.NewPCG(seed, 2)), NewLead(0.05)
			tooHigh, tooLow := false, false
			for n := 1; n <= 2000; n++ {
				candidate, champion := w.next(r)
				l.Add("", candidate, champion)
				if n%50 == 0 {
					from, value, to := l.Bounds()
					if from > value || value > to {
						t.Fatalf("the lead %v is outside of its bounds %v and %v", value, from, to)
					}
					if from > 0 != (l.EValue() >= 20) {
						t.Fatalf("the lower bound is %v and the e-value %v: they must say the same", from, l.EValue())
					}
					tooHigh, tooLow = tooHigh || from > w.lead, tooLow || to < w.lead
				}
			}
			low, high = low+count(tooHigh), high+count(tooLow)
		}
		t.Logf("%+v: the lower bound was wrong in %.1f %%, the upper one in %.1f %%", w, 100*float64(low)/worlds, 100*float64(high)/worlds)
		if low > worlds*5/100 || high > worlds*5/100 {
			t.Errorf("%+v: the lower bound was wrong in %d worlds of %d, the upper one in %d; at most 5 %% may be", w, low, worlds, high)
		}
	}
}

// A card with many events is one piece of evidence. Each card is one on which the candidate is always right, or one
// on which the champion is, so 2,500 events of 50 cards are as much evidence as 50 events.
func TestAGroupHasOneVote(t *testing.T) {
	t.Parallel()
	var grouped, alone int
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 3))
		l, naive := NewLead(0.05), NewLead(0.05)
		var cards [50]bool
		for i := range cards {
			cards[i] = r.IntN(2) == 0
		}
		g, n := false, false
		for i := range 2500 {
			card := r.IntN(len(cards))
			l.Add(string(rune('A'+card)), cards[card], !cards[card])
			naive.Add("", cards[card], !cards[card])
			if i%100 == 99 {
				g, n = g || l.EValue() >= 20, n || naive.EValue() >= 20
			}
		}
		grouped, alone = grouped+count(g), alone+count(n)
	}
	t.Logf("promoted wrongly: %.1f %% with groups, %.1f %% without", 100*float64(grouped)/seeds, 100*float64(alone)/seeds)
	if grouped > seeds*5/100 {
		t.Errorf("%d of %d candidates that are no better were promoted, at most 5 %% may be", grouped, seeds)
	}
	if alone < seeds/5 {
		t.Errorf("only %d of %d were promoted without groups: this world does not show that groups matter", alone, seeds)
	}
}

// The e-value is the ratio of likelihoods that its bets say, computed one answer after the other.
func TestTheEValueIsThatOfItsBets(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 4))
	for _, m := range []float64{-0.3, 0, 0.02, 0.4} {
		capital := make([]float64, len(bets))
		var shares float64
		for i, b := range bets {
			capital[i] = b.share
			shares += b.share
		}
		if math.Abs(shares-1) > 1e-12 {
			t.Fatalf("the shares of the bets add up to %v", shares)
		}
		l := NewLead(0.05)
		for range 300 {
			d := r.IntN(3) - 1
			l.Add("", d > 0, d < 0)
			for i, b := range bets {
				capital[i] *= 1 + min(b.size, 0.99/(1+m))*(float64(d)-m)
			}
		}
		var want float64
		for _, c := range capital {
			want += c
		}
		if is := l.Better(m); math.Abs(is/want-1) > 1e-9 {
			t.Errorf("e-value against a lead of at most %v: %v, one answer after the other %v", m, is, want)
		}
	}
}

// What JSON brings back has the same bounds to the bit, and the order of the answers does not matter.
func TestALeadIsItsCounts(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 5))
	a, b := NewLead(0.05), NewLead(0.05)
	var all [][2]bool
	for range 3000 {
		candidate, champion := (world{0.2, 0.05}).next(r)
		all = append(all, [2]bool{candidate, champion})
		a.Add("", candidate, champion)
	}
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, p := range all {
		text, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		b = new(Lead)
		if err := json.Unmarshal(text, b); err != nil {
			t.Fatal(err)
		}
		b.Add("", p[0], p[1])
	}
	al, av, ah := a.Bounds()
	bl, bv, bh := b.Bounds()
	if al != bl || av != bv || ah != bh || a.EValue() != b.EValue() {
		t.Errorf("bounds %v %v %v and %v %v %v differ", al, av, ah, bl, bv, bh)
	}
}

// A new trainer image that costs 8 points is found by its outcomes against those of the version before; one that
// costs nothing, or less than the margin, is not stopped.
func TestAWorseFleetIsFound(t *testing.T) {
	t.Parallel()
	stopped := func(accuracy float64, seed uint64) int {
		r, l := rand.New(rand.NewPCG(seed, 7)), NewLead(0.01)
		old := make([]Before, 200)
		for i := range old {
			for range 40 {
				old[i].Add(r.Float64() < 0.9)
			}
		}
		for n := 1; n <= 6000; n++ {
			if was, ok := old[r.IntN(len(old))].Take(); ok {
				l.Add("", r.Float64() < accuracy, was)
			}
			if n%20 == 0 && l.Worse(0.02) >= 100 {
				return n
			}
		}
		return 0
	}
	var good, bad int
	for seed := range uint64(200) {
		good += count(stopped(0.88, seed) > 0)
		bad += count(stopped(0.82, seed) > 0)
	}
	t.Logf("stopped: %d of 200 worse by the margin, %d of 200 worse by 8 points", good, bad)
	if good > 2+4 || bad < 190 {
		t.Errorf("stopped: %d of 200 rollouts within the margin, and %d of 200 bad ones", good, bad)
	}
}

func TestBefore(t *testing.T) {
	var b Before
	if _, ok := b.Take(); ok {
		t.Error("an empty one has a result")
	}
	for i := range 70 {
		b.Add(i%4 != 0)
	}
	if b.Count != 64 {
		t.Errorf("it has %d results", b.Count)
	}
	for i := 69; i >= 6; i-- {
		if right, ok := b.Take(); !ok || right != (i%4 != 0) {
			t.Fatalf("result %d: %v %v", i, right, ok)
		}
	}
	if _, ok := b.Take(); ok {
		t.Error("a result is used twice")
	}
}

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// In 1,000 fleets whose keys are not worse on the average, the bound passes the mean in at most 5 %, although it is
// looked at after every five keys. The keys differ much, and in other ways.
func TestTheMeanIsRarelyBelowItsBound(t *testing.T) {
	const seeds, keys, alpha = 1000, 300, 0.05
	for name, draw := range map[string]func(*rand.Rand) float64{
		"some better, some worse": func(r *rand.Rand) float64 { return 0.1 * r.NormFloat64() },
		"few are much worse": func(r *rand.Rand) float64 {
			if r.Float64() < 0.05 {
				return 0.475
			}
			return -0.025
		},
		"many are a little worse": func(r *rand.Rand) float64 {
			if r.Float64() < 0.05 {
				return -0.475
			}
			return 0.025
		},
	} {
		wrong := 0
		for seed := range uint64(seeds) {
			r, m := rand.New(rand.NewPCG(seed, 1)), NewMean(-1, 1)
			for range keys {
				m.Add(draw(r))
				if m.Len()%5 == 0 && m.Above(0, alpha) {
					wrong++
					break
				}
			}
		}
		if wrong > seeds*alpha {
			t.Errorf("%s: the bound is above the mean in %d of %d fleets", name, wrong, seeds)
		}
	}
}

// A fleet that is 10 points worse is known to be more than 2 points worse after some ten keys.
func TestAWorseMeanIsFound(t *testing.T) {
	const seeds = 200
	found := 0
	for seed := range uint64(seeds) {
		r, m := rand.New(rand.NewPCG(seed, 2)), NewMean(-1, 1)
		for m.Len() < 180 && !m.Above(0.02, 0.025) {
			m.Add(0.1 + 0.1*r.NormFloat64())
		}
		if m.Above(0.02, 0.025) {
			found++
		}
	}
	if found < seeds*95/100 {
		t.Errorf("%d of %d fleets are found within 180 keys", found, seeds)
	}
}

func TestLowestOfShares(t *testing.T) {
	m := NewMean(0, 1)
	if got := m.Lowest(0.05); got != 0 {
		t.Errorf("without figures: %g", got)
	}
	for range 6 {
		m.Add(1)
	}
	if got := m.Lowest(0.05); got < 0.3 || got > 0.7 {
		t.Errorf("after 6 of 6: %g", got)
	}
	for range 994 {
		m.Add(0)
	}
	if got := m.Lowest(0.05); got > 0.006 || m.Value() != 0.006 {
		t.Errorf("after 6 of 1,000: %g, mean %g", got, m.Value())
	}
}

// The bound depends on the figures alone, not on their order.
func TestLowestHasNoOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	var figures []float64
	for range 200 {
		figures = append(figures, 2*r.Float64()-0.9)
	}
	a, b := NewMean(-1, 1), NewMean(-1, 1)
	for i := range figures {
		a.Add(figures[i])
		b.Add(figures[len(figures)-1-i])
	}
	if x, y := a.Lowest(0.05), b.Lowest(0.05); math.Abs(x-y) > 1e-9 {
		t.Errorf("%g, and backwards %g", x, y)
	}
}

// The Python package confseq 0.0.11 (betting_mart, with these bets) computes the same capital. Its figures are written
// down here, because it needs Boost's headers and a NumPy before 2 to be installed.
func TestCapitalsAreThoseOfConfseq(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		counts
		m, want float64
	}{{counts{40, 300, 20}, 0, 2.354750839022537}, {counts{40, 300, 20}, 0.02, 0.893619896088984}, {counts{100, 50, 60}, -0.05, 6.450006328027664},
		{counts{5, 10, 2}, 0.1, 0.020484484489491157}} {
		if is := c.logE(c.m); math.Abs(is-c.want) > 1e-9 {
			t.Errorf("%v against %v: %v, confseq has %v", c.counts, c.m, is, c.want)
		}
	}
	m := NewMean(0, 1)
	for i := range 200 {
		m.Add((float64(i*7%300+50) + 1e-6) / meanBins)
	}
	for place, want := range map[float64]float64{0.1: 96.95545458770258, 0.15: 22.751651715155198, 0.18: 0.8927258774166646} {
		if is := m.logCapital(place); math.Abs(is-want) > 1e-5 { // figures are rounded down to bins
			t.Errorf("a mean of %v: %v, confseq has %v", place, is, want)
		}
	}
}
