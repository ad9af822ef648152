package native

import (
	"errors"
	"fmt"
	"slices"

	"tidemill.dev/internal/scoring/infer/kernel"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// number is a type that operators compute with.
type number interface{ float32 | float64 | int64 }

// operation is one of the four operators on two tensors.
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
	if err := checkKinds(a, tensor.Float, tensor.Double, tensor.Int32, tensor.Int64); err != nil {
		return err
	}
	if a.kind != b.kind {
		return fmt.Errorf("one side is %s and the other %s", typeName(a.kind), typeName(b.kind))
	}
	y := c.output(n, 0, a.kind, broadcastShape(a.shape, b.shape))
	how, kind, x1, x2, to := operationOf(n.Op), a.kind, a.ref, b.ref, y.ref
	c.add(n.describe(), []*value{a, b}, []*value{y}, func(s *state) error { return s.arithmetic(how, kind, x1, x2, to) })
	return nil
}

// broadcastShape returns the shape of the result of two tensors, as far as it is known: its rank.
func broadcastShape(a, b []int) []int {
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
	out, err := s.prepare(to, kind, l.shape()...)
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

// wrap reduces numbers to 32 bits for int32.
func wrap(kind tensor.Type, x []int64) {
	if kind != tensor.Int32 {
		return
	}
	for i, v := range x {
		x[i] = int64(int32(v))
	}
}

// floatRow uses the vector code where it can.
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

// row combines two rows. A row of one number is combined with each number of the other.
func row[T number](how operation, dst, a, b []T) {
	var ia, ib int // steps in a and b
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

// lattice broadcasts two tensors of different shapes, as ONNX defines it: dimensions
// are compared from the last one on, and one of length 1 is repeated. Dimensions that
// are consecutive in both are merged, so that rows are as long as possible.
type lattice struct {
	rank      int
	sides     [maxRank]int // dimensions of the result
	a, b      [maxRank]int // distance between neighbours in each, 0 if the dimension is repeated
	fullRank  int
	fullSides [maxRank]int
}

func (l *lattice) lay(a, b []int) error {
	rank := max(len(a), len(b))
	if rank > maxRank {
		return fmt.Errorf("%d sides are too many", rank)
	}
	l.fullRank = rank
	stepA, stepB := 1, 1
	for i := rank - 1; i >= 0; i-- {
		x, y := sideOf(a, i-rank), sideOf(b, i-rank)
		if x != y && x != 1 && y != 1 {
			return fmt.Errorf("tables of %v and %v do not go together", slices.Clone(a), slices.Clone(b))
		}
		side := x
		if x == 1 {
			side = y
		}
		l.fullSides[i] = side
		l.push(side, stepOf(x, side, stepA), stepOf(y, side, stepB))
		stepA, stepB = stepA*x, stepB*y
	}
	return nil
}

// sideOf returns a dimension counted from the end. A missing one has length 1.
func sideOf(shape []int, i int) int {
	if i += len(shape); i >= 0 {
		return shape[i]
	}
	return 1
}

func stepOf(have, side, step int) int {
	if have == 1 && side != 1 {
		return 0
	}
	return step
}

// push adds a dimension in front of the existing ones. The dimensions are stored in reverse.
func (l *lattice) push(side, a, b int) {
	if side == 1 {
		return
	}
	if k := l.rank - 1; k >= 0 && a == l.a[k]*l.sides[k] && b == l.b[k]*l.sides[k] {
		l.sides[k] *= side
		return
	}
	l.sides[l.rank], l.a[l.rank], l.b[l.rank] = side, a, b
	l.rank++
}

// shape returns the shape of the result.
func (l *lattice) shape() []int { return l.fullSides[:l.fullRank] }

// walk combines all rows.
func walk[T number](l *lattice, dst, a, b []T, how operation, row func(operation, []T, []T, []T)) {
	if len(dst) == 0 {
		return
	}
	width, wa, wb := 1, 1, 1
	if l.rank > 0 {
		width = l.sides[0]
		wa, wb = span(l.a[0], width), span(l.b[0], width)
	}
	var at [maxRank]int
	ia, ib := 0, 0
	for len(dst) > 0 {
		row(how, dst[:width], a[ia:ia+wa], b[ib:ib+wb])
		dst = dst[width:]
		for k := 1; k < l.rank; k++ {
			at[k]++
			ia, ib = ia+l.a[k], ib+l.b[k]
			if at[k] < l.sides[k] {
				break
			}
			ia, ib = ia-l.a[k]*l.sides[k], ib-l.b[k]*l.sides[k]
			at[k] = 0
		}
	}
}

// span returns the length of a row in a tensor whose neighbours are step numbers apart.
func span(step, width int) int {
	if step == 0 {
		return 1
	}
	return width
}

// forEach calls do with the index of each element of the result and its indexes in both
// tensors, in order.
func (l *lattice) forEach(do func(i, a, b int)) {
	n := volume(l.shape())
	var at [maxRank]int
	ia, ib := 0, 0
	for i := range n {
		do(i, ia, ib)
		for k := range l.rank {
			at[k]++
			ia, ib = ia+l.a[k], ib+l.b[k]
			if at[k] < l.sides[k] {
				break
			}
			ia, ib = ia-l.a[k]*l.sides[k], ib-l.b[k]*l.sides[k]
			at[k] = 0
		}
	}
}
