package native

import (
	"fmt"
	"sync"

	"tidemill.dev/internal/infer/tensor"
)

// limits bound what one run may take: a graph of a few bytes can ask for any
// amount of memory and time.
type limits struct {
	numbers  int // that are made, over all values, of four bytes each
	products int // that are added up
}

// usual are those of a run: 256 rows of a model of 32 million weights.
var usual = limits{numbers: 1 << 26, products: 1 << 33}

// state is what one run needs beside the weights. It is passed on from run to run,
// whatever the program, so that ten thousand models do not hold ten thousand.
type state struct {
	program *Program
	in, out []tensor.Tensor
	cells   []tensor.Tensor
	left    limits
	floats  []float32 // of an input that is of another type
	text    textScratch
}

var states = sync.Pool{New: func() any { return new(state) }}

func (s *state) begin(p *Program, in, out []tensor.Tensor) {
	s.program, s.in, s.out, s.left = p, in, out, p.limits
	if more := p.cells - len(s.cells); more > 0 {
		s.cells = append(s.cells, make([]tensor.Tensor, more)...)
	}
}

// end lets go of what is the caller's: its tensors, and texts that cells point to.
func (s *state) end() {
	for i := range s.cells[:s.program.cells] {
		clear(s.cells[i].Strings)
		s.cells[i].Strings = s.cells[i].Strings[:0]
	}
	s.program, s.in, s.out = nil, nil, nil
}

// place is where a value lies.
type place uint8

const (
	nowhere place = iota
	constant
	input
	output
	cell
)

// ref is a place, and which of them.
type ref struct {
	place place
	at    int
}

// get is the tensor of a value.
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

// make gives a value its type and shape, and room for its numbers, which hold
// whatever was there before.
func (s *state) make(r *ref, kind tensor.Type, shape ...int) (*tensor.Tensor, error) {
	n, err := elements(shape)
	if err == nil && n > s.left.numbers/inFloats(kind) {
		err = fmt.Errorf("it would make a table of %v, more than a run may: ask for fewer rows at once", append([]int(nil), shape...))
	}
	if err != nil {
		return nil, err
	}
	s.left.numbers -= n * inFloats(kind)
	t := s.get(r)
	t.Type, t.Shape = kind, append(t.Shape[:0], shape...)
	// What was there of another type goes, all but its memory.
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

// inFloats is how much memory a value takes, as so many floats. A text is where it
// begins and ends, and often new itself.
func inFloats(kind tensor.Type) int {
	switch kind {
	case tensor.Float:
		return 1
	case tensor.String:
		return 8
	}
	return 2
}

// multiply accounts for so many products.
func (s *state) multiply(m, k, n int) error {
	if m > 0 && n > 0 && k > s.left.products/m/n {
		return fmt.Errorf("%d rows times %d×%d is more than a run may multiply: ask for fewer rows at once", m, k, n)
	}
	s.left.products -= m * k * n
	return nil
}

// room is a slice of n, in the memory of s if that is enough.
func room[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// asFloats are a tensor's numbers as floats.
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
