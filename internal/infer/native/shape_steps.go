package native

import (
	"errors"
	"fmt"
	"slices"

	"tidemill.dev/internal/infer/tensor"
)

func (c *compiler) flatten(n *node) error {
	if err := n.wants(1, 1); err != nil {
		return err
	}
	axis, x := n.integer("axis", 1), n.in[0]
	if axis == 1 && len(x.shape) == 2 {
		c.same(n, x)
		return nil
	}
	y := c.output(n, 0, x.kind, []int{tensor.Any, tensor.Any})
	from, to := x.ref, y.ref
	c.add(n.what(), []*value{x}, []*value{y}, func(s *state) error {
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
	if err := n.wants(2, 2); err != nil {
		return err
	}
	x, shape := n.in[0], n.in[1]
	if err := only(shape, tensor.Int64); err != nil {
		return err
	}
	y := c.output(n, 0, x.kind, nil)
	if shape.known != nil {
		y.shape = slices.Repeat([]int{tensor.Any}, len(shape.known.Ints))
	}
	keep := n.integer("allowzero", 0) == 0 // a zero is the side that was there
	from, by, to := x.ref, shape.ref, y.ref
	c.add(n.what(), []*value{x, shape}, []*value{y}, func(s *state) error {
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

// reshaped are the sides of a tensor once it is turned into a shape with at most
// one side left open.
func reshaped(to, shape []int, want []int64, keep bool) ([]int, error) {
	if len(want) > maxRank {
		return nil, fmt.Errorf("it wants %d sides; %d is what we take", len(want), maxRank)
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
	if err := n.wants(1, 1<<16); err != nil {
		return err
	}
	kind := n.in[0].kind
	var from []*ref
	for _, v := range n.in {
		if v == nil || v.kind != kind {
			return errors.New("what it puts together is of different types")
		}
		from = append(from, v.ref)
	}
	y := c.output(n, 0, kind, nil)
	if rank := len(n.in[0].shape); n.in[0].shape != nil {
		y.shape = slices.Repeat([]int{tensor.Any}, rank)
	}
	axis, to := n.integer("axis", 1), y.ref
	c.add(n.what(), n.in, []*value{y}, func(s *state) error { return s.concat(from, to, kind, axis) })
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
			return fmt.Errorf("%v does not fit beside %v", slices.Clone(other), slices.Clone(first.Shape))
		}
		shape[at] += other[at]
	}
	out, err := s.make(to, kind, shape...)
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

// paste copies n numbers from one tensor into another of its type.
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
