package infer

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"

	"tidemill.dev/internal/scoring/infer/sandbox"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// maxTrial bounds the number of values in a trial input.
const maxTrial = 1 << 24

// tensors makes the golden request's inputs, in the order of the model's inputs.
func (g *golden) tensors(specs []tensor.Spec) (in []tensor.Tensor, rows int, err error) {
	in = make([]tensor.Tensor, len(specs))
	for i, s := range specs {
		n := g.inputs[s.Name]
		if n == nil {
			return nil, 0, fmt.Errorf("%w: %s, line %d: golden.inputs lacks the input %q", ErrUnfit, CardFile, g.line, s.Name)
		}
		if in[i], err = rowsOf(n, s); err != nil {
			return nil, 0, err
		}
		if rows = len(n.Content); rows != in[0].Shape[0] {
			return nil, 0, wrong(n, "golden.inputs.%s has %d rows, and %s has %d; they must have the same number", s.Name, rows, specs[0].Name, in[0].Shape[0])
		}
	}
	for name, n := range g.inputs {
		if !slices.ContainsFunc(specs, func(s tensor.Spec) bool { return s.Name == name }) {
			return nil, 0, wrong(n, "golden.inputs.%s: the model has no such input; it has %s", name, names(specs))
		}
	}
	return in, rows, nil
}

// rowsOf reads a list of rows. If the model leaves exactly one size open, the rows determine it.
func rowsOf(n *yaml.Node, s tensor.Spec) (tensor.Tensor, error) {
	t := tensor.Tensor{Type: s.Type, Shape: slices.Clone(s.Shape)}
	if len(t.Shape) == 0 {
		t.Shape = []int{0}
	}
	width := 0
	for i, row := range n.Content {
		before := length(&t)
		if err := appendTo(&t, row); err != nil {
			return t, err
		}
		if got := length(&t) - before; i == 0 {
			width = got
		} else if got != width {
			return t, wrong(row, "golden.inputs.%s: this row has %d values and the first has %d", s.Name, got, width)
		}
	}
	t.Shape[0] = len(n.Content)
	if err := fillShape(t.Shape[1:], width); err != nil {
		return t, wrong(n, "golden.inputs.%s: a row has %d values, and the model wants %s: %v", s.Name, width, shapeText(s.Shape), err)
	}
	return t, nil
}

// fillShape sets the missing size of a row.
func fillShape(shape []int, width int) error {
	known, open := 1, -1
	for i, size := range shape {
		switch {
		case size > 0:
			known *= size
		case open >= 0:
			return fmt.Errorf("it leaves more than one size open")
		default:
			open = i
		}
	}
	if open >= 0 && known > 0 {
		shape[open] = width / known
		known *= shape[open]
	}
	if known != width {
		return fmt.Errorf("that is %d", known)
	}
	return nil
}

// appendTo appends the values of a row at any depth of nesting.
func appendTo(t *tensor.Tensor, n *yaml.Node) error {
	if n.Kind == yaml.SequenceNode {
		for _, item := range n.Content {
			if err := appendTo(t, item); err != nil {
				return err
			}
		}
		return nil
	}
	if n.Kind != yaml.ScalarNode {
		return wrong(n, "golden.inputs must be lists of values")
	}
	var err error
	switch t.Type {
	case tensor.String:
		t.Strings = append(t.Strings, n.Value)
	case tensor.Double:
		err = appendDecoded(&t.Doubles, n)
	case tensor.Float:
		err = appendDecoded(&t.Floats, n)
	case tensor.Bool:
		var is bool
		if err = n.Decode(&is); err == nil {
			t.Ints = append(t.Ints, map[bool]int64{true: 1}[is])
		}
	default:
		err = appendDecoded(&t.Ints, n)
	}
	if err != nil {
		return wrong(n, "golden.inputs: %q is not a value of the input's type", n.Value)
	}
	return nil
}

func appendDecoded[T any](to *[]T, n *yaml.Node) error {
	var v T
	err := n.Decode(&v)
	*to = append(*to, v)
	return err
}

