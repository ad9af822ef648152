package native

import (
	"fmt"
	"slices"

	"tidemill.dev/internal/infer/tensor"
)

func (c *compiler) matMul(n *node) error {
	if err := n.wants(2, 2); err != nil {
		return err
	}
	a, b := n.in[0], n.in[1]
	if err := only(a, tensor.Float, tensor.Double, tensor.Int32, tensor.Int64); err != nil {
		return err
	}
	if a.kind != b.kind {
		return fmt.Errorf("one side is %s and the other %s", typeName(a.kind), typeName(b.kind))
	}
	if p, ok := productOf(n); ok && a.known == nil {
		c.weigh(n, a, p)
		return nil
	}
	y := c.output(n, 0, a.kind, nil)
	x1, x2, to, kind := a.ref, b.ref, y.ref, a.kind
	c.add(n.what(), []*value{a, b}, []*value{y}, func(s *state) error { return s.matMul(kind, x1, x2, to) })
	return nil
}

// weigh is the step of a product with weights, and of what follows it.
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
	last := c.follow(n, &t, columns, rank)
	y := c.output(last, 0, tensor.Float, shape)
	l := layerOf(p, t)
	c.program.bytes += l.bytes()
	from, to := a.ref, y.ref
	c.add(n.what(), []*value{a}, []*value{y}, func(s *state) error {
		in := s.get(from)
		rank := len(in.Shape)
		if rank == 0 || in.Shape[rank-1] != k {
			return fmt.Errorf("its rows are of %v numbers; the weights have %d", slices.Clone(in.Shape), k)
		}
		var room [maxRank]int
		sides := append(room[:0], in.Shape...)
		sides[rank-1] = columns
		rows := volume(sides[:rank-1])
		out, err := s.make(to, tensor.Float, sides...)
		if err == nil {
			err = s.multiply(rows, k, columns)
		}
		if err == nil && len(out.Floats) > 0 {
			l.multiply(&s.text, rows, in.Floats, out.Floats)
		}
		return err
	})
}

// matMul multiplies matrices, and stacks of them, neither of which is known
// beforehand.
func (s *state) matMul(kind tensor.Type, x1, x2, to *ref) error {
	a, b := s.get(x1), s.get(x2)
	var ma, mb stack
	if err := ma.of(a.Shape, true); err != nil {
		return err
	}
	if err := mb.of(b.Shape, false); err != nil {
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
	out, err := s.make(to, kind, shape...)
	if err == nil {
		err = s.multiply(volume(l.shape())*m, k, n)
	}
	if err != nil || length(out) == 0 {
		return err
	}
	l.each(func(i, ia, ib int) {
		ia, ib = ia*m*k, ib*k*n
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

// stack is a table seen as matrices, one behind the other.
type stack struct {
	many          []int
	rows, columns int
}

// of takes a list of numbers as one row, or as one column.
func (m *stack) of(shape []int, row bool) error {
	switch rank := len(shape); {
	case rank == 0:
		return fmt.Errorf("a single number is no matrix")
	case rank == 1 && row:
		m.rows, m.columns = 1, shape[0]
	case rank == 1:
		m.rows, m.columns = shape[0], 1
	default:
		m.many, m.rows, m.columns = shape[:rank-2], shape[rank-2], shape[rank-1]
	}
	return nil
}

// layout says how numbers lie in two matrices that are multiplied.
type layout struct {
	m, k, n    int
	rowA, colA int
	rowB, colB int
}

func plain(m, k, n int) layout { return layout{m, k, n, k, 1, n, 1} }

// multiply writes c = a·b, in plain loops: it is what few graphs need.
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
