package native

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"tidemill.dev/internal/scoring/infer/onnx"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// strided is a table's numbers in another order. Neighbours in a dimension are step numbers apart.
type strided struct {
	rank         int
	sides, steps [2 * maxRank]int
	begin        int
}

func (v *strided) add(side, step int) {
	v.sides[v.rank], v.steps[v.rank] = side, step
	v.rank++
}

// copy copies the numbers.
func (v *strided) copy(s *state, in *tensor.Tensor, to *ref, shape ...int) error {
	out, err := s.prepare(to, in.Type, shape...)
	if err != nil {
		return err
	}
	width, rank := 1, v.rank
	if rank > 0 && v.steps[rank-1] == 1 {
		rank--
		width = v.sides[rank]
	}
	var at [2 * maxRank]int
	from := v.begin
	for i := 0; i < length(out); i += width {
		paste(out, i, in, from, width)
		for k := rank - 1; k >= 0; k-- {
			at[k]++
			from += v.steps[k]
			if at[k] < v.sides[k] {
				break
			}
			from -= v.steps[k] * v.sides[k]
			at[k] = 0
		}
	}
	return nil
}

// stridedStep adds a step that copies the first input in another order, which of computes with its shape.
func (c *compiler) stridedStep(n *node, shape []int, of func(s *state, in *tensor.Tensor, v *strided, shape []int) ([]int, error)) {
	x := n.in[0]
	y := c.output(n, 0, x.kind, shape)
	from, to := x.ref, y.ref
	c.add(n.describe(), present(n.in), []*value{y}, func(s *state) error {
		in := s.get(from)
		s.order = strided{}
		shape, err := of(s, in, &s.order, s.sides[:0])
		if err != nil {
			return err
		}
		return s.order.copy(s, in, to, shape...)
	})
}

// present returns the inputs that are not absent.
func present(in []*value) []*value {
	return slices.DeleteFunc(slices.Clone(in), func(v *value) bool { return v == nil })
}

func openShape(rank int) []int { return slices.Repeat([]int{tensor.Any}, rank) }

func (c *compiler) transpose(n *node) error {
	order := n.ints("perm")
	c.stridedStep(n, openShapeOf(n.in[0]), func(s *state, in *tensor.Tensor, v *strided, shape []int) ([]int, error) {
		rank := len(in.Shape)
		if len(order) != 0 && len(order) != rank {
			return nil, fmt.Errorf("perm has %d axes, and the table %d", len(order), rank)
		}
		seen := 0
		for i := range rank {
			axis := int64(rank - 1 - i)
			if len(order) != 0 {
				axis = order[i]
			}
			at, err := axisOf(axis, rank)
			if err != nil || axis < 0 || seen&(1<<at) != 0 {
				return nil, fmt.Errorf("perm %v is not an order of %d axes", order, rank)
			}
			seen |= 1 << at
			v.add(in.Shape[at], volume(in.Shape[at+1:]))
			shape = append(shape, in.Shape[at])
		}
		return shape, nil
	})
	return nil
}

func openShapeOf(v *value) []int {
	if v.shape == nil {
		return nil
	}
	return openShape(len(v.shape))
}

func (c *compiler) expand(n *node) error {
	if err := checkKinds(n.in[1], tensor.Int64); err != nil {
		return err
	}
	by := n.in[1].ref
	c.stridedStep(n, nil, func(s *state, in *tensor.Tensor, v *strided, shape []int) ([]int, error) {
		var room [maxRank]int
		want, err := sizes(room[:0], s.get(by).Ints)
		if err != nil {
			return nil, err
		}
		var l lattice
		if err := l.lay(in.Shape, want); err != nil {
			return nil, err
		}
		for i := range l.rank {
			v.add(l.sides[l.rank-1-i], l.steps[0][l.rank-1-i])
		}
		return append(shape, l.shape()...), nil
	})
	return nil
}