// zeros makes a row of zeros for each input; false if a model leaves the size of a row open.
func zeros(specs []tensor.Spec) ([]tensor.Tensor, bool) {
	in := make([]tensor.Tensor, len(specs))
	for i, s := range specs {
		t := tensor.Tensor{Type: s.Type, Shape: slices.Clone(s.Shape)}
		if len(t.Shape) > 0 {
			t.Shape[0] = 1
		}
		n := 1
		for _, size := range t.Shape {
			if size < 1 || n > maxTrial/size {
				return nil, false
			}
			n *= size
		}
		switch s.Type {
		case tensor.Float:
			t.Floats = make([]float32, n)
		case tensor.Double:
			t.Doubles = make([]float64, n)
		case tensor.String:
			t.Strings = make([]string, n)
		default:
			t.Ints = make([]int64, n)
		}
		in[i] = t
	}
	return in, true
}

func length(t *tensor.Tensor) int {
	return len(t.Floats) + len(t.Doubles) + len(t.Ints) + len(t.Strings)
}

func names(specs []tensor.Spec) string {
	text := ""
	for i, s := range specs {
		if i > 0 {
			text += ", "
		}
		text += strconv.Quote(s.Name)
	}
	return text
}

func shapeText(shape []int) string {
	text := ""
	for i, size := range shape {
		if i > 0 {
			text += "×"
		}
		if size < 0 {
			text += "?"
		} else {
			text += strconv.Itoa(size)
		}
	}
	return text
}

// trialRows is the number of generated rows that a model is asked.
const trialRows = 8

// Try asks the model generated rows, one at a time, and returns the number of answers. A model may
// refuse a generated row, such as one whose number is outside a table. The error is ErrUnfit if
// it answers rows, but every answer has a number that is not finite, and ErrAway if ONNX Runtime's
// process was lost because of other models. The size of a row may be unknown; then nothing is asked.
func (m *Model) Try() (answered int, err error) {
	finite := false
	for row := range trialRows {
		in, ok := generated(m.held.inputs, row)
		if !ok {
			return 0, nil
		}
		out, err := m.held.attempt(in, 1)
		if errors.Is(err, ErrAway) && !errors.Is(err, sandbox.ErrAtFault) {
			return answered, err
		}
		if err != nil {
			continue
		}
		answered++
		if _, found := notFinite(m.held.answerAt(out, 0)); !found {
			finite = true
		}
	}
	if answered > 0 && !finite {
		return answered, fmt.Errorf("%w: its answers to %d rows of generated inputs all have NaN or infinite numbers", ErrUnfit, answered)
	}
	return answered, nil
}

// notFinite returns a number of an answer that is NaN or infinite, if there is one.
func notFinite(a Answer) (v float32, found bool) {
	for _, numbers := range [][]float32{a.Scores, a.Values} {
		for _, v := range numbers {
			if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
				return v, true
			}
		}
	}
	return 0, false
}

// generated makes one row of inputs. Row 0 has zeros, row 1 has ones, and the others have numbers
// that look random and are the same at every call.
func generated(specs []tensor.Spec, row int) ([]tensor.Tensor, bool) {
	in, ok := zeros(specs)
	if !ok || row == 0 {
		return in, ok
	}
	for i := range in {
		t := &in[i]
		for n := range t.Floats {
			t.Floats[n] = float32(sample(row, n))
		}
		for n := range t.Doubles {
			t.Doubles[n] = sample(row, n)
		}
		for n := range t.Ints {
			t.Ints[n] = int64(row % 2)
		}
		for n := range t.Strings {
			t.Strings[n] = "text " + strconv.Itoa(row)
		}
	}
	return in, true
}

// sample returns a number from -2 to 2.
func sample(row, n int) float64 {
	if row == 1 {
		return 1
	}
	return float64(mix(uint64(row)<<32|uint64(n))>>11)/(1<<51) - 2
}
