package native

import (
	"math"

	"tidemill.dev/internal/infer/kernel"
)

// Rows of which most numbers are 0, as counts of words are, are multiplied number
// by number: of weights that lie in memory, and not in the processor's cache, only
// the rows that count are fetched. Which way a row goes depends on the row alone,
// so that its answer is the same among any others.
const (
	wide   = 128 // a row as short as this is multiplied as a whole
	sparse = 4   // one in so many may count
)

// layer is a product with weights and what follows it.
type layer struct {
	weights *kernel.Weights
	tail
	k, n   int
	finite bool // 0 times a weight is 0
}

func layerOf(p product, t tail) *layer {
	return &layer{weights: kernel.Pack(p.k, p.n, p.weights), tail: t, k: p.k, n: p.n, finite: finite(p.weights)}
}

// finite says whether all numbers are: the greatest exponent stands for those that
// are not.
func finite(x []float32) bool {
	greatest := uint32(0)
	for _, v := range x {
		greatest = max(greatest, math.Float32bits(v)&0x7fffffff)
	}
	return greatest < 0x7f800000
}

func (l *layer) bytes() int64 { return l.weights.Bytes() + 4*int64(len(l.bias)) }

// multiply writes the product of m rows, and what follows it.
func (l *layer) multiply(t *textScratch, m int, a, c []float32) {
	switch {
	case l.k > wide && l.finite:
		l.rows(t, m, a, c)
	default:
		l.weights.Multiply(m, a, l.bias, l.act, c)
	}
	if l.softmax {
		kernel.Softmax(m, l.n, c)
	}
}

// rows takes those that are full together, as many as follow each other.
func (l *layer) rows(t *textScratch, m int, a, c []float32) {
	full := 0 // rows that wait
	for i := range m {
		if !t.counts(a[i*l.k : (i+1)*l.k]) {
			full++
			continue
		}
		l.together(full, i, a, c)
		full = 0
		l.weights.MultiplySparse(t.index, t.value, l.bias, l.act, c[i*l.n:(i+1)*l.n])
	}
	l.together(full, m, a, c)
}

// together multiplies so many rows before row end.
func (l *layer) together(rows, end int, a, c []float32) {
	if begin := end - rows; rows > 0 {
		l.weights.Multiply(rows, a[begin*l.k:end*l.k], l.bias, l.act, c[begin*l.n:end*l.n])
	}
}

// counts finds the numbers of a row that are not 0, unless they are too many.
func (t *textScratch) counts(row []float32) bool {
	most := len(row) / sparse
	t.index, t.value = room(t.index, most), room(t.value, most)
	n := kernel.Filled(row, t.index, t.value)
	if n < 0 {
		return false
	}
	t.index, t.value = t.index[:n], t.value[:n]
	return true
}