// sizes reads a shape that is given as numbers.
func sizes(to []int, from []int64) ([]int, error) {
	if len(from) > maxRank {
		return nil, fmt.Errorf("%d dimensions are too many: at most %d are supported", len(from), maxRank)
	}
	for _, n := range from {
		if n < 0 || n > math.MaxInt32 {
			return nil, fmt.Errorf("a table cannot be of %v", slices.Clone(from))
		}
		to = append(to, int(n))
	}
	return to, nil
}

func (c *compiler) tile(n *node) error {
	if err := checkKinds(n.in[1], tensor.Int64); err != nil {
		return err
	}
	by := n.in[1].ref
	c.stridedStep(n, openShapeOf(n.in[0]), func(s *state, in *tensor.Tensor, v *strided, shape []int) ([]int, error) {
		var room [maxRank]int
		times, err := sizes(room[:0], s.get(by).Ints)
		if err == nil && len(times) != len(in.Shape) {
			err = fmt.Errorf("it repeats %d axes of %d", len(times), len(in.Shape))
		}
		if err != nil {
			return nil, err
		}
		for i, side := range in.Shape {
			if side > 0 && times[i] > math.MaxInt32/side {
				return nil, errors.New("it wants a table that is too large")
			}
			v.add(times[i], 0)
			v.add(side, volume(in.Shape[i+1:]))
			shape = append(shape, side*times[i])
		}
		return shape, nil
	})
	return nil
}

// slice takes every so many elements between bounds. The bounds are inputs since version 10.
func (c *compiler) slice(n *node) error {
	if err := n.wants(1, 5); err != nil {
		return err
	}
	var given [4][]int64 // starts, ends, axes, steps
	var by [4]*ref
	if n.opset < 10 {
		given = [4][]int64{n.ints("starts"), n.ints("ends"), n.ints("axes"), nil}
	} else {
		if err := n.wants(3, 5); err != nil {
			return err
		}
		for i, v := range n.in[1:] {
			if v == nil {
				continue
			}
			if err := checkKinds(v, tensor.Int32, tensor.Int64); err != nil {
				return err
			}
			by[i] = v.ref
		}
	}
	c.stridedStep(n, openShapeOf(n.in[0]), func(s *state, in *tensor.Tensor, v *strided, shape []int) ([]int, error) {
		by, given := by, given
		for i, r := range by {
			if r != nil {
				given[i] = s.get(r).Ints
			}
		}
		return sliced(v, in.Shape, shape, given[0], given[1], given[2], given[3])
	})
	return nil
}

func sliced(v *strided, from, shape []int, starts, ends, axes, steps []int64) ([]int, error) {
	if len(ends) != len(starts) || axes != nil && len(axes) != len(starts) || steps != nil && len(steps) != len(starts) || len(starts) > len(from) {
		return nil, fmt.Errorf("it has %d starts, %d ends, %d axes and %d steps for %d axes", len(starts), len(ends), len(axes), len(steps), len(from))
	}
	for i, side := range from {
		v.add(side, volume(from[i+1:]))
	}
	seen := 0
	for i := range starts {
		axis, step := int64(i), int64(1)
		if axes != nil {
			axis = axes[i]
		}
		if steps != nil {
			step = steps[i]
		}
		at, err := axisOf(axis, len(from))
		if err == nil && seen&(1<<at) != 0 {
			err = fmt.Errorf("it slices axis %d twice", at)
		}
		if err != nil {
			return nil, err
		}
		seen |= 1 << at
		if step == 0 || step <= -math.MaxInt32 || step >= math.MaxInt32 {
			return nil, fmt.Errorf("it takes every %d elements", step)
		}
		side := int64(from[at])
		least, most := int64(0), side
		if step < 0 {
			least, most = -1, side-1
		}
		begin, end := bounded(starts[i], side, least, most), bounded(ends[i], side, least, most)
		n := max((end-begin+step-sign(step))/step, 0)
		full := volume(from[at+1:])
		v.sides[at], v.steps[at] = int(n), full*int(step)
		if n > 0 {
			v.begin += int(begin) * full
		}
	}
	return append(shape, v.sides[:v.rank]...), nil
}

