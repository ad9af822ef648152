package oip

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"tidemill.dev/broker/jsonscan"
	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// Call is one inference: a transport gives it inputs, runs it, and reads its outputs. The memory of
// its tensors is used again by later calls. So a call, and all texts of its inputs, must not change
// until End.
//
// Order: Begin, then Want and Input in any order, then Run, then Outputs.
type Call struct {
	server          *Server
	model           *infer.Model
	inputs, outputs []tensor.Spec
	budget          tensor.Budget // nil without a limit
	in              []tensor.Tensor
	given           []bool // inputs that were given
	out             []tensor.Tensor
	wanted          []int // indexes of the wanted outputs
}

// Begin begins a call to a model. Version 0 is the champion. The budget of the context is charged with
// the call's tensors. The caller calls End.
func (s *Server) Begin(ctx context.Context, name string, version int) (*Call, error) {
	m, err := s.open(ctx, name, version)
	if err != nil {
		return nil, err
	}
	c, _ := s.calls.Get().(*Call)
	if c == nil {
		c = &Call{server: s}
	}
	c.model, c.budget = m, infer.BudgetOf(ctx)
	c.begin(m.Inputs(), m.Outputs())
	return c, nil
}

// NewCall makes a call without a model. It checks inputs, and is never run.
func NewCall(inputs, outputs []tensor.Spec) *Call {
	c := &Call{}
	c.begin(inputs, outputs)
	return c
}

// Reset begins a call of NewCall again.
func (c *Call) Reset() { c.begin(c.inputs, c.outputs) }

func (c *Call) begin(inputs, outputs []tensor.Spec) {
	c.inputs, c.outputs = inputs, outputs
	c.in, c.out = sized(c.in, len(inputs)), sized(c.out, len(outputs))
	c.given = sized(c.given, len(inputs))
	clear(c.given)
	c.wanted = c.wanted[:0]
}

// sized returns a slice of n values, in the memory of s if it is large enough.
func sized[T any](s []T, n int) []T { return slices.Grow(s[:0], n)[:n] }

// kept is the greatest number of values of a tensor whose memory a later call uses.
const kept = 1 << 16

// End releases the model and the memory of the call.
func (c *Call) End() {
	c.model.Release()
	c.model, c.budget, c.inputs, c.outputs = nil, nil, nil, nil
	drop(c.in)
	drop(c.out)
	c.server.calls.Put(c)
}

// drop drops texts, which may point into a request, and large tables.
func drop(all []tensor.Tensor) {
	for i := range all {
		t := &all[i]
		if cap(t.Floats)+cap(t.Doubles)+cap(t.Ints)+cap(t.Strings) > kept || cap(t.Text) > kept {
			*t = tensor.Tensor{}
			continue
		}
		clear(t.Strings)
		t.Text = t.Text[:0]
	}
}

// Ref returns the version that answers.
func (c *Call) Ref() *infer.Ref { return c.model.Ref() }

// Want requests an output. If no output is requested, the call answers with all of them.
func (c *Call) Want(name string) error {
	i := indexOf(c.outputs, name)
	switch {
	case i < 0:
		return invalid("the model has no output %.100q; it has %s", name, namesOf(c.outputs))
	case slices.Contains(c.wanted, i): // an answer would grow with the request's square
		return invalid("output %.100q is requested twice", name)
	}
	c.wanted = append(c.wanted, i)
	return nil
}

