package drift

import (
	"math"
	"slices"
)

// Kind says which values a figure has.
type Kind uint8

// The kinds of figures.
const (
	Shares  Kind = iota + 1 // of labels or texts: each bin has the texts of one hash
	Numbers                 // each bin has the numbers between two quantiles of the first values
	Yes                     // bin 1 counts yes, such as right answers; bin 0 counts no
)

const (
	bins   = 12
	blocks = 8  // that are compared with the reference
	block  = 64 // values in a block
	first  = 2 * (bins - 1)
)

// Figure is the histogram of one property of a model's answers: as it was, which is the reference, and as it is now.
// It has a fixed size and no pointers.
type Figure struct {
	Kind      Kind
	Drifted   bool
	Alarms    uint16 // number of alarms, also of versions before
	Seen      uint32 // values; fewer after very many, see add
	Edges     [bins - 1]float32
	Reference [bins]uint16
	Recent    [blocks][bins]uint8 // ring; the block Seen/block is being filled
	Since     [blocks]uint64      // place of the first value of each block
}

// AddText counts a value of a figure of shares. It reports whether a block is full, so that Look is worth it.
func (f *Figure) AddText(text string, place uint64, reference int) bool {
	f.Kind = Shares
	return f.add(Bin(text), place, reference)
}

// Bin returns the bin of a text in a figure of shares.
func Bin(text string) int {
	h := uint32(2166136261) // FNV-1a
	for i := range len(text) {
		h = (h ^ uint32(text[i])) * 16777619
	}
	return int((h ^ h>>15) % bins)
}

// AddYes counts a value of a figure that is yes or no.
func (f *Figure) AddYes(yes bool, place uint64, reference int) bool {
	f.Kind = Yes
	if yes {
		return f.add(1, place, reference)
	}
	return f.add(0, place, reference)
}

// AddNumber counts a number. The first numbers only decide where the bins are: numbers that had a say in the bins are
// not independent of them.
func (f *Figure) AddNumber(x float64, place uint64, reference int) bool {
	if math.IsNaN(x) {
		return false
	}
	f.Kind = Numbers
	if f.Seen < first {
		f.setFirst(int(f.Seen), float32(x))
		if f.Seen++; f.Seen == first {
			f.setEdges()
		}
		return false
	}
	i, _ := slices.BinarySearchFunc(f.Edges[:], float32(x), func(edge, x float32) int {
		if edge <= x {
			return -1
		}
		return 1
	})
	return f.add(i, place, reference)
}

// setFirst keeps one of the first numbers in the ring, which is not needed yet.
func (f *Figure) setFirst(i int, x float32) {
	bits := math.Float32bits(x)
	for b := range 4 {
		at := 4*i + b
		f.Recent[at/bins][at%bins] = uint8(bits >> (8 * b))
	}
}

func (f *Figure) setEdges() {
	var numbers [first]float32
	for i := range numbers {
		var bits uint32
		for b := range 4 {
			at := 4*i + b
			bits |= uint32(f.Recent[at/bins][at%bins]) << (8 * b)
		}
		numbers[i] = math.Float32frombits(bits)
	}
	slices.Sort(numbers[:])
	for i := range f.Edges {
		f.Edges[i] = numbers[2*i+1]
	}
	f.Recent = [blocks][bins]uint8{}
}

// Prefill makes the counts of another sample the reference, if they are at least as many as the reference has. It keeps
// their shares. A share of a larger sample varies less than that of a reference, so the e-value stays one.
func (f *Figure) Prefill(kind Kind, counts []int, reference int) bool {
	all := 0
	for _, n := range counts {
		all += n
	}
	if all < reference || len(counts) > bins || f.Seen > 0 {
		return false
	}
	f.Kind, f.Seen = kind, uint32(reference)
	before, given := 0, 0
	for i, n := range counts {
		before += n
		upTo := int((int64(before)*int64(reference) + int64(all)/2) / int64(all)) // the sums are rounded, so that all of them are given
		f.Reference[i], given = uint16(upTo-given), upTo
	}
	return true
}

// warm returns the number of values before the reference.
func (f *Figure) warm() uint32 {
	if f.Kind == Numbers {
		return first
	}
	return 0
}

