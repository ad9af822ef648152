package evidence

import (
	"math"
	"math/rand/v2"
	"testing"
)

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
