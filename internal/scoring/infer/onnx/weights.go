package onnx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// maxElements is more than any file can hold, and small enough to be multiplied by an
// element's size.
const maxElements = 1 << 40

// maxRank is the largest number of dimensions of a tensor.
const maxRank = 8

// byteType is uint8. No input or output has it, but a TreeEnsemble lists its modes as bytes.
const byteType tensor.Type = 2

// content is a tensor as written. The format has several fields for its numbers.
type content struct {
	name     string
	kind     int64
	dims     []int64
	raw      []byte
	isRaw    bool
	external bool
	floats   []float32
	ints     []int64
	doubles  []float64
	texts    []string
}

func (r *reader) tensor(b []byte) (string, *tensor.Tensor, error) {
	if err := r.countMemory(tensorSize); err != nil {
		return "", nil, err
	}
	var c content
	err := fields(b, func(f field) error { return r.content(&c, f) })
	var t *tensor.Tensor
	if err == nil {
		t, err = r.makeTensor(&c)
	}
	if err != nil {
		return "", nil, fmt.Errorf("weights %q: %w", c.name, err)
	}
	return c.name, t, nil
}

func (r *reader) content(c *content, f field) (err error) {
	switch f.number {
	case 1:
		c.dims, err = r.integers(c.dims, f)
	case 2:
		c.kind, err = f.integer()
	case 4:
		c.floats, err = r.floats(c.floats, f)
	case 5, 7:
		c.ints, err = r.integers(c.ints, f)
	case 6:
		c.texts, err = r.texts(c.texts, f)
	case 8:
		c.name, err = r.text(f)
	case 9:
		c.raw, err = f.message()
		c.isRaw = true
	case 10:
		c.doubles, err = r.doubles(c.doubles, f)
	case 13:
		c.external = true
	case 14:
		c.external = c.external || f.bits != 0
	}
	return err
}

// makeTensor makes a tensor from its content, and checks the number of elements against the
// dimensions.
func (r *reader) makeTensor(c *content) (*tensor.Tensor, error) {
	if c.external {
		return nil, errors.New("they are in a separate file: export the model with its weights inside (save_as_external_data=False)")
	}
	t := &tensor.Tensor{Type: tensor.Type(c.kind)}
	n, err := setShape(t, c.dims)
	if err != nil {
		return nil, err
	}
	if c.isRaw && t.Type != tensor.String {
		return t, r.decode(t, c.raw, n)
	}
	have := 0
	switch t.Type {
	case tensor.Float:
		t.Floats, have = c.floats, len(c.floats)
	case tensor.Double:
		t.Doubles, have = c.doubles, len(c.doubles)
	case tensor.Int32, tensor.Int64, tensor.Bool, byteType:
		t.Ints, have = c.ints, len(c.ints)
		narrow(t)
	case tensor.String:
		t.Strings, have = c.texts, len(c.texts)
	default:
		return t, nil
	}
	if have != n {
		return nil, fmt.Errorf("there are %d of the %d that %v has", have, n, t.Shape)
	}
	return t, nil
}

// narrow reduces numbers to the range of their type.
func narrow(t *tensor.Tensor) {
	for i, v := range t.Ints {
		switch t.Type {
		case tensor.Int32:
			t.Ints[i] = int64(int32(v))
		case tensor.Bool:
			t.Ints[i] = min(max(v, 0), 1)
		case byteType:
			t.Ints[i] = int64(uint8(v))
		}
	}
}

// setShape sets the shape and returns its number of elements.
func setShape(t *tensor.Tensor, dims []int64) (int, error) {
	if len(dims) > maxRank {
		return 0, fmt.Errorf("they have %d dimensions; at most %d are supported", len(dims), maxRank)
	}
	n := int64(1)
	t.Shape = make([]int, len(dims))
	for i, d := range dims {
		if d < 0 || d > maxElements || d > 0 && n > maxElements/d {
			return 0, fmt.Errorf("they have sides of %d", dims)
		}
		n *= d
		t.Shape[i] = int(d)
	}
	return int(n), nil
}

// decode reads numbers in little-endian order.
func (r *reader) decode(t *tensor.Tensor, raw []byte, n int) error {
	size := map[tensor.Type]int{tensor.Float: 4, tensor.Double: 8, tensor.Int32: 4, tensor.Int64: 8, tensor.Bool: 1, byteType: 1}[t.Type]
	if size == 0 {
		return nil
	}
	if n*size != len(raw) {
		return fmt.Errorf("there are %d bytes of the %d that %v has", len(raw), n*size, t.Shape)
	}
	if err := r.countMemory(8 * n); err != nil {
		return err
	}
	switch t.Type {
	case tensor.Float:
		t.Floats = make([]float32, n)
		for i := range t.Floats { // most of a file's data, so without a function call for each
			t.Floats[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		}
	case tensor.Double:
		t.Doubles = decoded(raw, n, 8, func(b []byte) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(b)) })
	case tensor.Int32:
		t.Ints = decoded(raw, n, 4, func(b []byte) int64 { return int64(int32(binary.LittleEndian.Uint32(b))) })
	case tensor.Int64:
		t.Ints = decoded(raw, n, 8, func(b []byte) int64 { return int64(binary.LittleEndian.Uint64(b)) })
	case tensor.Bool:
		t.Ints = decoded(raw, n, 1, func(b []byte) int64 { return int64(min(b[0], 1)) })
	case byteType:
		t.Ints = decoded(raw, n, 1, func(b []byte) int64 { return int64(b[0]) })
	}
	return nil
}

func decoded[T any](raw []byte, n, size int, one func([]byte) T) []T {
	all := make([]T, n)
	for i := range all {
		all[i] = one(raw[i*size:])
	}
	return all
}

// ReadTensor reads a tensor from a separate file, as in ONNX's own tests.
func ReadTensor(data []byte) (*tensor.Tensor, error) {
	r := &reader{left: grant + growth*len(data), known: map[string]string{}}
	_, t, err := r.tensor(data)
	return t, err
}
