package trials

import (
	"slices"

	"tidemill.dev"
)

// family has the trials of one recipe whose promotions share a budget.
type family struct {
	alpha  float64
	trials int       // running trials, and those that have ended within the last 30 days
	levels []float64 // levels at which trials among them have passed
}

// budgetWith returns the budget if some more trials pass at this moment.
func (f *family) budgetWith(more int) tidemill.TrialBudget {
	promoted := 0
	// A trial that passed earlier counts if it would pass at the present level too. Its level depends on the
	// count, which only grows, so a second pass of the loop changes no count that was taken.
	levels := slices.Sorted(slices.Values(f.levels))
	for k := len(levels); k >= 0; k-- {
		if k == 0 || levels[k-1] <= f.level(k+more) {
			promoted = k + more
			break
		}
	}
	promoted = max(promoted, 1)
	return tidemill.TrialBudget{Trials: f.trials, Promoted: promoted, Level: f.level(promoted)}
}

func (f *family) level(promoted int) float64 {
	return min(f.alpha, f.alpha*float64(promoted)/float64(max(f.trials, 1)))
}

// choose returns which of the candidates pass, and the budget at which they do: as many as pass at the level
// that so many promotions leave. passes reports whether a candidate passes at a level. Among all promotions a
// share of at most alpha is then expected to be wrong, even if the trials depend on each other (the e-BY
// procedure of Xu, Wang and Ramdas, which is e-BH for bounds).
func (f *family) choose(candidates int, passes func(i int, level float64) bool) (chosen []bool, b tidemill.TrialBudget) {
	for count := candidates; count > 0; {
		b = f.budgetWith(count)
		chosen = make([]bool, candidates)
		n := 0
		for i := range chosen {
			if chosen[i] = passes(i, b.Level); chosen[i] {
				n++
			}
		}
		if n >= count {
			return chosen, b
		}
		count = n
	}
	return make([]bool, candidates), f.budgetWith(1)
}
