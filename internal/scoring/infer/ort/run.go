package ort

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"unsafe"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// runBuffers has the memory for one Run and is reused by the next. Everything that the
// library writes to is in here or pinned, because stacks move.
type runBuffers struct {
	r      *Runtime
	pins   runtime.Pinner
	values []unsafe.Pointer // inputs' values, then outputs' values
	inputs []buffer
	output buffer
	dims   []int64
	info   unsafe.Pointer
	data   unsafe.Pointer
	count  uintptr
	args   [8]uintptr
}

// callStatus is Runtime.do without an allocation. All pointers are into c or pinned, so they
// need not be kept alive here.
func (c *runBuffers) callStatus(f function, args ...uintptr) error {
	n := copy(c.args[:], args)
	return c.r.callStatus(f, c.args[:n]...)
}

// release is Runtime.release without an allocation.
func (c *runBuffers) release(f function, what unsafe.Pointer) {
	if what != nil {
		c.args[0] = uintptr(what)
		invoke(c.r.api[f], c.args[:1]...)
	}
}

// buffer has copies of data whose layout differs between Go and C.
type buffer struct {
	dims  []int64
	ints  []int32
	bytes []byte    // booleans, or texts with a zero byte after each
	texts []uintptr // address of each text
}

// Run computes the outputs; see native.Program. In addition it allocates the texts of outputs.
func (p *Program) Run(in, out []tensor.Tensor) error {
	if len(in) != len(p.inputs) || len(out) != len(p.outputs) {
		return fmt.Errorf("the model takes %d tensors and answers %d, not %d and %d", len(p.inputs), len(p.outputs), len(in), len(out))
	}
	c := p.r.calls.Get().(*runBuffers)
	c.begin(p.r, len(in), len(in)+len(out))
	defer c.freeValues()
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

func (c *runBuffers) begin(r *Runtime, inputs, values int) {
	c.r = r
	for len(c.inputs) < inputs {
		c.inputs = append(c.inputs, buffer{})
	}
	for len(c.values) < values {
		c.values = append(c.values, nil)
	}
	c.values = c.values[:values]
}

// freeValues frees the library's values, and then the memory they used.
func (c *runBuffers) freeValues() {
	for i, v := range c.values {
		c.release(releaseValue, v)
		c.values[i] = nil
	}
	c.pins.Unpin()
	c.r.calls.Put(c)
}

func (c *runBuffers) run(p *Program, inputs int) error {
	// Slices, because a damaged model may have no outputs: a pointer past the last
	// element would be invalid.
	names, answers := p.names[inputs:], c.values[inputs:]
	return c.callStatus(run, uintptr(p.session), 0,
		uintptr(unsafe.Pointer(unsafe.SliceData(p.names))), uintptr(unsafe.Pointer(unsafe.SliceData(c.values))), uintptr(inputs),
		uintptr(unsafe.Pointer(unsafe.SliceData(names))), uintptr(len(answers)),
		uintptr(unsafe.Pointer(unsafe.SliceData(answers))))
}

// feed makes a value from a tensor. It uses the tensor's own memory if the layout is the same.
func (c *runBuffers) feed(i int, t *tensor.Tensor, s *tensor.Spec) error {
	if t.Type != s.Type {
		return fmt.Errorf("it is of ONNX's type %d, not %d", s.Type, t.Type)
	}
	b := &c.inputs[i]
	n, err := b.shape(t.Shape)
	if err != nil {
		return err
	}
	if has := length(t); has < n {
		return fmt.Errorf("a tensor of %v holds %d elements, not %d", t.Shape, has, n)
	}
	if t.Type == tensor.String {
		return c.feedTexts(i, b, t.Strings[:n])
	}
	data, size := b.data(t, n)
	if n > 0 {
		c.pins.Pin(data)
	}
	return c.callStatus(createTensorWithDataAsOrtValue, uintptr(c.r.memory), uintptr(data), uintptr(n*size),
		uintptr(unsafe.Pointer(unsafe.SliceData(b.dims))), uintptr(len(b.dims)), uintptr(t.Type), uintptr(unsafe.Pointer(&c.values[i])))
}

// shape copies a shape and returns its number of elements.
func (b *buffer) shape(shape []int) (n int, err error) {
	n, b.dims = 1, b.dims[:0]
	for _, d := range shape {
		if d < 0 || d > 0 && n > math.MaxInt32/d {
			return 0, fmt.Errorf("%v is not a shape of a tensor", shape)
		}
		n *= d
		b.dims = append(b.dims, int64(d))
	}
	return n, nil
}

// length returns the number of elements of a tensor.
func length(t *tensor.Tensor) int {
	switch t.Type {
	case tensor.Float:
		return len(t.Floats)
	case tensor.Double:
		return len(t.Doubles)
	case tensor.String:
		return len(t.Strings)
	}
	return len(t.Ints)
}

// data returns the address of the elements and the size of each.
func (b *buffer) data(t *tensor.Tensor, n int) (unsafe.Pointer, int) {
	switch t.Type {
	case tensor.Float:
		return unsafe.Pointer(unsafe.SliceData(t.Floats)), 4
	case tensor.Double:
		return unsafe.Pointer(unsafe.SliceData(t.Doubles)), 8
	case tensor.Int64:
		return unsafe.Pointer(unsafe.SliceData(t.Ints)), 8
	case tensor.Int32:
		b.ints = b.ints[:0]
		for _, v := range t.Ints[:n] {
			b.ints = append(b.ints, int32(v))
		}
		return unsafe.Pointer(unsafe.SliceData(b.ints)), 4
	}
	b.bytes = b.bytes[:0]
	for _, v := range t.Ints[:n] {
		b.bytes = append(b.bytes, byte(min(max(v, -v), 1)))
	}
	return unsafe.Pointer(unsafe.SliceData(b.bytes)), 1
}

// feedTexts makes the library copy texts, because it stores them in its own format.
func (c *runBuffers) feedTexts(i int, b *buffer, texts []string) error {
	if err := c.callStatus(createTensorAsOrtValue, uintptr(c.r.allocator), uintptr(unsafe.Pointer(unsafe.SliceData(b.dims))), uintptr(len(b.dims)),
		uintptr(tensor.String), uintptr(unsafe.Pointer(&c.values[i]))); err != nil {
		return err
	}
	if err := b.terminate(texts); err != nil || len(texts) == 0 {
		return err
	}
	c.pins.Pin(unsafe.SliceData(b.bytes))
	return c.callStatus(fillStringTensor, uintptr(c.values[i]), uintptr(unsafe.Pointer(unsafe.SliceData(b.texts))), uintptr(len(texts)))
}

// terminate copies texts with a zero byte after each.
func (b *buffer) terminate(texts []string) error {
	b.bytes, b.texts = b.bytes[:0], b.texts[:0]
	for i, s := range texts {
		if strings.IndexByte(s, 0) >= 0 {
			return fmt.Errorf("text %d has a NUL in it, at which ONNX Runtime would end it", i)
		}
		b.texts = append(b.texts, uintptr(len(b.bytes)))
		b.bytes = append(append(b.bytes, s...), 0)
	}
	start := uintptr(unsafe.Pointer(unsafe.SliceData(b.bytes)))
	for i := range b.texts { // after the last append, so that the addresses are final
		b.texts[i] += start
	}
	return nil
}

// read copies a value into a tensor and reuses its memory.
func (c *runBuffers) read(value unsafe.Pointer, s *tensor.Spec, to *tensor.Tensor) error {
	if value == nil {
		return errors.New("the model left it out")
	}
	n, err := c.readShape(value, to)
	if err != nil {
		return err
	}
	to.Type = s.Type
	if s.Type == tensor.String {
		return c.readTexts(value, n, to)
	}
	if n == 0 {
		to.Floats, to.Doubles, to.Ints = to.Floats[:0], to.Doubles[:0], to.Ints[:0]
		return nil
	}
	if err := c.callStatus(getTensorMutableData, uintptr(value), uintptr(unsafe.Pointer(&c.data))); err != nil {
		return err
	}
	copyOut(to, c.data, n)
	return nil
}

// readShape reads a value's shape and returns its number of elements.
func (c *runBuffers) readShape(value unsafe.Pointer, to *tensor.Tensor) (n int, err error) {
	if err := c.callStatus(getTensorTypeAndShape, uintptr(value), uintptr(unsafe.Pointer(&c.info))); err != nil {
		return 0, err
	}
	dims, err := c.dimensions(c.info)
	c.release(releaseTensorTypeAndShapeInfo, c.info)
	if err != nil {
		return 0, err
	}
	n, to.Shape = 1, to.Shape[:0]
	for _, d := range dims {
		n *= int(d)
		to.Shape = append(to.Shape, int(d))
	}
	return n, nil
}

// dimensions reads a shape into reused memory.
func (c *runBuffers) dimensions(shape unsafe.Pointer) ([]int64, error) {
	if err := c.callStatus(getDimensionsCount, uintptr(shape), uintptr(unsafe.Pointer(&c.count))); err != nil {
		return nil, err
	}
	if n := int(c.count); cap(c.dims) < n {
		c.dims = make([]int64, n)
	}
	c.dims = c.dims[:c.count]
	return c.dims, c.callStatus(getDimensions, uintptr(shape), uintptr(unsafe.Pointer(unsafe.SliceData(c.dims))), c.count)
}

// copyOut copies n elements from p.
func copyOut(to *tensor.Tensor, p unsafe.Pointer, n int) {
	switch to.Type {
	case tensor.Float:
		to.Floats = append(to.Floats[:0], unsafe.Slice((*float32)(p), n)...)
	case tensor.Double:
		to.Doubles = append(to.Doubles[:0], unsafe.Slice((*float64)(p), n)...)
	case tensor.Int64:
		to.Ints = append(to.Ints[:0], unsafe.Slice((*int64)(p), n)...)
	case tensor.Int32:
		to.Ints = to.Ints[:0]
		for _, v := range unsafe.Slice((*int32)(p), n) {
			to.Ints = append(to.Ints, int64(v))
		}
	case tensor.Bool:
		to.Ints = to.Ints[:0]
		for _, v := range unsafe.Slice((*byte)(p), n) {
			to.Ints = append(to.Ints, int64(v))
		}
	}
}

// readTexts copies all texts at once and then cuts them.
func (c *runBuffers) readTexts(value unsafe.Pointer, n int, to *tensor.Tensor) error {
	to.Strings = to.Strings[:0]
	if n == 0 {
		return nil
	}
	if err := c.callStatus(getStringTensorDataLength, uintptr(value), uintptr(unsafe.Pointer(&c.count))); err != nil {
		return err
	}
	b := &c.output
	if size := int(c.count) + 1; cap(b.bytes) < size { // one more byte, so that there is an address if all texts are empty
		b.bytes = make([]byte, size)
	}
	if cap(b.texts) < n {
		b.texts = make([]uintptr, n)
	}
	b.bytes, b.texts = b.bytes[:c.count+1], b.texts[:n]
	if err := c.callStatus(getStringTensorContent, uintptr(value), uintptr(unsafe.Pointer(unsafe.SliceData(b.bytes))), c.count,
		uintptr(unsafe.Pointer(unsafe.SliceData(b.texts))), uintptr(n)); err != nil {
		return err
	}
	to.Strings = splitText(string(b.bytes[:c.count]), b.texts, to.Strings)
	return nil
}

// splitText splits a text at the given beginnings.
func splitText(all string, begins []uintptr, to []string) []string {
	for i, begin := range begins {
		end := uintptr(len(all))
		if i+1 < len(begins) {
			end = begins[i+1]
		}
		to = append(to, all[begin:end])
	}
	return to
}
