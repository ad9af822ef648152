package native

import (
	"errors"
	"fmt"
	"slices"

	"tidemill.dev/internal/infer/kernel"
	"tidemill.dev/internal/infer/tensor"
)

// number is what is computed with.
type number interface{ float32 | float64 | int64 }

// operation is one of the four that take two tables.
type operation uint8

const (
	adding operation = iota
	subtracting
	multiplying
	dividing
)

func operationOf(op string) operation {
	switch op {
	case "Add":
		return adding
	case "Sub":
		return subtracting
	case "Mul":
		return multiplying
	}
	return dividing
}

func (c *compiler) arithmetic(n *node) error {
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
	y := c.output(n, 0, a.kind, beside(a.shape, b.shape))
	how, kind, x1, x2, to := operationOf(n.Op), a.kind, a.ref, b.ref, y.ref
	c.add(n.what(), []*value{a, b}, []*value{y}, func(s *state) error { return s.arithmetic(how, kind, x1, x2, to) })
	return nil
}

// beside is the shape of what is made of two, as far as it is known: its rank.
func beside(a, b []int) []int {
	if a == nil || b == nil {
		return nil
	}
	return slices.Repeat([]int{tensor.Any}, max(len(a), len(b)))
}

func (s *state) arithmetic(how operation, kind tensor.Type, x1, x2, to *ref) error {
	a, b := s.get(x1), s.get(x2)
	var l lattice
	if err := l.lay(a.Shape, b.Shape); err != nil {
		return err
	}
	out, err := s.make(to, kind, l.shape()...)
	if err != nil {
		return err
	}
	switch kind {
	case tensor.Float:
		walk(&l, out.Floats, a.Floats, b.Floats, how, floatRow)
	case tensor.Double:
		walk(&l, out.Doubles, a.Doubles, b.Doubles, how, row[float64])
	default:
		if how == dividing && slices.Contains(b.Ints, 0) {
			return errors.New("an integer is divided by 0")
		}
		walk(&l, out.Ints, a.Ints, b.Ints, how, row[int64])
		wrap(kind, out.Ints)
	}
	return nil
}

// wrap makes numbers what 32 bits hold of them.
func wrap(kind tensor.Type, x []int64) {
	if kind != tensor.Int32 {
		return
	}
	for i, v := range x {
		x[i] = int64(int32(v))
	}
}

// floatRow leaves to the vector code what it can do.
func floatRow(how operation, dst, a, b []float32) {
	if len(a) != len(dst) || len(b) != len(dst) {
		row(how, dst, a, b)
		return
	}
	switch how {
	case adding:
		kernel.Add(dst, a, b)
	case subtracting:
		kernel.Sub(dst, a, b)
	case multiplying:
		kernel.Mul(dst, a, b)
	default:
		kernel.Div(dst, a, b)
	}
}

// row combines two rows. One of a single number goes with each of the other's.
func row[T number](how operation, dst, a, b []T) {
	var ia, ib int // how far to go on
	if len(a) == len(dst) {
		ia = 1
	}
	if len(b) == len(dst) {
		ib = 1
	}
	switch how {
	case adding:
		for i := range dst {
			dst[i] = a[i*ia] + b[i*ib]
		}
	case subtracting:
		for i := range dst {
			dst[i] = a[i*ia] - b[i*ib]
		}
	case multiplying:
		for i := range dst {
			dst[i] = a[i*ia] * b[i*ib]
		}
	default:
		for i := range dst {
			dst[i] = a[i*ia] / b[i*ib]
		}
	}
}
