package native

import (
	"fmt"
	"math"
	"slices"

	"tidemill.dev/internal/scoring/infer/kernel"
	"tidemill.dev/internal/scoring/infer/tensor"
)

func (c *compiler) activation(n *node) error {
	act := activationOf(n.Op)
	return c.changed(n, func(_ *state, out *tensor.Tensor) error {
		act.Apply(out.Floats)
		for i, v := range out.Doubles {
			out.Doubles[i] = applied(act, v)
		}
		for i, v := range out.Ints {
			out.Ints[i] = max(v, 0)
		}
		return nil
	})
}

// applied computes an activation in double precision.
func applied(act kernel.Activation, v float64) float64 {
	switch act {
	case kernel.Relu:
		if v < 0 {
			return 0
		}
	case kernel.Sigmoid:
		return 1 / (1 + math.Exp(-v))
	case kernel.Tanh:
		return math.Tanh(v)
	}
	return v
}

// softmaxAxis returns the default axis. Before version 13 a tensor was first reshaped
// to a matrix: all dimensions from the axis on formed one row.
func softmaxAxis(opset int64) int64 {
	if opset < 13 {
		return 1
	}
	return -1
}

func (c *compiler) softmax(n *node) error {
	axis, asMatrix := n.integer("axis", softmaxAxis(n.opset)), n.opset < 13
	return c.changed(n, func(_ *state, out *tensor.Tensor) error {
		at, err := axisOf(axis, max(len(out.Shape), 1))
		if asMatrix && err != nil && axis == int64(len(out.Shape)) {
			at, err = len(out.Shape), nil
		}
		if err != nil {
			return fmt.Errorf("of %v: %w", slices.Clone(out.Shape), err)
		}
		if length(out) == 0 {
			return nil
		}
		sides, behind := out.Shape[at:], 1
		if !asMatrix && len(sides) > 0 {
			sides, behind = sides[:1], volume(sides[1:])
		}
		softmaxOver(out, volume(sides), behind)
		return nil
	})
}

// softmaxOver computes softmax over groups of n numbers that are step numbers apart.
func softmaxOver(t *tensor.Tensor, n, step int) {
	if t.Type == tensor.Float && step == 1 {
		kernel.Softmax(len(t.Floats)/n, n, t.Floats)
		return
	}
	for begin := 0; begin < length(t); begin += n * step {
		for i := range step {
			if t.Type == tensor.Float {
				softmax(t.Floats[begin+i:], n, step)
			} else {
				softmax(t.Doubles[begin+i:], n, step)
			}
		}
	}
}

func softmax[T float32 | float64](x []T, n, step int) {
	greatest, sum := math.Inf(-1), 0.0
	for i := range n {
		greatest = max(greatest, float64(x[i*step]))
	}
	for i := range n {
		e := math.Exp(float64(x[i*step]) - greatest)
		x[i*step], sum = T(e), sum+e
	}
	for i := range n {
		x[i*step] = T(float64(x[i*step]) / sum)
	}
}
