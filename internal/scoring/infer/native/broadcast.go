package native

import (
	"fmt"
	"slices"
)

// lattice broadcasts up to three tensors of different shapes, as ONNX defines it: dimensions
// are compared from the last one on, and one of length 1 is repeated. Dimensions that
// are consecutive in all tensors are merged, so that rows are as long as possible.
type lattice struct {
	rank      int
	sides     [maxRank]int    // dimensions of the result, the last one first
	steps     [3][maxRank]int // distance between neighbours in each tensor, 0 if the dimension is repeated
	fullRank  int
	fullSides [maxRank]int
}

func (l *lattice) lay(shapes ...[]int) error {
	for _, s := range shapes {
		l.fullRank = max(l.fullRank, len(s))
	}
	if l.fullRank > maxRank {
		return fmt.Errorf("%d sides are too many", l.fullRank)
	}
	distance := [3]int{1, 1, 1}
	for i := l.fullRank - 1; i >= 0; i-- {
		side, err := commonSide(shapes, i-l.fullRank)
		if err != nil {
			return err
		}
		var steps [3]int
		for k, s := range shapes {
			have := sideOf(s, i-l.fullRank)
			if have == side {
				steps[k] = distance[k]
			}
			distance[k] *= have
		}
		l.fullSides[i] = side
		l.push(side, steps)
	}
	return nil
}

// commonSide returns the length of a dimension of the result.
func commonSide(shapes [][]int, i int) (int, error) {
	side := 1
	for _, s := range shapes {
		have := sideOf(s, i)
		if have != side && have != 1 && side != 1 {
			var all [][]int
			for _, s := range shapes {
				all = append(all, slices.Clone(s))
			}
			return 0, fmt.Errorf("tables of %v do not go together", all)
		}
		if side == 1 {
			side = have
		}
	}
	return side, nil
}

// sideOf returns a dimension counted from the end. A missing one has length 1.
func sideOf(shape []int, i int) int {
	if i += len(shape); i >= 0 {
		return shape[i]
	}
	return 1
}

// push adds a dimension in front of the existing ones.
func (l *lattice) push(side int, steps [3]int) {
	if side == 1 {
		return
	}
	if k := l.rank - 1; k >= 0 && steps == [3]int{l.steps[0][k] * l.sides[k], l.steps[1][k] * l.sides[k], l.steps[2][k] * l.sides[k]} {
		l.sides[k] *= side
		return
	}
	l.sides[l.rank] = side
	for k, step := range steps {
		l.steps[k][l.rank] = step
	}
	l.rank++
}

// shape returns the shape of the result.
func (l *lattice) shape() []int { return l.fullSides[:l.fullRank] }

// spot is a position in the tensors of a lattice.
type spot [3]int

// next moves to the next position from dimension k on. at has the indexes of the dimensions.
func (l *lattice) next(k int, at *[maxRank]int, to *spot) {
	for ; k < l.rank; k++ {
		at[k]++
		for i := range to {
			to[i] += l.steps[i][k]
		}
		if at[k] < l.sides[k] {
			return
		}
		for i := range to {
			to[i] -= l.steps[i][k] * l.sides[k]
		}
		at[k] = 0
	}
}

// walk combines all rows of two tensors. A row of one number is combined with each number of
// the other.
func walk[D, T any](l *lattice, dst []D, a, b []T, row func(dst []D, a, b []T)) {
	if len(dst) == 0 {
		return
	}
	width, wa, wb := 1, 1, 1
	if l.rank > 0 {
		width = l.sides[0]
		wa, wb = span(l.steps[0][0], width), span(l.steps[1][0], width)
	}
	var at [maxRank]int
	var i spot
	for ; len(dst) > 0; dst = dst[width:] {
		row(dst[:width], a[i[0]:i[0]+wa], b[i[1]:i[1]+wb])
		l.next(1, &at, &i)
	}
}

// span returns the length of a row in a tensor whose neighbours are step numbers apart.
func span(step, width int) int {
	if step == 0 {
		return 1
	}
	return width
}

// forEach calls do with the index of each element of the result and its indexes in the
// tensors, in order.
func (l *lattice) forEach(do func(i int, at spot)) {
	var at [maxRank]int
	var to spot
	for i := range volume(l.shape()) {
		do(i, to)
		l.next(0, &at, &to)
	}
}
