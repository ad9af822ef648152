package native

import (
	"errors"

	"tidemill.dev/internal/infer/tensor"
)

func (c *compiler) argMax(n *node) error {
	if err := n.wants(1, 1); err != nil {
		return err
	}
	x := n.in[0]
	if err := only(x, tensor.Float, tensor.Double, tensor.Int32, tensor.Int64); err != nil {
		return err
	}
	y := c.output(n, 0, tensor.Int64, nil)
	axis, keep, last := n.integer("axis", 0), n.integer("keepdims", 1) != 0, n.integer("select_last_index", 0) != 0
	from, to := x.ref, y.ref
	c.add(n.what(), []*value{x}, []*value{y}, func(s *state) error {
		in := s.get(from)
		at, err := axisOf(axis, len(in.Shape))
		if err != nil {
			return err
		}
		var room [maxRank]int
		shape := append(room[:0], in.Shape[:at]...)
		if keep {
			shape = append(shape, 1)
		}
		out, err := s.make(to, tensor.Int64, append(shape, in.Shape[at+1:]...)...)
		if err != nil || len(out.Ints) == 0 {
			return err
		}
		if in.Shape[at] == 0 {
			return errors.New("there is no greatest of nothing")
		}
		n, step := in.Shape[at], volume(in.Shape[at+1:])
		switch in.Type {
		case tensor.Float:
			greatest(out.Ints, in.Floats, n, step, last)
		case tensor.Double:
			greatest(out.Ints, in.Doubles, n, step, last)
		default:
			greatest(out.Ints, in.Ints, n, step, last)
		}
		return nil
	})
	return nil
}

// greatest writes which is the greatest of n numbers that lie so far apart. What
// is not a number counts as the greatest, as it does to ONNX Runtime.
func greatest[T number](to []int64, x []T, n, step int, last bool) {
	for i := range to {
		row := x[i/step*n*step+i%step:]
		best, at := row[0], 0
		for k := 1; k < n && best == best; k++ {
			if v := row[k*step]; v > best || v != v || last && v == best {
				best, at = v, k
			}
		}
		to[i] = int64(at)
	}
}
