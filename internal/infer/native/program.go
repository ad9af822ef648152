// Package native is the engine for small graphs: it holds nothing but weights, and
// answers in a microsecond. DESIGN.md says how.
package native

import (
	"fmt"

	"tidemill.dev/internal/infer/tensor"
)

// Program is a graph that was made ready. It is safe for concurrent use.
type Program struct {
	inputs, outputs []tensor.Spec
	metadata        map[string]string
	labels          []string
	constants       []*tensor.Tensor
	cells           int // how many values of its own lie beside each other at most
	steps           []step
	bytes           int64
	limits          limits
}

// step is an operator, or several in one. It reads values and writes others.
type step struct {
	what          string // operator and name, for errors
	run           func(*state) error
	reads, writes []*value // while places are given; nil then
}

// Inputs are what it wants, in the order of Run's.
func (p *Program) Inputs() []tensor.Spec { return p.inputs }

// Outputs are what it answers.
func (p *Program) Outputs() []tensor.Spec { return p.outputs }

// Metadata is what the file says about itself.
func (p *Program) Metadata() map[string]string { return p.metadata }

// Labels are the classes as a classifier in the graph, or a ZipMap behind it,
// names them, in the order of the scores; nil if there is none.
func (p *Program) Labels() []string { return p.labels }

// Bytes is the memory that it holds.
func (p *Program) Bytes() int64 { return p.bytes }

// Close lets its memory go. Nothing may run.
func (p *Program) Close() { *p = Program{inputs: p.inputs, outputs: p.outputs} }

// Run answers. All inputs have the same number of rows, and so will the outputs,
// which are overwritten: their memory is used again where it is large enough. It
// keeps neither, and allocates nothing once it has answered as many rows before;
// but a text that is an output is made anew.
func (p *Program) Run(in, out []tensor.Tensor) error {
	s := states.Get().(*state)
	err := p.run(s, in, out)
	states.Put(s)
	return err
}

func (p *Program) run(s *state, in, out []tensor.Tensor) error {
	if err := p.fits(in, out); err != nil {
		return err
	}
	s.begin(p, in, out)
	defer s.end()
	for i := range p.steps {
		if err := p.steps[i].run(s); err != nil {
			return fmt.Errorf("run %s: %w", p.steps[i].what, err)
		}
	}
	return nil
}

// fits says whether the inputs are such as the model wants.
func (p *Program) fits(in, out []tensor.Tensor) error {
	if len(in) != len(p.inputs) || len(out) != len(p.outputs) {
		return fmt.Errorf("there are %d inputs and %d outputs; the model has %d and %d", len(in), len(out), len(p.inputs), len(p.outputs))
	}
	for i := range in {
		if err := fitsSpec(&p.inputs[i], &in[i]); err != nil {
			return fmt.Errorf("input %s: %w", p.inputs[i].Name, err)
		}
	}
	return nil
}

func fitsSpec(want *tensor.Spec, t *tensor.Tensor) error {
	if t.Type != want.Type {
		return fmt.Errorf("it is of type %s; the model wants %s", typeName(t.Type), typeName(want.Type))
	}
	if want.Shape != nil && !fitsShape(want.Shape, t.Shape) {
		return fmt.Errorf("its shape is %v; the model wants %v", append([]int(nil), t.Shape...), want.Shape)
	}
	n, err := elements(t.Shape)
	if err == nil && n != length(t) {
		err = fmt.Errorf("its shape is %v, but it holds %d numbers", append([]int(nil), t.Shape...), length(t))
	}
	return err
}

// fitsShape says whether a shape is one of those that another leaves open.
func fitsShape(open, shape []int) bool {
	if len(open) != len(shape) {
		return false
	}
	for i, n := range open {
		if n != tensor.Any && n != shape[i] {
			return false
		}
	}
	return true
}