// Input prepares an input for its values, after it has checked the datatype and the shape. The
// caller fills in as many values as the tensor has room for (Len). The parameter most is the
// greatest number of values that the request's data can have, so that a shape takes no memory for
// which there is no data.
func (c *Call) Input(name, datatype string, shape []int, most int) (*tensor.Tensor, error) {
	i := indexOf(c.inputs, name)
	switch {
	case i < 0:
		return nil, invalid("the model has no input %.100q; it has %s", name, namesOf(c.inputs))
	case c.given[i]:
		return nil, invalid("input %.100q is given twice", name)
	}
	s, t := &c.inputs[i], &c.in[i]
	if want := Datatype(s.Type); datatype != want {
		return nil, invalid("input %q: its datatype is %s, not %.40q", s.Name, want, datatype)
	}
	if !fitsSpec(shape, s.Shape) {
		return nil, invalid("input %q: its shape is %v, not %v", s.Name, s.Shape, clip(shape))
	}
	n, ok := countOf(shape, most)
	if !ok {
		return nil, invalid("input %q: data has fewer values than the shape %v", s.Name, clip(shape))
	}
	if err := c.Take(n, valueBytes(s.Type)); err != nil {
		return nil, err
	}
	c.given[i] = true
	t.Type, t.Shape = s.Type, append(t.Shape[:0], shape...)
	t.Floats, t.Doubles, t.Ints, t.Strings = t.Floats[:0], t.Doubles[:0], t.Ints[:0], t.Strings[:0]
	t.Resize(n)
	return t, nil
}

// Take takes memory for a number of values from the budget, if there is one.
func (c *Call) Take(values, bytes int) error {
	if c.budget == nil {
		return nil
	}
	return c.budget.Take(int64(values) * int64(bytes))
}

// valueBytes is the memory of a value.
func valueBytes(t tensor.Type) int {
	switch t {
	case tensor.Float:
		return 4
	case tensor.String:
		return 32
	}
	return 8
}

func indexOf(specs []tensor.Spec, name string) int {
	return slices.IndexFunc(specs, func(s tensor.Spec) bool { return s.Name == name })
}

func namesOf(all []tensor.Spec) string {
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = s.Name
	}
	return fmt.Sprintf("%q", names)
}

// fitsSpec compares a shape with the model's. Any number of rows is fine, also for a model
// that takes one at a time.
func fitsSpec(shape, spec []int) bool {
	if len(shape) != len(spec) {
		return false
	}
	for i, n := range shape {
		if n < 1 || i > 0 && spec[i] >= 0 && spec[i] != n {
			return false
		}
	}
	return true
}

func clip(shape []int) []int { return slices.Clone(shape[:min(len(shape), 16)]) }

// countOf returns the number of values of a shape without zeros; false if there are more than most.
func countOf(shape []int, most int) (int, bool) {
	n := 1
	for _, s := range shape {
		if s > most/n {
			return 0, false
		}
		n *= s
	}
	return n, true
}

// Outputs calls yield with each wanted output. The tensors are valid until End.
func (c *Call) Outputs(yield func(*tensor.Spec, *tensor.Tensor) bool) {
	if len(c.wanted) == 0 {
		for i := range c.outputs {
			if !yield(&c.outputs[i], &c.out[i]) {
				return
			}
		}
	}
	for _, i := range c.wanted {
		if !yield(&c.outputs[i], &c.out[i]) {
			return
		}
	}
}

// Inputs returns the tensors that were given, in the order of the model's inputs, and the number of their
// rows. It is an error if one is missing.
func (c *Call) Inputs() (in []tensor.Tensor, rows int, err error) {
	if i := slices.Index(c.given, false); i >= 0 {
		return nil, 0, invalid("input %q is missing; the model wants %s", c.inputs[i].Name, namesOf(c.inputs))
	}
	rows, err = rowsOf(c.in)
	return c.in, rows, err
}

// Values returns the number of values in all outputs.
func (c *Call) Values() int { return valuesIn(c.out) }

func valuesIn(all []tensor.Tensor) (n int) {
	for i := range all {
		n += all[i].Len()
	}
	return n
}

// Code is the kind of an error. Each transport has its own number for it.
type Code int8

// The kinds of errors.
const (
	Unavailable Code = iota // same request may succeed later
	Invalid                 // request is wrong, or the model refuses it
	NotFound                // there is no such model, version or path
	TooLarge                // fewer rows may succeed
	Broken                  // model cannot be loaded or used here
)

// Error is an error with its kind.
type Error struct {
	Code Code
	text string
}

// Error returns the message.
func (e *Error) Error() string { return e.text }

