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
