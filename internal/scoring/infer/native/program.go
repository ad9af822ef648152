package native

import (
	"fmt"
	"sync"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// Program is a compiled graph. It is safe for concurrent use.
type Program struct {
	inputs, outputs []tensor.Spec
	metadata        map[string]string
	labels          []string
	constants       []*tensor.Tensor
	cells           int // largest number of intermediate values at one time
	steps           []step
	bytes           int64
	limits          limits
}

// step is one operator, or several combined. It reads values and writes others.
type step struct {
	what          string // operator and name, for errors
	run           func(*state) error
	reads, writes []*value // set until values have their locations, nil afterwards
}

// Inputs returns the specs of Run's inputs, in their order.
func (p *Program) Inputs() []tensor.Spec { return p.inputs }

// Outputs returns the specs of Run's outputs.
func (p *Program) Outputs() []tensor.Spec { return p.outputs }

// Metadata returns the file's metadata.
func (p *Program) Metadata() map[string]string { return p.metadata }

// Labels returns the names of the classes in the order of the scores; see onnx.Model.ClassNames.
func (p *Program) Labels() []string { return p.labels }

// Bytes returns the memory that the program holds.
func (p *Program) Bytes() int64 { return p.bytes }

// Close frees the memory. No Run may be in progress.
func (p *Program) Close() { *p = Program{inputs: p.inputs, outputs: p.outputs} }

// Run computes the outputs. All inputs have the same number of rows, and so have the
// outputs. Outputs are overwritten, and their memory is reused if it is large enough.
// Run keeps neither inputs nor outputs. It allocates nothing once it has run with as
// many rows before, except for texts in outputs.
func (p *Program) Run(in, out []tensor.Tensor) error { return p.RunWithin(nil, in, out) }

// RunWithin is Run, and takes the memory of each table from a budget before it makes the table. The
// error wraps the budget's. A nil budget has no limit.
func (p *Program) RunWithin(b tensor.Budget, in, out []tensor.Tensor) error {
	s := states.Get().(*state)
	s.budget = b
	err := p.run(s, in, out)
	s.budget = nil
	states.Put(s)
	return err
}

func (p *Program) run(s *state, in, out []tensor.Tensor) error {
	if err := p.checkSpecs(in, out); err != nil {
		return err
	}
	s.begin(p, in, out)
	defer s.dropData()
	for i := range p.steps {
		if err := p.steps[i].run(s); err != nil {
			return fmt.Errorf("run %s: %w", p.steps[i].what, err)
		}
	}
	return nil
}

// checkSpecs checks the inputs against the model's specs.
func (p *Program) checkSpecs(in, out []tensor.Tensor) error {
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

// fitsShape reports whether a shape matches another one with open dimensions.
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

// limits bound the work of one run, because a graph of a few bytes can ask for any
// amount of memory and time.
type limits struct {
	numbers  int // numbers made in all values, counted as four bytes each
	products int // multiplications
}

// usual are the limits of a run: enough for 256 rows of a model with 32 million weights.
var usual = limits{numbers: 1 << 26, products: 1 << 33}

// state has the memory that a run needs besides the weights. A pool passes it from run to run, for
// all programs, so that ten thousand models do not hold ten thousand states.
type state struct {
	program *Program
	in, out []tensor.Tensor
	cells   []tensor.Tensor
	left    limits
	budget  tensor.Budget // nil without a limit
	charged []int64       // bytes of each cell that were taken from the budget
	floats  []float32     // inputs converted to float32
	doubles []float64     // sums in double precision
	pairs   []float64     // votes and probabilities of pairs of classes
	text    textScratch
	votes   voteScratch
	order   strided            // of a step that moves numbers
	sides   [2 * maxRank]int   // shape of a step's result
	body    *state             // of the body of a Scan
	rows    [2][]tensor.Tensor // inputs and outputs of a body
}

var states = sync.Pool{New: func() any { return new(state) }}

func (s *state) begin(p *Program, in, out []tensor.Tensor) {
	s.program, s.in, s.out, s.left = p, in, out, p.limits
	if more := p.cells - len(s.cells); more > 0 {
		s.cells = append(s.cells, make([]tensor.Tensor, more)...)
		s.charged = append(s.charged, make([]int64, more)...)
	}
	clear(s.charged)
}

// A state keeps cells up to these numbers of values for the next run. A run with a budget returns
// all of its memory afterwards, so it must not leave large cells behind.
const (
	keptAlways = 1 << 18
	keptUsual  = 1 << 23
)

// dropData drops the caller's data: its tensors, and texts that cells point to. It drops large cells
// too.
func (s *state) dropData() {
	for i := range s.cells[:s.program.cells] {
		clear(s.cells[i].Strings)
		s.cells[i].Strings = s.cells[i].Strings[:0]
	}
	most := keptUsual
	if s.budget != nil {
		most = keptAlways
	}
	for i := range s.cells[:s.program.cells] {
		if c := &s.cells[i]; cap(c.Floats)+cap(c.Doubles)+cap(c.Ints)+cap(c.Strings) > most {
			*c = tensor.Tensor{}
		}
	}
	if cap(s.floats) > most {
		s.floats = nil
	}
	if cap(s.doubles) > most {
		s.doubles = nil
	}
	if cap(s.pairs) > most {
		s.pairs = nil
	}
	if s.budget != nil {
		s.body, s.rows = nil, [2][]tensor.Tensor{}
	}
	s.votes.drop(most)
	s.program, s.in, s.out = nil, nil, nil
}

// place is the kind of a value's location.
type place uint8

const (
	nowhere place = iota
	constant
	input
	output
	cell
)

// ref is a value's location: its kind and index.
type ref struct {
	place place
	at    int
}

// get returns the tensor of a value.
func (s *state) get(r *ref) *tensor.Tensor {
	switch r.place {
	case constant:
		return s.program.constants[r.at]
	case input:
		return &s.in[r.at]
	case output:
		return &s.out[r.at]
	}
	return &s.cells[r.at]
}

// prepare sets a value's type and shape and makes room for its numbers. They are not cleared.
func (s *state) prepare(r *ref, kind tensor.Type, shape ...int) (*tensor.Tensor, error) {
	n, err := elements(shape)
	if err == nil && n > s.left.numbers/inFloats(kind) {
		err = fmt.Errorf("it would make a table of %v, more than a run may: ask for fewer rows at once", append([]int(nil), shape...))
	}
	if err == nil {
		err = s.charge(r, 4*int64(n*inFloats(kind)))
	}
	if err != nil {
		return nil, err
	}
	s.left.numbers -= n * inFloats(kind)
	t := s.get(r)
	t.Type, t.Shape = kind, append(t.Shape[:0], shape...)
	// Numbers of another type are dropped, but their memory is kept.
	clear(t.Strings)
	t.Floats, t.Doubles, t.Ints, t.Strings = t.Floats[:0], t.Doubles[:0], t.Ints[:0], t.Strings[:0]
	switch kind {
	case tensor.Float:
		t.Floats = room(t.Floats, n)
	case tensor.Double:
		t.Doubles = room(t.Doubles, n)
	case tensor.String:
		t.Strings = room(t.Strings, n)
	default:
		t.Ints = room(t.Ints, n)
	}
	return t, nil
}

// charge takes the bytes of a table from the budget. A cell that is used again costs only its growth.
func (s *state) charge(r *ref, bytes int64) error {
	if s.budget == nil {
		return nil
	}
	if r.place == cell {
		grown := bytes - s.charged[r.at]
		if grown <= 0 {
			return nil
		}
		bytes, s.charged[r.at] = grown, bytes
	}
	return s.budget.Take(bytes)
}

// inFloats returns the size of a value of a type, in float32s. A text counts as a
// header and, often, new memory.
func inFloats(kind tensor.Type) int {
	switch kind {
	case tensor.Float:
		return 1
	case tensor.String:
		return 8
	}
	return 2
}

// multiply counts the products of a multiplication against the limit.
func (s *state) multiply(m, k, n int) error {
	if m > 0 && n > 0 && k > s.left.products/m/n {
		return fmt.Errorf("%d rows times %d×%d is more than a run may multiply: ask for fewer rows at once", m, k, n)
	}
	s.left.products -= m * k * n
	return nil
}

// room returns a slice of length n, in the memory of s if it is large enough.
func room[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// asFloats returns a tensor's numbers as float32.
func (s *state) asFloats(t *tensor.Tensor) []float32 {
	switch t.Type {
	case tensor.Float:
		return t.Floats
	case tensor.Double:
		s.floats = room(s.floats, len(t.Doubles))
		for i, v := range t.Doubles {
			s.floats[i] = float32(v)
		}
	default:
		s.floats = room(s.floats, len(t.Ints))
		for i, v := range t.Ints {
			s.floats[i] = float32(v)
		}
	}
	return s.floats
}
