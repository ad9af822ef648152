package native

import (
	"errors"
	"fmt"
	"slices"

	"tidemill.dev/internal/scoring/infer/onnx"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// scan runs a body for each row of a table. Exporters of scikit-learn write it for the distances
// between rows. Only bodies whose states stay the same are supported, so the rows do not depend on
// each other.
type scan struct {
	body  *Program
	fixed []*ref // inputs of the body that are the same for all rows
	over  []*ref // inputs of which the body gets one row
	to    []*ref
}

func (c *compiler) scan(n *node) error {
	a, _ := n.attribute("body", onnx.AttributeGraph)
	rows := n.integer("num_scan_inputs", 0)
	if a.Graph == nil {
		return fmt.Errorf("with a body that has bodies itself, or reads values from outside, %w", onnx.ErrUnsupported)
	}
	if n.opset < 9 || rows < 1 || rows > int64(len(n.in)) || slices.Contains(n.in, nil) || len(a.Graph.Inputs) != len(n.in) || len(a.Graph.Outputs) != len(n.Outputs) {
		return fmt.Errorf("with %d inputs, of which it scans %d, in version %d %w", len(n.in), rows, n.opset, onnx.ErrUnsupported)
	}
	for _, name := range []string{"scan_input_axes", "scan_input_directions", "scan_output_axes", "scan_output_directions"} {
		if slices.ContainsFunc(n.ints(name), func(v int64) bool { return v != 0 }) {
			return fmt.Errorf("with %s other than 0 %w", name, onnx.ErrUnsupported)
		}
	}
	states := len(n.in) - int(rows)
	body := *a.Graph
	body.Opsets = c.model.Opsets
	for i := range states {
		if !isSame(&body, i) {
			return fmt.Errorf("with a state that changes %w", onnx.ErrUnsupported)
		}
		c.declare(n, i, n.in[i])
	}
	body.Outputs = slices.Clone(body.Outputs[states:])
	program, err := compile(&body, c.left)
	if err != nil {
		return fmt.Errorf("its body: %w", err)
	}
	c.program.bytes += program.bytes
	s := &scan{body: program}
	for i, v := range n.in {
		if v.kind != program.inputs[i].Type {
			return fmt.Errorf("its body wants input %d as %s, not %s", i, typeName(program.inputs[i].Type), typeName(v.kind))
		}
		if i < states {
			s.fixed = append(s.fixed, v.ref)
		} else {
			s.over = append(s.over, v.ref)
		}
	}
	var writes []*value
	for i, spec := range program.outputs {
		var shape []int
		if spec.Shape != nil {
			shape = openShape(len(spec.Shape) + 1)
		}
		y := c.output(n, states+i, spec.Type, shape)
		writes = append(writes, y)
		s.to = append(s.to, y.ref)
	}
	c.add(n.describe(), n.in, writes, s.run)
	return nil
}

// isSame reports whether a body returns its state i unchanged.
func isSame(body *onnx.Model, i int) bool {
	from, to := body.Inputs[i].Name, body.Outputs[i].Name
	return from == to || slices.ContainsFunc(body.Nodes, func(n onnx.Node) bool {
		return n.Op == "Identity" && n.Domain == "" && slices.Equal(n.Inputs, []string{from}) && slices.Equal(n.Outputs, []string{to})
	})
}

func (c *scan) run(s *state) error {
	rows := -1
	for _, r := range c.over {
		shape := s.get(r).Shape
		if len(shape) == 0 || rows >= 0 && shape[0] != rows {
			return errors.New("the tables that it scans have different numbers of rows")
		}
		rows = shape[0]
	}
	if s.body == nil {
		s.body = new(state)
	}
	s.rows[0], s.rows[1] = room(s.rows[0], len(c.body.inputs)), room(s.rows[1], len(c.body.outputs))
	in, out := s.rows[0], s.rows[1]
	defer clear(in)
	for i, r := range c.fixed {
		in[i] = *s.get(r)
	}
	for row := range rows {
		for i, r := range c.over {
			rowOf(&in[len(c.fixed)+i], s.get(r), row)
		}
		if err := c.once(s, s.body, in, out, row == 0); err != nil {
			return err
		}
		for i, r := range c.to {
			if err := c.keep(s, r, &out[i], row, rows); err != nil {
				return err
			}
		}
	}
	if rows == 0 {
		return c.none(s)
	}
	return nil
}

// stepWork is the work of a step besides that on its numbers, in multiplications. Rows may have no numbers.
const stepWork = 256

// once runs the body for a row. The tables of a row are made in the same memory as those of the row
// before, so they count as memory once, and as work each time.
func (c *scan) once(s, inner *state, in, out []tensor.Tensor, first bool) error {
	if err := c.body.checkSpecs(in, out); err != nil {
		return err
	}
	inner.begin(c.body, in, out)
	defer inner.dropData()
	inner.left = s.left
	for i := range c.body.steps {
		if err := c.body.steps[i].run(inner); err != nil {
			return fmt.Errorf("%s: %w", c.body.steps[i].what, err)
		}
	}
	made := s.left.numbers - inner.left.numbers
	work := made + stepWork*len(c.body.steps)
	if s.left.products = inner.left.products; work > s.left.products {
		return errors.New("it is more work than a run may do: ask for fewer rows at once")
	}
	s.left.products -= work
	if first && s.budget != nil {
		return s.budget.Take(4 * int64(made))
	}
	return nil
}

// rowOf makes a tensor that is a row of another one, in its memory.
func rowOf(to, from *tensor.Tensor, row int) {
	n := volume(from.Shape[1:])
	to.Type, to.Shape = from.Type, from.Shape[1:]
	switch at := row * n; from.Type {
	case tensor.Float:
		to.Floats = from.Floats[at : at+n]
	case tensor.Double:
		to.Doubles = from.Doubles[at : at+n]
	case tensor.String:
		to.Strings = from.Strings[at : at+n]
	default:
		to.Ints = from.Ints[at : at+n]
	}
}

// keep copies the body's answer to its row of the output. The first one decides the shape.
func (c *scan) keep(s *state, to *ref, answer *tensor.Tensor, row, rows int) error {
	var room [maxRank + 1]int
	shape := append(append(room[:0], rows), answer.Shape...)
	if row == 0 {
		if _, err := s.prepare(to, answer.Type, shape...); err != nil {
			return err
		}
	}
	out := s.get(to)
	if !slices.Equal(out.Shape, shape) {
		return errors.New("its body answers rows of different lengths")
	}
	n := length(answer)
	paste(out, row*n, answer, 0, n)
	return nil
}

// none makes outputs without rows.
func (c *scan) none(s *state) error {
	for i, r := range c.to {
		shape := []int{0}
		for _, side := range c.body.outputs[i].Shape {
			shape = append(shape, max(side, 0))
		}
		if _, err := s.prepare(r, c.body.outputs[i].Type, shape...); err != nil {
			return err
		}
	}
	return nil
}
