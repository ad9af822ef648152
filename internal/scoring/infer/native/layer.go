package native

import (
	"fmt"
	"math"
	"slices"

	"tidemill.dev/internal/scoring/infer/kernel"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// Rows of mostly zeros, such as counts of words, are multiplied number by number. If the weights
// are in memory and not in the processor's cache, only the needed rows are fetched. The row alone
// decides how it is multiplied, so its answer is the same in every batch.
const (
	wide   = 128 // a row shorter than this is always multiplied as a whole
	sparse = 4   // one number in this many may be other than zero
)

// layer is a product with weights and the operations that follow it.
type layer struct {
	weights *kernel.Weights
	tail
	k, n   int
	finite bool // all weights are finite, so 0 times a weight is 0
}

func layerOf(p product, t tail) *layer {
	return &layer{weights: kernel.Pack(p.k, p.n, p.weights), tail: t, k: p.k, n: p.n, finite: finite(p.weights)}
}

// finite reports whether all numbers are finite. Infinity and NaN have the greatest exponent.
func finite(x []float32) bool {
	greatest := uint32(0)
	for _, v := range x {
		greatest = max(greatest, math.Float32bits(v)&0x7fffffff)
	}
	return greatest < 0x7f800000
}

func (l *layer) bytes() int64 { return l.weights.Bytes() + 4*int64(len(l.bias)) }

// multiply computes the product of m rows and the operations that follow.
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

// rows multiplies consecutive dense rows together.
func (l *layer) rows(t *textScratch, m int, a, c []float32) {
	full := 0 // number of consecutive dense rows so far
	for i := range m {
		if !t.findNonZero(a[i*l.k : (i+1)*l.k]) {
			full++
			continue
		}
		l.multiplyRows(full, i, a, c)
		full = 0
		l.weights.MultiplySparse(t.index, t.value, l.bias, l.act, c[i*l.n:(i+1)*l.n])
	}
	l.multiplyRows(full, m, a, c)
}

// multiplyRows multiplies a number of rows before row end.
func (l *layer) multiplyRows(rows, end int, a, c []float32) {
	if begin := end - rows; rows > 0 {
		l.weights.Multiply(rows, a[begin*l.k:end*l.k], l.bias, l.act, c[begin*l.n:end*l.n])
	}
}

// findNonZero finds the numbers of a row that are not 0, unless there are too many.
func (t *textScratch) findNonZero(row []float32) bool {
	most := len(row) / sparse
	t.index, t.value = room(t.index, most), room(t.value, most)
	n := kernel.Filled(row, t.index, t.value)
	if n < 0 {
		return false
	}
	t.index, t.value = t.index[:n], t.value[:n]
	return true
}

// tail has the operations that most graphs have after a product. They are applied to
// each row of the product at once.
type tail struct {
	bias    []float32
	act     kernel.Activation
	softmax bool
}

// includeTail includes the nodes after a product of n columns, as far as they can be
// computed with it, and returns the last one. It needs the rank of the result to
// interpret a bias or an axis; -1 means unknown.
func (c *compiler) includeTail(last *node, t *tail, n, rank int) *node {
	if next := c.sole(last, "Add"); next != nil && t.bias == nil && len(next.in) == 2 {
		other := next.in[0]
		if next.Inputs[0] == last.Outputs[0] {
			other = next.in[1]
		}
		if bias, ok := biasOf(other, n, rank); ok {
			t.bias, last = bias, c.markIncluded(next)
		}
	}
	if next := c.sole(last, "Relu", "Sigmoid", "Tanh"); next != nil && len(next.in) == 1 {
		t.act, last = activationOf(next.Op), c.markIncluded(next)
	}
	if next := c.sole(last, "Softmax"); next != nil && len(next.in) == 1 && softmaxOfRows(next, rank) {
		t.softmax, last = true, c.markIncluded(next)
	}
	return last
}

// markIncluded marks a node as included in another one's step.
func (c *compiler) markIncluded(n *node) *node {
	c.done[n.at] = true
	return n
}

// biasOf returns the row that a value adds to each row of n columns.
func biasOf(v *value, n, rank int) ([]float32, bool) {
	if v == nil || v.known == nil || v.kind != tensor.Float {
		return nil, false
	}
	shape, x := v.known.Shape, v.known.Floats
	if len(shape) > max(rank, 1) || len(shape) > 0 && volume(shape[:len(shape)-1]) != 1 {
		return nil, false
	}
	switch {
	case len(x) == n:
		return slices.Clone(x), true
	case len(x) == 1:
		return slices.Repeat(x, n), true
	}
	return nil, false
}

// softmaxOfRows reports whether a node's axis is the last one.
func softmaxOfRows(n *node, rank int) bool {
	axis := n.integer("axis", softmaxAxis(n.opset))
	return axis == -1 && (n.opset >= 13 || rank == 2) || rank > 0 && axis == int64(rank)-1
}

func activationOf(op string) kernel.Activation {
	switch op {
	case "Relu":
		return kernel.Relu
	case "Sigmoid":
		return kernel.Sigmoid
	case "Tanh":
		return kernel.Tanh
	}
	return kernel.None
}

func (c *compiler) activation(n *node) error {
	act := activationOf(n.Op)
	return c.changed(n, func(_ *state, out *tensor.Tensor) error {
		act.Apply(out.Floats)
		for i, v := range out.Doubles {
			out.Doubles[i] = applied(act, v)
		}
		for i, v := range out.Ints {
			out.Ints[i] = max(v, 0)
		}
		return nil
	})
}

// applied computes an activation in double precision.
func applied(act kernel.Activation, v float64) float64 {
	switch act {
	case kernel.Relu:
		if v < 0 {
			return 0
		}
	case kernel.Sigmoid:
		return 1 / (1 + math.Exp(-v))
	case kernel.Tanh:
		return math.Tanh(v)
	}
	return v
}

// softmaxAxis returns the default axis. Before version 13 a tensor was first reshaped
// to a matrix: all dimensions from the axis on formed one row.
func softmaxAxis(opset int64) int64 {
	if opset < 13 {
		return 1
	}
	return -1
}

func (c *compiler) softmax(n *node) error {
	axis, asMatrix := n.integer("axis", softmaxAxis(n.opset)), n.opset < 13
	return c.changed(n, func(_ *state, out *tensor.Tensor) error {
		at, err := axisOf(axis, max(len(out.Shape), 1))
		if asMatrix && err != nil && axis == int64(len(out.Shape)) {
			at, err = len(out.Shape), nil
		}
		if err != nil {
			return fmt.Errorf("of %v: %w", slices.Clone(out.Shape), err)
		}
		if length(out) == 0 {
			return nil
		}
		sides, behind := out.Shape[at:], 1
		if !asMatrix && len(sides) > 0 {
			sides, behind = sides[:1], volume(sides[1:])
		}
		softmaxOver(out, volume(sides), behind)
		return nil
	})
}

// softmaxOver computes softmax over groups of n numbers that are step numbers apart.
func softmaxOver(t *tensor.Tensor, n, step int) {
	if t.Type == tensor.Float && step == 1 {
		kernel.Softmax(len(t.Floats)/n, n, t.Floats)
		return
	}
	for begin := 0; begin < length(t); begin += n * step {
		for i := range step {
			if t.Type == tensor.Float {
				softmax(t.Floats[begin+i:], n, step)
			} else {
				softmax(t.Doubles[begin+i:], n, step)
			}
		}
	}
}

func softmax[T float32 | float64](x []T, n, step int) {
	greatest, sum := math.Inf(-1), 0.0
	for i := range n {
		greatest = max(greatest, float64(x[i*step]))
	}
	for i := range n {
		e := math.Exp(float64(x[i*step]) - greatest)
		x[i*step], sum = T(e), sum+e
	}
	for i := range n {
		x[i*step] = T(float64(x[i*step]) / sum)
	}
}
