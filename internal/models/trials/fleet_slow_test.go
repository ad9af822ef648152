//go:build slow

package trials

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"tidemill.dev"
)

// truth is a world in which two models answer differently on a tenth of the events. better is the candidate's
// lead in accuracy.
type truth struct {
	*rand.Rand
	better float64
}

// tell adds a labelled event.
func (w *truth) tell(s *summary) {
	s.Answered, s.Labelled = s.Answered+1, s.Labelled+1
	switch x := w.Float64(); {
	case x < 0.05+w.better/2:
		s.Wins++
		s.lead.Add("", true, false)
	case x < 0.1:
		s.Losses++
		s.lead.Add("", false, true)
	default:
		s.lead.Add("", x < 0.9, x < 0.9)
	}
}

// trialOf looks after each 100 labels, and returns the outcome and the number of labels.
func trialOf(r *rules, w *truth, labels int) (tidemill.TrialOutcome, int) {
	s := newCollection().sum(r.Alpha)
	f := family{alpha: 0.05, trials: 1}
	for n := 1; n <= labels; n++ {
		w.tell(&s)
		if n%100 != 0 {
			continue
		}
		chosen, b := f.choose(1, func(_ int, level float64) bool { return r.passes(&s, level) })
		if d := r.decide("v", 1, &s, b, chosen[0], time.Hour); d.outcome != "" {
			return d.outcome, n
		}
	}
	return "", labels
}

// Candidates that are no better are promoted seldom, although they are looked at after every 100 labels, and
// candidates that are two points better are promoted.
func TestTrialsPromoteTheBetterOnes(t *testing.T) {
	t.Parallel()
	r := newTestRules(t, terms())
	const seeds = 1000
	wrong, right := 0, 0
	var took []int
	for seed := range uint64(seeds) {
		if outcome, _ := trialOf(r, &truth{Rand: rand.New(rand.NewPCG(seed, 1))}, 10_000); outcome == tidemill.TrialPassed {
			wrong++
		}
		if seed >= 300 {
			continue
		}
		outcome, n := trialOf(r, &truth{Rand: rand.New(rand.NewPCG(seed, 2)), better: 0.02}, 5000)
		if outcome == tidemill.TrialPassed {
			right++
			took = append(took, n)
		}
	}
	slices.Sort(took)
	t.Logf("of %d that are no better %d were promoted; of 300 that are 2 points better %d were, after %d labels (median)", seeds, wrong, right, took[len(took)/2])
	if wrong > seeds*5/100 {
		t.Errorf("%d of %d candidates that are no better were promoted", wrong, seeds)
	}
	if right < 270 {
		t.Errorf("only %d of 300 better candidates were promoted within 5,000 labels", right)
	}
}

// In a fleet of 20,000 candidates, of which few are better, at most a twentieth of the promotions is wrong.
func TestAFleetKeepsItsBudget(t *testing.T) {
	t.Parallel()
	r := newTestRules(t, terms())
	for _, better := range []int{0, 400} {
		const keys = 20_000
		w := &truth{Rand: rand.New(rand.NewPCG(uint64(better), 5))}
		var ready []summary
		var isBetter []bool
		for i := range keys {
			w.better = 0
			if i < better {
				w.better = 0.04
			}
			s := newCollection().sum(r.Alpha)
			for range 3000 {
				w.tell(&s)
			}
			if r.passes(&s, r.Alpha) {
				ready, isBetter = append(ready, s), append(isBetter, i < better)
			}
		}
		f := family{alpha: 0.05, trials: keys}
		chosen, b := f.choose(len(ready), func(i int, level float64) bool { return r.passes(&ready[i], level) })
		right, wrong, alone := 0, 0, 0
		for i, is := range chosen {
			switch {
			case is && isBetter[i]:
				right++
			case is:
				wrong++
			}
			if !isBetter[i] {
				alone++
			}
		}
		t.Logf("%d better: %d of them promoted, %d others; without a budget %d others; level %g", better, right, wrong, alone, b.Level)
		if wrong > 1+(right+wrong)/20 || better > 0 && right < better*9/10 {
			t.Errorf("of %d better candidates %d were promoted, and of the others %d", better, right, wrong)
		}
	}
}
