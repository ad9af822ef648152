package native

import (
	"fmt"
	"math"
	"slices"

	"tidemill.dev/internal/infer/onnx"
	"tidemill.dev/internal/infer/tensor"
)

var numeric = []tensor.Type{tensor.Float, tensor.Double, tensor.Int32, tensor.Int64}

// scaler takes an offset away from each feature and multiplies it. It is not made
// part of a product that follows: an offset that is large beside the spread, as a
// time's is, would be lost in the sum.
func (c *compiler) scaler(n *node) error {
	if err := n.wants(1, 1); err != nil {
		return err
	}
	x := n.in[0]
	if err := only(x, numeric...); err != nil {
		return err
	}
	offset, by := n.floats("offset"), n.floats("scale")
	if len(offset) == 0 {
		offset = []float32{0}
	}
	if len(by) == 0 {
		by = []float32{1}
	}
	y := c.output(n, 0, tensor.Float, x.shape)
	c.program.bytes += 4 * int64(len(offset)+len(by))
	from, to := x.ref, y.ref
	c.add(n.what(), []*value{x}, []*value{y}, func(s *state) error {
		in := s.get(from)
		features := featuresOf(in.Shape)
		if len(offset) != 1 && len(offset) != features || len(by) != 1 && len(by) != features {
			return fmt.Errorf("%v has %d features; it scales %d and %d", slices.Clone(in.Shape), features, len(offset), len(by))
		}
		out, err := s.make(to, tensor.Float, in.Shape...)
		if err != nil {
			return err
		}
		for x, y := s.asFloats(in), out.Floats; len(y) > 0; x, y = x[features:], y[features:] {
			row(subtracting, y[:features], x[:features], offset)
			row(multiplying, y[:features], y[:features], by)
		}
		return nil
	})
	return nil
}

// featuresOf is how many numbers an event has: the last side.
func featuresOf(shape []int) int {
	if len(shape) == 0 {
		return 1
	}
	return shape[len(shape)-1]
}

// normalizer divides each event's numbers by the greatest of them, by their sum, or
// by their length, all of their sizes; what would be divided by 0 stays.
func (c *compiler) normalizer(n *node) error {
	if err := n.wants(1, 1); err != nil {
		return err
	}
	x, norm := n.in[0], n.text("norm", "MAX")
	if err := only(x, numeric...); err != nil {
		return err
	}
	if !slices.Contains([]string{"MAX", "L1", "L2"}, norm) {
		return fmt.Errorf("norm %s %w", norm, onnx.ErrUnsupported)
	}
	y := c.output(n, 0, tensor.Float, x.shape)
	from, to := x.ref, y.ref
	c.add(n.what(), []*value{x}, []*value{y}, func(s *state) error {
		in := s.get(from)
		out, err := s.make(to, tensor.Float, in.Shape...)
		if err != nil {
			return err
		}
		copy(out.Floats, s.asFloats(in))
		features := featuresOf(in.Shape)
		for y := out.Floats; len(y) > 0; y = y[features:] {
			normalize(norm, y[:features])
		}
		return nil
	})
	return nil
}

func normalize(norm string, x []float32) {
	var by float32
	for i, v := range x {
		switch norm {
		case "MAX":
			if i == 0 || v > by {
				by = v
			}
		case "L1":
			by += float32(math.Abs(float64(v)))
		default:
			by += v * v
		}
	}
	if norm == "L2" {
		by = float32(math.Sqrt(float64(by)))
	}
	if by == 0 {
		return
	}
	for i := range x {
		x[i] /= by
	}
}
