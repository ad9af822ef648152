package native

import (
	"fmt"
	"slices"

	"tidemill.dev/internal/scoring/infer/tensor"
)

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
		if err != nil {
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