// bounded returns a bound that may count from the end, at least and at most as given.
func bounded(v, side, least, most int64) int64 {
	if v < 0 {
		v = max(v, -side-1) + side
	}
	return min(max(v, least), most)
}

// reshapeBy adds a step that only changes the shape. The axes are an attribute before version 13. The function of
// returns a nil shape if the open sides decide its rank.
func (c *compiler) reshapeBy(n *node, of func(shape, from []int, axes []int64) ([]int, error)) error {
	x, axes, by := n.in[0], n.ints("axes"), (*ref)(nil)
	if v := n.optional(1); v != nil {
		if err := checkKinds(v, tensor.Int64); err != nil {
			return err
		}
		if by = v.ref; v.known != nil {
			axes = v.known.Ints
		}
	}
	var shape []int
	if x.shape != nil && (by == nil || n.in[1].known != nil) {
		made, err := of(nil, x.shape, axes)
		if err != nil {
			return err
		}
		if made != nil {
			shape = openShape(len(made))
		}
	}
	y := c.output(n, 0, x.kind, shape)
	from, to := x.ref, y.ref
	c.add(n.describe(), present(n.in), []*value{y}, func(s *state) error {
		in, axes := s.get(from), axes
		if by != nil {
			axes = s.get(by).Ints
		}
		shape, err := of(s.sides[:0], in.Shape, axes)
		if err != nil {
			return err
		}
		return s.move(in, to, shape...)
	})
	return nil
}

func (c *compiler) squeeze(n *node) error {
	return c.reshapeBy(n, func(shape, from []int, axes []int64) ([]int, error) {
		if len(axes) == 0 && slices.Contains(from, tensor.Any) { // such a side may be of length 1
			return nil, nil
		}
		for _, axis := range axes {
			at, err := axisOf(axis, len(from))
			if err != nil || from[at] != 1 && from[at] != tensor.Any {
				return nil, fmt.Errorf("axis %d of %v is not of length 1", axis, slices.Clone(from))
			}
		}
		for i, side := range from {
			if len(axes) == 0 && side != 1 || len(axes) > 0 && !hasAxis(axes, i, len(from)) {
				shape = append(shape, side)
			}
		}
		return shape, nil
	})
}

func (c *compiler) unsqueeze(n *node) error {
	return c.reshapeBy(n, func(shape, from []int, axes []int64) ([]int, error) {
		rank := len(from) + len(axes)
		if rank > maxRank {
			return nil, fmt.Errorf("%d dimensions are too many", rank)
		}
		for i, axis := range axes {
			at, err := axisOf(axis, rank)
			if err != nil || hasAxis(axes[:i], at, rank) {
				return nil, fmt.Errorf("it cannot add the axes %v to %v", slices.Clone(axes), slices.Clone(from))
			}
		}
		for i := range rank {
			if hasAxis(axes, i, rank) {
				shape = append(shape, 1)
			} else {
				shape, from = append(shape, from[0]), from[1:]
			}
		}
		return shape, nil
	})
}

// shape makes a list of a table's dimensions.
func (c *compiler) shape(n *node) error {
	x := n.in[0]
	y := c.output(n, 0, tensor.Int64, openShape(1))
	from, to, begin, end := x.ref, y.ref, n.integer("start", 0), n.integer("end", math.MaxInt64)
	c.add(n.describe(), n.in, []*value{y}, func(s *state) error {
		in := s.get(from)
		rank := int64(len(in.Shape))
		first, last := bounded(begin, rank, 0, rank), bounded(end, rank, 0, rank)
		out, err := s.prepare(to, tensor.Int64, int(max(last-first, 0)))
		if err != nil {
			return err
		}
		for i := range out.Ints {
			out.Ints[i] = int64(in.Shape[int(first)+i])
		}
		return nil
	})
	return nil
}

