package native

import (
	"slices"

	"tidemill.dev/internal/infer/kernel"
	"tidemill.dev/internal/infer/tensor"
)

// tail is what is done to a product's rows while they are at hand: what stands
// behind a product in most graphs.
type tail struct {
	bias    []float32
	act     kernel.Activation
	softmax bool
}

// follow takes over the nodes behind a product of n columns, as far as they can be
// done along with it, and says which is the last. The rank of what is made is
// needed to see what a bias or an axis means; -1 is not known.
func (c *compiler) follow(last *node, t *tail, n, rank int) *node {
	if next := c.sole(last, "Add"); next != nil && t.bias == nil && len(next.in) == 2 {
		other := next.in[0]
		if next.Inputs[0] == last.Outputs[0] {
			other = next.in[1]
		}
		if bias, ok := biasOf(other, n, rank); ok {
			t.bias, last = bias, c.taken(next)
		}
	}
	if next := c.sole(last, "Relu", "Sigmoid", "Tanh"); next != nil && len(next.in) == 1 {
		t.act, last = activationOf(next.Op), c.taken(next)
	}
	if next := c.sole(last, "Softmax"); next != nil && len(next.in) == 1 && softmaxOfRows(next, rank) {
		t.softmax, last = true, c.taken(next)
	}
	return last
}

// taken marks a node as done by another.
func (c *compiler) taken(n *node) *node {
	c.done[n.at] = true
	return n
}

// biasOf is a value that adds the same to each row of n columns.
func biasOf(v *value, n, rank int) ([]float32, bool) {
	if v == nil || v.known == nil || v.kind != tensor.Float {
		return nil, false
	}
	shape, x := v.known.Shape, v.known.Floats
	if len(shape) > max(rank, 1) || len(shape) > 0 && volume(shape[:len(shape)-1]) != 1 {
		return nil, false
	}
	switch {
	case len(x) == n:
		return slices.Clone(x), true
	case len(x) == 1:
		return slices.Repeat(x, n), true
	}
	return nil, false
}

// softmaxOfRows says whether a node's axis is the last, with nothing behind it.
func softmaxOfRows(n *node, rank int) bool {
	axis := n.integer("axis", softmaxAxis(n.opset))
	return axis == -1 && (n.opset >= 13 || rank == 2) || rank > 0 && axis == int64(rank)-1
}

func activationOf(op string) kernel.Activation {
	switch op {
	case "Relu":
		return kernel.Relu
	case "Sigmoid":
		return kernel.Sigmoid
	case "Tanh":
		return kernel.Tanh
	}
	return kernel.None
}