func (f *Figure) add(bin int, place uint64, reference int) bool {
	if f.Seen >= 1<<31 { // the counter must not begin again
		f.Seen -= 1 << 30 // a multiple of the ring's values, so the place in the ring stays the same
	}
	n := f.Seen - f.warm()
	f.Seen++
	if n < uint32(reference) {
		f.Reference[bin]++
		return false
	}
	n -= uint32(reference)
	at := n / block % blocks
	if n%block == 0 {
		f.Recent[at], f.Since[at] = [bins]uint8{}, place
	}
	f.Recent[at][bin]++
	return n%block == block-1
}

// Change is the strongest difference between a figure's last values and its reference.
type Change struct {
	E      float64 // e-value against "nothing has changed"
	Bin    int     // of shares and of yes: the bin whose share has changed most; of numbers: the bin below whose upper edge it has
	Before float64 // share in the reference
	Now    float64 // share in the last values
	Values int     // number of the last values
	Since  uint64  // place of the first of them
	Calm   bool    // whether all the last values look like the reference
}

// Look compares the last 64, 128, 256 and 512 values with the reference. It must be called after each full block, so
// that each look has its share of the budget.
//
// The e-value is a mean of Bayes factors, one for each window and each split of the bins into two. A factor asks
// whether both shares are the same unknown number or two numbers, so that a small reference is not taken for
// the truth. Its mean is below 2 whatever the share is (TestAFactorIsAnEValue computes it exactly), so half of the
// mean of factors is an e-value: it reaches A with a probability of at most 1/A at each look.
func (f *Figure) Look(m *Memo, reference int) Change {
	full := min((f.Seen-f.warm()-uint32(reference))/block, blocks)
	newest := (f.Seen - f.warm() - uint32(reference)) / block
	var now [bins]int
	var sum, best float64
	var c Change
	windows := 0
	for back := uint32(1); back <= full; back++ {
		at := (newest - back) % blocks
		for i, n := range f.Recent[at] {
			now[i] += int(n)
		}
		if back&(back-1) != 0 {
			continue
		}
		windows++
		e, strongest, split := f.compare(m, &now, reference, int(back)*block)
		if sum += e; strongest > best {
			best = strongest
			c.Bin, c.Values, c.Since = split, int(back)*block, f.Since[at]
			r, k := f.split(split, &now)
			c.Before, c.Now = float64(r)/float64(reference), float64(k)/float64(c.Values)
		}
		c.Calm = back == blocks && e < 1
	}
	c.E = sum / float64(max(windows, 1)) / 2
	return c
}

// compare returns the mean of the factors of all splits, and the largest.
func (f *Figure) compare(m *Memo, now *[bins]int, reference, n int) (mean, best float64, at int) {
	from, to := 0, bins
	switch f.Kind {
	case Yes:
		from, to = 1, 2
	case Numbers:
		to = bins - 1
	}
	for i := from; i < to; i++ {
		r, k := f.split(i, now)
		x := 1.0 // nothing is in the bin, so nothing has changed
		if r+k > 0 {
			x = m.factor(r, reference, k, n)
		}
		if mean += x; x > best {
			best, at = x, i
		}
	}
	return mean / float64(to-from), best, at
}

// split returns how many values of the reference and of the last ones are in a bin, or of numbers, in it or below.
func (f *Figure) split(i int, now *[bins]int) (r, k int) {
	if f.Kind != Numbers {
		return int(f.Reference[i]), now[i]
	}
	for j := range i + 1 {
		r, k = r+int(f.Reference[j]), k+now[j]
	}
	return r, k
}

// Memo has logarithms that factors need, so that a factor is sums of table entries.
type Memo struct{ half, whole []float64 } // of gamma(i+1/2) and gamma(i+1)

// NewMemo returns the table for references of that size.
func NewMemo(reference int) *Memo {
	n := reference + blocks*block + 1
	m := &Memo{make([]float64, n), make([]float64, n)}
	for i := range n {
		m.half[i], _ = math.Lgamma(float64(i) + 0.5)
		m.whole[i], _ = math.Lgamma(float64(i) + 1)
	}
	return m
}

// factor returns the likelihood that two samples have different shares, divided by the likelihood that they
// have the same share. Unknown shares have Jeffreys' prior.
func (m *Memo) factor(r, of, k, n int) float64 {
	own := m.half[r] + m.half[of-r] - m.whole[of] + m.half[k] + m.half[n-k] - m.whole[n]
	same := m.half[r+k] + m.half[of+n-r-k] - m.whole[of+n] + math.Log(math.Pi)
	return math.Exp(min(own-same, 600))
}
