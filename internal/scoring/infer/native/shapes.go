package native

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// maxRank is the largest number of dimensions. onnx.Read enforces it for weights.
const maxRank = 8

// elements returns the number of elements of a shape.
func elements(shape []int) (int, error) {
	n, empty := 1, false
	for _, side := range shape {
		if side < 0 || side > 0 && n > math.MaxInt32/side {
			return 0, fmt.Errorf("a table of %v is too large", append([]int(nil), shape...))
		}
		if n *= max(side, 1); side == 0 {
			empty = true
		}
	}
	if empty {
		n = 0
	}
	if len(shape) > maxRank {
		return 0, fmt.Errorf("a tensor of %d dimensions has too many: at most %d are supported", len(shape), maxRank)
	}
	return n, nil
}

// length returns the number of elements of a tensor.
func length(t *tensor.Tensor) int {
	switch t.Type {
	case tensor.Float:
		return len(t.Floats)
	case tensor.Double:
		return len(t.Doubles)
	case tensor.String:
		return len(t.Strings)
	}
	return len(t.Ints)
}

// volume is the product of dimensions that are known to be valid.
func volume(sides []int) int {
	n := 1
	for _, side := range sides {
		n *= side
	}
	return n
}

// axisOf returns the dimension of an axis, which may count from the end.
func axisOf(axis int64, rank int) (int, error) {
	if axis < 0 {
		axis += int64(rank)
	}
	if axis < 0 || axis >= int64(rank) {
		return 0, fmt.Errorf("there is no axis %d among %d", axis, rank)
	}
	return int(axis), nil
}

// typeName returns ONNX's name of a type.
func typeName(t tensor.Type) string {
	names := [...]string{"of no tensor", "float", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool",
		"float16", "double", "uint32", "uint64", "complex64", "complex128", "bfloat16"}
	if t >= 0 && int(t) < len(names) {
		return names[t]
	}
	return "type " + strconv.Itoa(int(t))
}

// isSupported reports whether this engine supports a type.
func isSupported(t tensor.Type) bool {
	switch t {
	case tensor.Float, tensor.Double, tensor.Int32, tensor.Int64, tensor.Bool, tensor.String:
		return true
	}
	return false
}

func (c *compiler) flatten(n *node) error {
	axis, x := n.integer("axis", 1), n.in[0]
	if axis == 1 && len(x.shape) == 2 {
		c.declareSame(n, x)
		return nil
	}
	y := c.output(n, 0, x.kind, []int{tensor.Any, tensor.Any})
	from, to := x.ref, y.ref
	c.add(n.describe(), []*value{x}, []*value{y}, func(s *state) error {
		in := s.get(from)
		at := axis
		if at < 0 {
			at += int64(len(in.Shape))
		}
		if at < 0 || at > int64(len(in.Shape)) {
			return fmt.Errorf("there is no axis %d among %d", axis, len(in.Shape))
		}
		return s.move(in, to, volume(in.Shape[:at]), volume(in.Shape[at:]))
	})
	return nil
}

func (c *compiler) reshape(n *node) error {
	x, shape := n.in[0], n.in[1]
	if err := checkKinds(shape, tensor.Int64); err != nil {
		return err
	}
	y := c.output(n, 0, x.kind, nil)
	if shape.known != nil {
		y.shape = slices.Repeat([]int{tensor.Any}, len(shape.known.Ints))
	}
	keep := n.integer("allowzero", 0) == 0 // zero keeps the input's dimension
	from, by, to := x.ref, shape.ref, y.ref
	c.add(n.describe(), []*value{x, shape}, []*value{y}, func(s *state) error {
		in := s.get(from)
		var room [maxRank]int
		sides, err := reshaped(room[:0], in.Shape, s.get(by).Ints, keep)
		if err != nil {
			return err
		}
		return s.move(in, to, sides...)
	})
	return nil
}

