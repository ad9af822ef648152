package ort

import (
	"fmt"
	"math"
	"strings"
	"unsafe"

	"tidemill.dev/internal/infer/tensor"
)

// feed makes a value of a tensor, over its own memory where the layout is the same.
func (c *call) feed(i int, t *tensor.Tensor, s *tensor.Spec) error {
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
	return c.do(createTensorWithDataAsOrtValue, uintptr(c.r.memory), uintptr(data), uintptr(n*size),
		uintptr(unsafe.Pointer(unsafe.SliceData(b.dims))), uintptr(len(b.dims)), uintptr(t.Type), uintptr(unsafe.Pointer(&c.values[i])))
}

// shape copies a shape, and says how many elements it has.
func (b *buffer) shape(shape []int) (n int, err error) {
	n, b.dims = 1, b.dims[:0]
	for _, d := range shape {
		if d < 0 || d > 0 && n > math.MaxInt32/d {
			return 0, fmt.Errorf("%v is no shape of a tensor", shape)
		}
		n *= d
		b.dims = append(b.dims, int64(d))
	}
	return n, nil
}

// length is how many elements a tensor holds.
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

// data is where the elements are, and how large each is.
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

// feedTexts has the library copy texts, which it holds in a way of its own.
func (c *call) feedTexts(i int, b *buffer, texts []string) error {
	if err := c.do(createTensorAsOrtValue, uintptr(c.r.allocator), uintptr(unsafe.Pointer(unsafe.SliceData(b.dims))), uintptr(len(b.dims)),
		uintptr(tensor.String), uintptr(unsafe.Pointer(&c.values[i]))); err != nil {
		return err
	}
	if err := b.terminate(texts); err != nil || len(texts) == 0 {
		return err
	}
	c.pins.Pin(unsafe.SliceData(b.bytes))
	return c.do(fillStringTensor, uintptr(c.values[i]), uintptr(unsafe.Pointer(unsafe.SliceData(b.texts))), uintptr(len(texts)))
}

// terminate lays out texts as C wants them.
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
	for i := range b.texts { // now that they do not move any more
		b.texts[i] += start
	}
	return nil
}
