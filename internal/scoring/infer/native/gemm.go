package native

import (
	"fmt"
	"math"
	"slices"

	"tidemill.dev/internal/scoring/infer/onnx"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// gemm is alpha·A·B + beta·C, where A and B may be transposed.
type gemm struct {
	alpha, beta float32
	turnA       bool
	turnB       bool
	kind        tensor.Type
	a, b, c, to *ref // c is nil if it is absent
}

func (c *compiler) gemm(n *node) error {
	a, b, bias := n.in[0], n.in[1], n.addend()
	if a.kind != b.kind || bias != nil && bias.kind != a.kind {
		return fmt.Errorf("its inputs have different types")
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
	c.add(n.describe(), reads, []*value{y}, g.run)
	return nil
}

// addend returns C; nil if it is absent, or does not count, as in ONNX Runtime.
func (n *node) addend() *value {
	if n.float("beta", 1) == 0 {
		return nil
	}
	return n.optional(2)
}

// product is a multiplication by constant weights plus a constant bias for each row.
type product struct {
	k, n    int
	weights []float32
	bias    []float32
}

// productOf reads a Gemm or MatMul whose second input is constant; ok means that it is
// such a product.
func productOf(n *node) (p product, ok bool) {
	b, c := n.in[1], n.addend()
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

// turned transposes a matrix. It takes a few columns at a time, so that it writes only
// a few cache lines at once.
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

// run computes the product if neither side is constant, or if C differs by row.
func (g *gemm) run(s *state) error {
	a, b := s.get(g.a), s.get(g.b)
	if len(a.Shape) != 2 || len(b.Shape) != 2 {
		return fmt.Errorf("tensors of %v and %v are not matrices", slices.Clone(a.Shape), slices.Clone(b.Shape))
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
	out, err := s.prepare(g.to, g.kind, l.m, l.n)
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

// add adds C, which may have fewer dimensions, or dimensions of length 1 that are repeated.
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
		return fmt.Errorf("the shape of C is %v, and that of the product %v", slices.Clone(c.Shape), slices.Clone(out.Shape))
	}
	switch g.kind {
	case tensor.Float:
		walk(&l, out.Floats, out.Floats, c.Floats, func(dst, _, b []float32) { addScaled(dst, b, g.beta) })
	case tensor.Double:
		walk(&l, out.Doubles, out.Doubles, c.Doubles, func(dst, _, b []float64) { addScaled(dst, b, float64(g.beta)) })
	default:
		walk(&l, out.Ints, out.Ints, c.Ints, func(dst, _, b []int64) { addScaled(dst, b, int64(g.beta)) })
		wrap(g.kind, out.Ints)
	}
	return nil
}

// addScaled adds times b to dst; b may be a single number.
func addScaled[T number](dst, b []T, times T) {
	step := 1
	if len(b) != len(dst) {
		step = 0
	}
	for i := range dst {
		dst[i] += times * b[i*step]
	}
}

func (c *compiler) matMul(n *node) error {
	a, b := n.in[0], n.in[1]
	if a.kind != b.kind {
		return fmt.Errorf("one side is %s and the other %s", typeName(a.kind), typeName(b.kind))
	}
	if p, ok := productOf(n); ok && a.known == nil {
		c.weigh(n, a, p)
		return nil
	}
	y := c.output(n, 0, a.kind, nil)
	x1, x2, to, kind := a.ref, b.ref, y.ref, a.kind
	c.add(n.describe(), []*value{a, b}, []*value{y}, func(s *state) error { return s.matMul(kind, x1, x2, to) })
	return nil
}

// weigh adds the step of a product with weights and of the nodes that follow it.
func (c *compiler) weigh(n *node, a *value, p product) {
	k, columns, t := p.k, p.n, tail{bias: p.bias}
	rank := -1
	var shape []int
	if a.shape != nil {
		rank = len(a.shape)
		shape = slices.Clone(a.shape)
		if rank > 0 {
			shape[rank-1] = columns
		}
	}
	last := c.includeTail(n, &t, columns, rank)
	y := c.output(last, 0, tensor.Float, shape)
	l := layerOf(p, t)
	c.program.bytes += l.bytes()
	from, to := a.ref, y.ref
	c.add(n.describe(), []*value{a}, []*value{y}, func(s *state) error {
		in := s.get(from)
		rank := len(in.Shape)
		if rank == 0 || in.Shape[rank-1] != k {
			return fmt.Errorf("its rows are of %v numbers; the weights have %d", slices.Clone(in.Shape), k)
		}
		var room [maxRank]int
		sides := append(room[:0], in.Shape...)
		sides[rank-1] = columns
		rows := volume(sides[:rank-1])
		out, err := s.prepare(to, tensor.Float, sides...)
		if err == nil {
			err = s.multiply(rows, k, columns)
		}
		if err == nil && len(out.Floats) > 0 {
			l.multiply(&s.text, rows, in.Floats, out.Floats)
		}
		return err
	})
}

// matMul multiplies matrices, or stacks of them, that are not constant.
func (s *state) matMul(kind tensor.Type, x1, x2, to *ref) error {
	a, b := s.get(x1), s.get(x2)
	var ma, mb stack
	if err := ma.readShape(a.Shape, true); err != nil {
		return err
	}
	if err := mb.readShape(b.Shape, false); err != nil {
		return err
	}
	m, k, n := ma.rows, ma.columns, mb.columns
	if k != mb.rows {
		return fmt.Errorf("tables of %v and %v do not go together", slices.Clone(a.Shape), slices.Clone(b.Shape))
	}
	var l lattice
	if err := l.lay(ma.many, mb.many); err != nil {
		return err
	}
	var room [maxRank + 2]int
	shape := append(room[:0], l.shape()...)
	if len(a.Shape) > 1 {
		shape = append(shape, m)
	}
	if len(b.Shape) > 1 {
		shape = append(shape, n)
	}
	out, err := s.prepare(to, kind, shape...)
	if err == nil {
		err = s.multiply(volume(l.shape())*m, k, n)
	}
	if err != nil || length(out) == 0 {
		return err
	}
	l.forEach(func(i int, from spot) {
		ia, ib := from[0]*m*k, from[1]*k*n
		at := i * m * n
		switch kind {
		case tensor.Float:
			multiply(plain(m, k, n), out.Floats[at:at+m*n], a.Floats[ia:], b.Floats[ib:])
		case tensor.Double:
			multiply(plain(m, k, n), out.Doubles[at:at+m*n], a.Doubles[ia:], b.Doubles[ib:])
		default:
			multiply(plain(m, k, n), out.Ints[at:at+m*n], a.Ints[ia:], b.Ints[ib:])
		}
	})
	wrap(kind, out.Ints)
	return nil
}

// stack is a tensor seen as a list of matrices.
type stack struct {
	many          []int
	rows, columns int
}

// readShape reads a shape; one dimension counts as one row or one column.
func (m *stack) readShape(shape []int, row bool) error {
	switch rank := len(shape); {
	case rank == 0:
		return fmt.Errorf("a single number is not a matrix")
	case rank == 1 && row:
		m.rows, m.columns = 1, shape[0]
	case rank == 1:
		m.rows, m.columns = shape[0], 1
	default:
		m.many, m.rows, m.columns = shape[:rank-2], shape[rank-2], shape[rank-1]
	}
	return nil
}

// layout is the position of the numbers of two matrices that are multiplied.
type layout struct {
	m, k, n    int
	rowA, colA int
	rowB, colB int
}

func plain(m, k, n int) layout { return layout{m, k, n, k, 1, n, 1} }

// multiply writes c = a·b in plain loops, because few graphs need it.
func multiply[T number](l layout, c, a, b []T) {
	for i := range l.m {
		row := c[i*l.n : (i+1)*l.n]
		clear(row)
		for p := range l.k {
			v := a[i*l.rowA+p*l.colA]
			for j := range row {
				row[j] += v * b[p*l.rowB+j*l.colB]
			}
		}
	}
}

// cDist is com.microsoft.CDist: the distance of each row of one table from each row of another.
func (c *compiler) cDist(n *node) error {
	a, b, metric := n.in[0], n.in[1], n.text("metric", "sqeuclidean")
	if a.kind != b.kind {
		return fmt.Errorf("one side is %s and the other %s", typeName(a.kind), typeName(b.kind))
	}
	if metric != "sqeuclidean" && metric != "euclidean" {
		return fmt.Errorf("metric %s %w", metric, onnx.ErrUnsupported)
	}
	y := c.output(n, 0, a.kind, openShape(2))
	x1, x2, to := a.ref, b.ref, y.ref
	c.add(n.describe(), n.in, []*value{y}, func(s *state) error {
		a, b := s.get(x1), s.get(x2)
		if len(a.Shape) != 2 || len(b.Shape) != 2 || a.Shape[1] != b.Shape[1] {
			return fmt.Errorf("rows of %v and %v do not go together", slices.Clone(a.Shape), slices.Clone(b.Shape))
		}
		out, err := s.prepare(to, a.Type, a.Shape[0], b.Shape[0])
		if err == nil {
			err = s.multiply(a.Shape[0], a.Shape[1], b.Shape[0])
		}
		if err != nil {
			return err
		}
		distances(out.Floats, a.Floats, b.Floats, a.Shape[1], metric == "euclidean")
		distances(out.Doubles, a.Doubles, b.Doubles, a.Shape[1], metric == "euclidean")
		return nil
	})
	return nil
}

func distances[T float32 | float64](to, a, b []T, width int, root bool) {
	for ; len(to) > 0; a = a[width:] {
		x := a[:width]
		for y := b; len(y) > 0 || width == 0 && len(to) > 0; y = y[width:] {
			sum := 0.0
			for k, v := range y[:width] {
				d := float64(x[k]) - float64(v)
				sum += d * d
			}
			if root {
				sum = math.Sqrt(sum)
			}
			to[0], to = T(sum), to[1:]
		}
	}
}
