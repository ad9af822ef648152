package native

import (
	"fmt"
	"slices"

	"tidemill.dev/internal/infer/onnx"
	"tidemill.dev/internal/infer/tensor"
)

// node is an operator with what is known of its inputs.
type node struct {
	*onnx.Node
	at    int
	in    []*value
	opset int64
	wrong *error // what is wrong with an attribute goes here
}

func (c *compiler) node(i int) *node {
	n := &node{Node: &c.model.Nodes[i], at: i, wrong: &c.wrong}
	n.opset = c.model.Opsets[n.Domain]
	for _, name := range n.Inputs {
		n.in = append(n.in, c.values[name])
	}
	return n
}

// what is how errors call it.
func (n *node) what() string {
	op := n.Op
	if n.Domain != "" {
		op = n.Domain + "." + op
	}
	if n.Name == "" {
		return op
	}
	return fmt.Sprintf("%s %q", op, n.Name)
}

// wants fails if it has not as many inputs as it needs, or more than it may have.
func (n *node) wants(from, to int) error {
	if len(n.in) < from || len(n.in) > to || slices.Contains(n.in[:from], nil) {
		return fmt.Errorf("it has %d inputs, and needs %d", len(n.in), from)
	}
	return nil
}

// optional is an input that may be left out.
func (n *node) optional(i int) *value {
	if i < len(n.in) {
		return n.in[i]
	}
	return nil
}

// only fails if an input is of a type that is not one of these.
func only(v *value, kinds ...tensor.Type) error {
	if !slices.Contains(kinds, v.kind) {
		return fmt.Errorf("for type %s %w", typeName(v.kind), onnx.ErrUnsupported)
	}
	return nil
}

// output sets what is known of an output. One that nobody takes is made too: a
// step need not ask.
func (c *compiler) output(n *node, i int, kind tensor.Type, shape []int) *value {
	v := &value{kind: kind, shape: shape, ref: &ref{}}
	if i < len(n.Outputs) && n.Outputs[i] != "" {
		c.values[n.Outputs[i]] = v
	}
	return v
}

// wanted says whether anybody takes an output.
func (c *compiler) wanted(n *node, i int) bool {
	return i < len(n.Outputs) && n.Outputs[i] != "" && len(c.takers[n.Outputs[i]]) > 0
}

// same makes an output that is what another value is.
func (c *compiler) same(n *node, v *value) {
	if len(n.Outputs) > 0 && n.Outputs[0] != "" {
		c.values[n.Outputs[0]] = v
	}
}

// sole is the node that alone takes a node's first output and no other, nil if
// there is none.
func (c *compiler) sole(n *node, ops ...string) *node {
	if len(n.Outputs) == 0 {
		return nil
	}
	for _, name := range n.Outputs[1:] {
		if len(c.takers[name]) > 0 && name != "" {
			return nil
		}
	}
	takers := c.takers[n.Outputs[0]]
	if len(takers) != 1 || takers[0] < 0 || c.done[takers[0]] {
		return nil
	}
	next := c.node(takers[0])
	if next.Domain != n.Domain || !slices.Contains(ops, next.Op) {
		return nil
	}
	return next
}

// attribute is one that must be of a type. The oldest files say no types.
func (n *node) attribute(name string, kind int) (a onnx.Attribute, ok bool) {
	a, ok = n.Attributes[name]
	if ok && a.Type != kind && a.Type != 0 {
		*n.wrong = fmt.Errorf("%s: its attribute %s is of type %d, not %d", n.what(), name, a.Type, kind)
	}
	return a, ok
}

func (n *node) integer(name string, otherwise int64) int64 {
	if a, ok := n.attribute(name, onnx.AttributeInt); ok {
		return a.Int
	}
	return otherwise
}

func (n *node) float(name string, otherwise float32) float32 {
	if a, ok := n.attribute(name, onnx.AttributeFloat); ok {
		return a.Float
	}
	return otherwise
}

func (n *node) text(name, otherwise string) string {
	if a, ok := n.attribute(name, onnx.AttributeText); ok {
		return a.Text
	}
	return otherwise
}

func (n *node) floats(name string) []float32 {
	a, _ := n.attribute(name, onnx.AttributeFloats)
	return a.Floats
}

func (n *node) ints(name string) []int64 {
	a, _ := n.attribute(name, onnx.AttributeInts)
	return a.Ints
}

func (n *node) texts(name string) []string {
	a, _ := n.attribute(name, onnx.AttributeTexts)
	return a.Texts
}
