package ort

import (
	"fmt"
	"runtime"
	"unsafe"

	"tidemill.dev/internal/infer/tensor"
)

// call is what one Run needs, and is used again by the next. Whatever the library
// writes to is in here, or is pinned: it must not be on a stack, which moves.
type call struct {
	r      *Runtime
	pins   runtime.Pinner
	values []unsafe.Pointer // inputs, then outputs
	inputs []buffer
	output buffer
	dims   []int64
	info   unsafe.Pointer
	data   unsafe.Pointer
	count  uintptr
	args   [8]uintptr
}

// do is Runtime's, without an allocation. All pointers are into c or pinned, so
// nothing has to be kept here.
func (c *call) do(f function, args ...uintptr) error {
	n := copy(c.args[:], args)
	return c.r.do(f, c.args[:n]...)
}

// release is Runtime's, likewise.
func (c *call) release(f function, what unsafe.Pointer) {
	if what != nil {
		c.args[0] = uintptr(what)
		invoke(c.r.api[f], c.args[:1]...)
	}
}

// buffer holds what has another layout there than here.
type buffer struct {
	dims  []int64
	ints  []int32
	bytes []byte    // booleans or the texts, each with a nought behind it
	texts []uintptr // where they begin
}

// Run answers; see native.Program. It differs in that answers which are texts are
// allocated.
func (p *Program) Run(in, out []tensor.Tensor) error {
	if len(in) != len(p.inputs) || len(out) != len(p.outputs) {
		return fmt.Errorf("the model takes %d tensors and answers %d, not %d and %d", len(p.inputs), len(p.outputs), len(in), len(out))
	}
	c := p.r.calls.Get().(*call)
	c.begin(p.r, len(in), len(in)+len(out))
	defer c.end()
	for i := range in {
		if err := c.feed(i, &in[i], &p.inputs[i]); err != nil {
			return fmt.Errorf("feed input %q: %w", p.inputs[i].Name, err)
		}
	}
	if err := c.run(p, len(in)); err != nil {
		return fmt.Errorf("run the model: %w", err)
	}
	for i := range out {
		if err := c.read(c.values[len(in)+i], &p.outputs[i], &out[i]); err != nil {
			return fmt.Errorf("read output %q: %w", p.outputs[i].Name, err)
		}
	}
	return nil
}

func (c *call) begin(r *Runtime, inputs, values int) {
	c.r = r
	for len(c.inputs) < inputs {
		c.inputs = append(c.inputs, buffer{})
	}
	for len(c.values) < values {
		c.values = append(c.values, nil)
	}
	c.values = c.values[:values]
}

// end lets go what the library made, and then what it was made of.
func (c *call) end() {
	for i, v := range c.values {
		c.release(releaseValue, v)
		c.values[i] = nil
	}
	c.pins.Unpin()
	c.r.calls.Put(c)
}

func (c *call) run(p *Program, inputs int) error {
	// Slices, for a damaged model may answer nothing: a pointer behind the last
	// would be one to nothing of ours.
	names, answers := p.names[inputs:], c.values[inputs:]
	return c.do(run, uintptr(p.session), 0,
		uintptr(unsafe.Pointer(unsafe.SliceData(p.names))), uintptr(unsafe.Pointer(unsafe.SliceData(c.values))), uintptr(inputs),
		uintptr(unsafe.Pointer(unsafe.SliceData(names))), uintptr(len(answers)),
		uintptr(unsafe.Pointer(unsafe.SliceData(answers))))
}