// Errorf makes an error of a kind.
func Errorf(code Code, format string, args ...any) error {
	return &Error{code, fmt.Sprintf(format, args...)}
}

// CodeOf returns the kind of an error. An error without a kind is Unavailable, because it comes from
// the servers below.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Unavailable
}

func invalid(format string, args ...any) error { return Errorf(Invalid, format, args...) }

// RawSize is the size of a value in raw data. A text has its length in four bytes, and then its
// bytes.
func RawSize(t tensor.Type) int {
	switch t {
	case tensor.Double, tensor.Int64:
		return 8
	case tensor.Bool:
		return 1
	}
	return 4
}

// FillRaw fills a tensor with little-endian raw data, which must have as many values as the tensor.
// Texts share the memory of the data.
func FillRaw(name string, t *tensor.Tensor, data []byte) error {
	if t.Type == tensor.String {
		return fillTexts(name, t, data)
	}
	if want := t.Len() * RawSize(t.Type); len(data) != want {
		return invalid("input %.100q: its binary tensor has %d bytes, and the shape %v has %d", name, len(data), clip(t.Shape), want)
	}
	switch t.Type {
	case tensor.Float:
		for i := range t.Floats {
			t.Floats[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
		}
	case tensor.Double:
		for i := range t.Doubles {
			t.Doubles[i] = math.Float64frombits(binary.LittleEndian.Uint64(data[8*i:]))
		}
	case tensor.Int32:
		for i := range t.Ints {
			t.Ints[i] = int64(int32(binary.LittleEndian.Uint32(data[4*i:])))
		}
	case tensor.Int64:
		for i := range t.Ints {
			t.Ints[i] = int64(binary.LittleEndian.Uint64(data[8*i:]))
		}
	case tensor.Bool:
		for i := range t.Ints {
			t.Ints[i] = int64(min(data[i], 1))
		}
	}
	return nil
}

func fillTexts(name string, t *tensor.Tensor, data []byte) error {
	for i := range t.Strings {
		if len(data) < 4 || uint64(binary.LittleEndian.Uint32(data)) > uint64(len(data)-4) {
			return invalid("input %.100q: its binary tensor ends within text %d of %d; each has its length before it, in four bytes", name, i+1, len(t.Strings))
		}
		n := 4 + int(binary.LittleEndian.Uint32(data))
		if t.Strings[i] = jsonscan.AsText(data[4:n]); !utf8.ValidString(t.Strings[i]) {
			return invalid("input %.100q: text %d of its binary tensor is not UTF-8", name, i+1)
		}
		data = data[n:]
	}
	if len(data) > 0 {
		return invalid("input %.100q: its binary tensor has %d bytes after its %d texts", name, len(data), len(t.Strings))
	}
	return nil
}

// RawLength is the length of a tensor's raw data.
func RawLength(t *tensor.Tensor) int {
	n := t.Len() * RawSize(t.Type)
	if t.Type == tensor.String {
		for _, s := range t.Strings {
			n += len(s)
		}
	}
	return n
}

// AppendRaw appends a tensor's raw data.
func AppendRaw(to []byte, t *tensor.Tensor) []byte {
	to = slices.Grow(to, t.Len()*RawSize(t.Type))
	switch t.Type {
	case tensor.Float:
		for _, v := range t.Floats {
			to = binary.LittleEndian.AppendUint32(to, math.Float32bits(v))
		}
	case tensor.Double:
		for _, v := range t.Doubles {
			to = binary.LittleEndian.AppendUint64(to, math.Float64bits(v))
		}
	case tensor.Int32:
		for _, v := range t.Ints {
			to = binary.LittleEndian.AppendUint32(to, uint32(v))
		}
	case tensor.Int64:
		for _, v := range t.Ints {
			to = binary.LittleEndian.AppendUint64(to, uint64(v))
		}
	case tensor.Bool:
		for _, v := range t.Ints {
			to = append(to, byte(v))
		}
	default:
		for _, s := range t.Strings {
			to = append(binary.LittleEndian.AppendUint32(to, uint32(len(s))), s...)
		}
	}
	return to
}
