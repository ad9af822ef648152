package native

import (
	"fmt"
	"slices"

	"tidemill.dev/internal/infer/tensor"
)

// gemm is alpha·A·B + beta·C, either of A and B turned round.
type gemm struct {
	alpha, beta float32
	turnA       bool
	turnB       bool
	kind        tensor.Type
	a, b, c, to *ref // c is nil if there is none
}

func (c *compiler) gemm(n *node) error {
	if err := n.wants(2, 3); err != nil {
		return err
	}
	a, b, bias := n.in[0], n.in[1], n.optional(2)
	if err := only(a, tensor.Float, tensor.Double, tensor.Int32, tensor.Int64); err != nil {
		return err
	}
	if a.kind != b.kind || bias != nil && bias.kind != a.kind {
		return fmt.Errorf("what it multiplies and adds is of different types")
	}
	g := &gemm{
		alpha: n.float("alpha", 1), beta: n.float("beta", 1), kind: a.kind,
		turnA: n.integer("transA", 0) != 0, turnB: n.integer("transB", 0) != 0, a: a.ref, b: b.ref,
	}
	if p, ok := productOf(n); ok && a.known == nil {
		c.weigh(n, &value{kind: a.kind, shape: []int{tensor.Any, p.k}, ref: a.ref}, p)
		return nil
	}
	y := c.output(n, 0, a.kind, []int{tensor.Any, tensor.Any})
	g.to = y.ref
	reads := []*value{a, b}
	if bias != nil {
		g.c, reads = bias.ref, append(reads, bias)
	}
	c.add(n.what(), reads, []*value{y}, g.run)
	return nil
}

// product is that of a table with weights that are known, and of what is added to
// each row alike.
type product struct {
	k, n    int
	weights []float32
	bias    []float32
}

// productOf reads a Gemm or MatMul whose second input is known; ok says that it is
// no more than a product.
func productOf(n *node) (p product, ok bool) {
	b, c := n.in[1], n.optional(2)
	if b == nil || b.known == nil || b.kind != tensor.Float || len(b.known.Shape) != 2 {
		return p, false
	}
	p = product{k: b.known.Shape[0], n: b.known.Shape[1], weights: b.known.Floats}
	if n.Op == "MatMul" {
		return p, true
	}
	if n.integer("transB", 0) != 0 {
		p.k, p.n, p.weights = p.n, p.k, turned(p.k, p.n, p.weights)
	}
	if c != nil {
		if p.bias, ok = biasOf(c, p.n, 2); !ok {
			return p, false
		}
		scale(p.bias, n.float("beta", 1))
	}
	if alpha := n.float("alpha", 1); alpha != 1 {
		p.weights = slices.Clone(p.weights)
		scale(p.weights, alpha)
	}
	return p, n.integer("transA", 0) == 0
}

// turned is a matrix with its columns as rows. It goes over a few columns at a
// time, which is as many lines of memory as are written at once.
func turned(rows, columns int, x []float32) []float32 {
	const few = 16
	y := make([]float32, len(x))
	for from := 0; from < columns; from += few {
		to := min(from+few, columns)
		for i := range rows {
			for j := from; j < to; j++ {
				y[j*rows+i] = x[i*columns+j]
			}
		}
	}
	return y
}

func scale(x []float32, by float32) {
	for i := range x {
		x[i] *= by
	}
}

// run is the product when neither side is known beforehand, or C differs by row.
func (g *gemm) run(s *state) error {
	a, b := s.get(g.a), s.get(g.b)
	if len(a.Shape) != 2 || len(b.Shape) != 2 {
		return fmt.Errorf("tables of %v and %v are no matrices", slices.Clone(a.Shape), slices.Clone(b.Shape))
	}
	l := layout{m: a.Shape[0], k: a.Shape[1], rowA: a.Shape[1], colA: 1, n: b.Shape[1], rowB: b.Shape[1], colB: 1}
	inner := b.Shape[0]
	if g.turnA {
		l.m, l.k, l.rowA, l.colA = l.k, l.m, 1, a.Shape[1]
	}
	if g.turnB {
		l.n, inner, l.rowB, l.colB = inner, l.n, 1, b.Shape[1]
	}
	if l.k != inner {
		return fmt.Errorf("tables of %v and %v do not go together", slices.Clone(a.Shape), slices.Clone(b.Shape))
	}
	out, err := s.make(g.to, g.kind, l.m, l.n)
	if err == nil {
		err = s.multiply(l.m, l.k, l.n)
	}
	if err != nil {
		return err
	}
	switch g.kind {
	case tensor.Float:
		multiply(l, out.Floats, a.Floats, b.Floats)
		scale(out.Floats, g.alpha)
	case tensor.Double:
		multiply(l, out.Doubles, a.Doubles, b.Doubles)
		for i := range out.Doubles {
			out.Doubles[i] *= float64(g.alpha)
		}
	default:
		multiply(l, out.Ints, a.Ints, b.Ints)
		for i, v := range out.Ints {
			out.Ints[i] = int64(float64(g.alpha) * float64(v))
		}
	}
	return g.add(s, out)
}

// add adds C, which may have fewer sides, or sides of 1 that are repeated.
func (g *gemm) add(s *state, out *tensor.Tensor) error {
	if g.c == nil {
		return nil
	}
	c := s.get(g.c)
	var l lattice
	if err := l.lay(out.Shape, c.Shape); err != nil {
		return err
	}
	if !slices.Equal(l.shape(), out.Shape) {
		return fmt.Errorf("what it adds is of %v, and the product of %v", slices.Clone(c.Shape), slices.Clone(out.Shape))
	}
	switch g.kind {
	case tensor.Float:
		walk(&l, out.Floats, out.Floats, c.Floats, adding, func(_ operation, dst, a, b []float32) { addScaled(dst, b, g.beta) })
	case tensor.Double:
		walk(&l, out.Doubles, out.Doubles, c.Doubles, adding, func(_ operation, dst, a, b []float64) { addScaled(dst, b, float64(g.beta)) })
	default:
		walk(&l, out.Ints, out.Ints, c.Ints, adding, func(_ operation, dst, a, b []int64) { addScaled(dst, b, int64(g.beta)) })
		wrap(g.kind, out.Ints)
	}
	return nil
}

// addScaled adds times b to dst; b may be one number for all.
func addScaled[T number](dst, b []T, times T) {
	step := 1
	if len(b) != len(dst) {
		step = 0
	}
	for i := range dst {
		dst[i] += times * b[i*step]
	}
}