// reshaped computes the new dimensions. At most one of the wanted ones may be open.
func reshaped(to, shape []int, want []int64, keep bool) ([]int, error) {
	if len(want) > maxRank {
		return nil, fmt.Errorf("it asks for %d dimensions; at most %d are supported", len(want), maxRank)
	}
	open, n := -1, 1
	for i, side := range want {
		switch {
		case side == -1 && open < 0:
			open, side = i, 1
		case side == 0 && keep && i < len(shape):
			side = int64(shape[i])
		case side == 0 && keep, side < 0, side > 1<<31:
			return nil, fmt.Errorf("a table of %v cannot be one of %v", slices.Clone(shape), slices.Clone(want))
		}
		if side > 0 && n > 1<<31/int(side) {
			return nil, errors.New("it wants a table that is too large")
		}
		to, n = append(to, int(side)), n*int(side)
	}
	all := volume(shape)
	if open >= 0 && n > 0 && all%n == 0 {
		to[open], n = all/n, all
	}
	if n != all {
		return nil, fmt.Errorf("a table of %v cannot be one of %v", slices.Clone(shape), slices.Clone(want))
	}
	return to, nil
}

func (c *compiler) concat(n *node) error {
	kind := n.in[0].kind
	var from []*ref
	for _, v := range n.in {
		if v == nil || v.kind != kind {
			return errors.New("its inputs have different types")
		}
		from = append(from, v.ref)
	}
	y := c.output(n, 0, kind, nil)
	if rank := len(n.in[0].shape); n.in[0].shape != nil {
		y.shape = slices.Repeat([]int{tensor.Any}, rank)
	}
	axis, to := n.integer("axis", 1), y.ref
	c.add(n.describe(), n.in, []*value{y}, func(s *state) error { return s.concat(from, to, kind, axis) })
	return nil
}

func (s *state) concat(from []*ref, to *ref, kind tensor.Type, axis int64) error {
	first := s.get(from[0])
	at, err := axisOf(axis, len(first.Shape))
	if err != nil {
		return err
	}
	var room [maxRank]int
	shape := append(room[:0], first.Shape...)
	shape[at] = 0
	for _, r := range from {
		other := s.get(r).Shape
		if len(other) != len(shape) || !slices.Equal(other[:at], shape[:at]) || !slices.Equal(other[at+1:], shape[at+1:]) {
			return fmt.Errorf("%v does not fit together with %v", slices.Clone(other), slices.Clone(first.Shape))
		}
		shape[at] += other[at]
	}
	out, err := s.prepare(to, kind, shape...)
	if err != nil {
		return err
	}
	if length(out) == 0 {
		return nil
	}
	before, done := volume(shape[:at]), 0
	for _, r := range from {
		in := s.get(r)
		width := volume(in.Shape[at:])
		stride := volume(shape[at:])
		for i := range before {
			paste(out, i*stride+done, in, i*width, width)
		}
		done += width
	}
	return nil
}

// paste copies n numbers from one tensor into another of the same type.
func paste(to *tensor.Tensor, at int, from *tensor.Tensor, begin, n int) {
	switch to.Type {
	case tensor.Float:
		copy(to.Floats[at:at+n], from.Floats[begin:])
	case tensor.Double:
		copy(to.Doubles[at:at+n], from.Doubles[begin:])
	case tensor.String:
		copy(to.Strings[at:at+n], from.Strings[begin:])
	default:
		copy(to.Ints[at:at+n], from.Ints[begin:])
	}
}

// extract is ArrayFeatureExtractor: it selects columns by index. sklearn's networks use
// it to name the best class.
func (c *compiler) extract(n *node) error {
	x, index := n.in[0], n.in[1]
	if err := checkKinds(index, tensor.Int64); err != nil {
		return err
	}
	y := c.output(n, 0, x.kind, nil)
	if x.shape != nil {
		y.shape = slices.Repeat([]int{tensor.Any}, max(2, len(x.shape)))
	}
	from, by, to := x.ref, index.ref, y.ref
	c.add(n.describe(), []*value{x, index}, []*value{y}, func(s *state) error {
		in, index := s.get(from), s.get(by).Ints
		columns := featuresOf(in.Shape)
		for _, i := range index {
			if i < 0 || i >= int64(columns) {
				return fmt.Errorf("there is no column %d of %d", i, columns)
			}
		}
		var room [maxRank]int
		shape := append(room[:0], in.Shape...)
		if len(shape) < 2 {
			shape = append(room[:0], 1, columns)
		}
		shape[len(shape)-1] = len(index)
		out, err := s.prepare(to, in.Type, shape...)
		if err != nil || length(out) == 0 {
			return err
		}
		for row := range volume(shape[:len(shape)-1]) {
			for k, i := range index {
				paste(out, row*len(index)+k, in, row*columns+int(i), 1)
			}
		}
		return nil
	})
	return nil
}

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
