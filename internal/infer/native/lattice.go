package native

import (
	"fmt"
	"slices"
)

// lattice lays two tables of different shapes over each other, as ONNX has it:
// sides are compared from the last on, and one of length 1 is repeated. Sides that
// lie one behind the other in both are taken as one, so that a row is as long as
// it can be.
type lattice struct {
	rank      int
	sides     [maxRank]int // of what is made
	a, b      [maxRank]int // how far apart neighbours lie in each, 0 if it is repeated
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

// sideOf is a side counted from the end; those that there are not are 1 long.
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

// push puts a side before those that are there, from the last on: they stand in
// reverse.
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

// shape is that of what is made.
func (l *lattice) shape() []int { return l.fullSides[:l.fullRank] }

// walk goes over all rows.
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

// span is how many numbers a row has in a table, where they lie so far apart.
func span(step, width int) int {
	if step == 0 {
		return 1
	}
	return width
}

// each names the places in both of each of the things made, in order.
func (l *lattice) each(do func(i, a, b int)) {
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
