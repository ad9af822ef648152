package infer

import (
	"fmt"
	"math"

	"tidemill.dev/internal/infer/tensor"
)

// loaded is a program and all that is known of it. It never changes.
type loaded struct {
	program Program
	engine  string
	inputs  []tensor.Spec
	outputs []tensor.Spec
	rows    int
	bytes   int64
	*reading
}

// overhead is what a model takes beside its program's memory, by estimate.
const overhead = 1 << 10

// ready makes a model of a program: it reads how it is to be used, and answers
// the golden request. The program is closed if it is not fit.
func ready(p Program, engine string, c *card) (m *loaded, err error) {
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	m = &loaded{program: p, engine: engine, inputs: p.Inputs(), outputs: p.Outputs(), rows: c.rows, bytes: p.Bytes() + overhead}
	if c.bytes > 0 && p.Bytes() > c.bytes {
		return nil, fmt.Errorf("%w: it takes %d bytes of memory, and %s allows limits.bytes %d", ErrUnfit, p.Bytes(), CardFile, c.bytes)
	}
	if c.input != "" && index(m.inputs, c.input) < 0 {
		return nil, fmt.Errorf("%w: %s: it has no input %q; it has %s", ErrUnfit, CardFile, c.input, names(m.inputs))
	}
	if err := m.bound(); err != nil {
		return nil, err
	}
	if m.reading, err = newReading(p, c); err != nil {
		return nil, err
	}
	return m, m.try(c.golden)
}

// bound finds how many rows the model takes at once.
func (m *loaded) bound() error {
	for _, s := range m.inputs {
		switch {
		case len(s.Shape) == 0 || s.Shape[0] == 1:
			m.rows = 1
		case s.Shape[0] > 1:
			return fmt.Errorf("%w: its input %q is for %d rows and no other number; export it with a first dimension that is open, or 1", ErrUnfit, s.Name, s.Shape[0])
		}
	}
	return nil
}

// try has the model answer: the golden request, which must be answered as it
// says, or else a row of zeros, of which only an answer is wanted.
func (m *loaded) try(g *golden) error {
	if g == nil {
		in, ok := zeros(m.inputs)
		if !ok {
			return nil // nobody knows how large a row is
		}
		_, err := m.attempt(in, 1)
		return err
	}
	in, rows, err := g.tensors(m.inputs)
	if err != nil {
		return err
	}
	if m.rows > 0 && rows > m.rows {
		return fmt.Errorf("%w: %s, line %d: golden.inputs have %d rows, and the model takes %d", ErrUnfit, CardFile, g.line, rows, m.rows)
	}
	out, err := m.attempt(in, rows)
	if err != nil {
		return err
	}
	for row := range rows {
		if err := m.check(m.answer(out, row), g, row); err != nil {
			return err
		}
	}
	return nil
}

// attempt runs once and makes sure that what Answer reads is there.
func (m *loaded) attempt(in []tensor.Tensor, rows int) (out []tensor.Tensor, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: the engine failed over the trial request: %v", ErrUnfit, r)
		}
	}()
	out = make([]tensor.Tensor, len(m.outputs))
	if err := m.program.Run(in, out); err != nil {
		return nil, fmt.Errorf("%w: it does not answer the trial request: %w", ErrUnfit, err)
	}
	if m.scores >= 0 && m.labels != nil && len(out[m.scores].Floats) != rows*len(m.labels) {
		return nil, fmt.Errorf("%w: it answers %d rows with %d numbers in %q, and has %d labels", ErrUnfit, rows, len(out[m.scores].Floats), m.outputs[m.scores].Name, len(m.labels))
	}
	if i := max(m.scores, m.values); i >= 0 && len(out[i].Floats)%rows != 0 {
		return nil, fmt.Errorf("%w: it answers %d rows with %d numbers in %q", ErrUnfit, rows, len(out[i].Floats), m.outputs[i].Name)
	}
	if m.label >= 0 && length(&out[m.label]) != rows {
		return nil, fmt.Errorf("%w: it answers %d rows with %d labels in %q", ErrUnfit, rows, length(&out[m.label]), m.outputs[m.label].Name)
	}
	return out, nil
}

func (m *loaded) check(a Answer, g *golden, row int) error {
	for _, numbers := range [][]float32{a.Scores, a.Values} {
		for _, v := range numbers {
			if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
				return fmt.Errorf("%w: its answer to the golden request, row %d, has %v", ErrUnfit, row+1, v)
			}
		}
	}
	if g.label != "" && a.Label != g.label {
		return fmt.Errorf("%w: it answers the golden request, row %d, with %q, and %s, line %d, wants %q", ErrUnfit, row+1, a.Label, CardFile, g.line, g.label)
	}
	return nil
}
