package evidence

import (
	"cmp"
	"math/bits"
	"slices"
)

// EBH says which of many hypotheses are rejected, so that of the rejected ones a share of at most alpha is
// expected to be true (e-BH by Wang and Ramdas). The e-values may depend on each other in any way.
//
// A fleet needs it: if each of 20,000 candidates is promoted with a risk of 2 %, 400 promotions are wrong.
func EBH(evalues []float64, alpha float64) []bool {
	order := make([]int, len(evalues))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(evalues[b], evalues[a]) })
	rejected := make([]bool, len(evalues))
	for k := len(order); k > 0; k-- {
		if evalues[order[k-1]] >= float64(len(order))/(alpha*float64(k)) {
			for _, i := range order[:k] {
				rejected[i] = true
			}
			break
		}
	}
	return rejected
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

// Accuracy returns the share of right results among those that are not used, and 0 without any.
func (b *Before) Accuracy() float64 {
	if b.Count == 0 {
		return 0
	}
	return float64(bits.OnesCount64(b.Right<<(64-b.Count))) / float64(b.Count)
}
