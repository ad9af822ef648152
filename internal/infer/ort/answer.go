package ort

import (
	"errors"
	"unsafe"

	"tidemill.dev/internal/infer/tensor"
)

// read copies a value into a tensor, whose memory is used again.
func (c *call) read(value unsafe.Pointer, s *tensor.Spec, to *tensor.Tensor) error {
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
	if err := c.do(getTensorMutableData, uintptr(value), uintptr(unsafe.Pointer(&c.data))); err != nil {
		return err
	}
	copyOut(to, c.data, n)
	return nil
}

// readShape reads a value's shape, and says how many elements it has.
func (c *call) readShape(value unsafe.Pointer, to *tensor.Tensor) (n int, err error) {
	if err := c.do(getTensorTypeAndShape, uintptr(value), uintptr(unsafe.Pointer(&c.info))); err != nil {
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

// dimensions reads a shape into memory that is used again.
func (c *call) dimensions(shape unsafe.Pointer) ([]int64, error) {
	if err := c.do(getDimensionsCount, uintptr(shape), uintptr(unsafe.Pointer(&c.count))); err != nil {
		return nil, err
	}
	if n := int(c.count); cap(c.dims) < n {
		c.dims = make([]int64, n)
	}
	c.dims = c.dims[:c.count]
	return c.dims, c.do(getDimensions, uintptr(shape), uintptr(unsafe.Pointer(unsafe.SliceData(c.dims))), c.count)
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

// readTexts copies all texts at once, and cuts them.
func (c *call) readTexts(value unsafe.Pointer, n int, to *tensor.Tensor) error {
	to.Strings = to.Strings[:0]
	if n == 0 {
		return nil
	}
	if err := c.do(getStringTensorDataLength, uintptr(value), uintptr(unsafe.Pointer(&c.count))); err != nil {
		return err
	}
	b := &c.output
	if size := int(c.count) + 1; cap(b.bytes) < size { // one more, so that there is an address if all are empty
		b.bytes = make([]byte, size)
	}
	if cap(b.texts) < n {
		b.texts = make([]uintptr, n)
	}
	b.bytes, b.texts = b.bytes[:c.count+1], b.texts[:n]
	if err := c.do(getStringTensorContent, uintptr(value), uintptr(unsafe.Pointer(unsafe.SliceData(b.bytes))), c.count,
		uintptr(unsafe.Pointer(unsafe.SliceData(b.texts))), uintptr(n)); err != nil {
		return err
	}
	to.Strings = cut(string(b.bytes[:c.count]), b.texts, to.Strings)
	return nil
}

// cut makes texts of one, given where each begins.
func cut(all string, begins []uintptr, to []string) []string {
	for i, begin := range begins {
		end := uintptr(len(all))
		if i+1 < len(begins) {
			end = begins[i+1]
		}
		to = append(to, all[begin:end])
	}
	return to
}