// constantOfShape fills a table with one value.
func (c *compiler) constantOfShape(n *node) error {
	fill := &tensor.Tensor{Type: tensor.Float, Shape: []int{1}, Floats: []float32{0}}
	if a, ok := n.attribute("value", onnx.AttributeTensor); ok {
		if fill = a.Tensor; fill == nil || !isSupported(fill.Type) || length(fill) != 1 {
			return fmt.Errorf("a value that is not one number %w", onnx.ErrUnsupported)
		}
	}
	y := c.output(n, 0, fill.Type, nil)
	from, to := n.in[0].ref, y.ref
	c.add(n.describe(), n.in, []*value{y}, func(s *state) error {
		var room [maxRank]int
		shape, err := sizes(room[:0], s.get(from).Ints)
		if err != nil {
			return err
		}
		var v strided
		v.add(1, 0)
		return v.copy(s, fill, to, shape...)
	})
	return nil
}

// gather takes slices along an axis by their indexes.
func (c *compiler) gather(n *node) error {
	x, index := n.in[0], n.in[1]
	if err := checkKinds(index, tensor.Int32, tensor.Int64); err != nil {
		return err
	}
	var shape []int
	if x.shape != nil && index.shape != nil {
		shape = openShape(max(len(x.shape)-1, 0) + len(index.shape))
	}
	y := c.output(n, 0, x.kind, shape)
	from, by, to, axis := x.ref, index.ref, y.ref, n.integer("axis", 0)
	c.add(n.describe(), n.in, []*value{y}, func(s *state) error {
		in, index := s.get(from), s.get(by)
		at, err := axisOf(axis, len(in.Shape))
		if err != nil {
			return err
		}
		var room [2 * maxRank]int
		shape := append(append(append(room[:0], in.Shape[:at]...), index.Shape...), in.Shape[at+1:]...)
		out, err := s.prepare(to, in.Type, shape...)
		if err != nil || length(out) == 0 {
			return err
		}
		side, width := in.Shape[at], volume(in.Shape[at+1:])
		done := 0
		for before := range volume(in.Shape[:at]) {
			for _, i := range index.Ints {
				k, err := axisOf(i, side)
				if err != nil {
					return fmt.Errorf("there is no element %d of %d", i, side)
				}
				paste(out, done, in, (before*side+k)*width, width)
				done += width
			}
		}
		return nil
	})
	return nil
}

// gatherElements takes one element for each index.
func (c *compiler) gatherElements(n *node) error {
	x, index := n.in[0], n.in[1]
	if err := checkKinds(index, tensor.Int32, tensor.Int64); err != nil {
		return err
	}
	y := c.output(n, 0, x.kind, openShapeOf(index))
	from, by, to, axis := x.ref, index.ref, y.ref, n.integer("axis", 0)
	c.add(n.describe(), n.in, []*value{y}, func(s *state) error {
		in, index := s.get(from), s.get(by)
		at, err := axisOf(axis, len(in.Shape))
		if err != nil {
			return err
		}
		if len(in.Shape) != len(index.Shape) {
			return fmt.Errorf("indexes of %v are not for a table of %v", slices.Clone(index.Shape), slices.Clone(in.Shape))
		}
		for i, side := range index.Shape {
			if i != at && side > in.Shape[i] {
				return fmt.Errorf("indexes of %v are not for a table of %v", slices.Clone(index.Shape), slices.Clone(in.Shape))
			}
		}
		out, err := s.prepare(to, in.Type, index.Shape...)
		if err != nil {
			return err
		}
		for i, v := range index.Ints {
			k, err := axisOf(v, in.Shape[at])
			if err != nil {
				return fmt.Errorf("there is no element %d of %d", v, in.Shape[at])
			}
			begin, step := 0, 1
			for d, rest := len(in.Shape)-1, i; d >= 0; d-- {
				of := rest % index.Shape[d]
				if rest /= index.Shape[d]; d == at {
					of = k
				}
				begin += of * step
				step *= in.Shape[d]
			}
			paste(out, i, in, begin, 1)
		}
		return nil
	})
	return nil
}
