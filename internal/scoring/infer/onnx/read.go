package onnx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// Approximate sizes in memory, without contents.
const (
	textSize      = 16
	nodeSize      = 256
	attributeSize = 320
	tensorSize    = 256
	specSize      = 128
)

// A model may take this many times its file's size plus a constant. A list of zeros
// grows eightfold when it is read, and the smallest node grows by more.
const (
	growth = 16
	grant  = 1 << 20
)

// reader reads one file.
type reader struct {
	left   int               // memory that the file may still use
	known  map[string]string // texts that are not copied again
	inside bool              // the graph is the body of a loop
	model  *Model
}

// Read parses a file. It fails for a file that is truncated, has wrong sizes, or would
// need more memory than a few times its own size.
func Read(data []byte) (*Model, error) {
	r := &reader{left: grant + growth*len(data), known: map[string]string{}, model: newModel()}
	var graphs int
	err := fields(data, func(f field) error {
		if f.number == 7 {
			graphs++
		}
		return r.readField(f)
	})
	if err == nil && graphs == 0 {
		err = errors.New("it has no graph: is it an ONNX file?")
	}
	if err == nil {
		err = r.model.order()
	}
	if err != nil {
		return nil, fmt.Errorf("read ONNX model: %w", err)
	}
	return r.model, nil
}

func newModel() *Model {
	return &Model{Opsets: map[string]int64{}, Weights: map[string]*tensor.Tensor{}, Metadata: map[string]string{}}
}

// countMemory counts memory that is about to be allocated.
func (r *reader) countMemory(n int) error {
	if n > r.left {
		return errors.New("it would need far more memory than its size: it is damaged, or was made to harm")
	}
	r.left -= n
	return nil
}

// readField reads a top-level field of the file.
func (r *reader) readField(f field) (err error) {
	switch f.number {
	case 1:
		r.model.IR, err = f.integer()
	case 7:
		return r.graph(f)
	case 8:
		return r.opset(f)
	case 14:
		return r.metadata(f)
	case 25:
		return r.function(f)
	}
	return err
}

func (r *reader) opset(f field) error {
	var name string
	var version int64
	err := r.readNested(f, func(f field) (err error) {
		switch f.number {
		case 1:
			name, err = r.text(f)
		case 2:
			version, err = f.integer()
		}
		return err
	})
	r.model.Opsets[domain(name)] = version
	return err
}

func (r *reader) metadata(f field) error {
	var key, value string
	err := r.readNested(f, func(f field) (err error) {
		switch f.number {
		case 1:
			key, err = r.text(f)
		case 2:
			value, err = r.text(f)
		}
		return err
	})
	r.model.Metadata[key] = value
	return err
}

func (r *reader) function(f field) error {
	var name, home string
	err := r.readNested(f, func(f field) (err error) {
		switch f.number {
		case 1:
			name, err = r.text(f)
		case 10:
			home, err = r.text(f)
		}
		return err
	})
	r.model.Functions = append(r.model.Functions, domain(home)+"."+name)
	return err
}

// readNested reads the fields of a nested message and counts a little memory for it.
func (r *reader) readNested(f field, each func(field) error) error {
	b, err := f.message()
	if err == nil {
		err = r.countMemory(specSize)
	}
	if err != nil {
		return err
	}
	return fields(b, each)
}

// Wire types of fields.
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
	wireFixed32 = 5
)

var (
	errCut  = errors.New("it is cut off, or is no ONNX file")
	errForm = errors.New("a field is written in a way that is not ONNX's; is it an ONNX file?")
)

// field is a field of a message: its number, and its content by wire type.
type field struct {
	number int
	wire   int
	bits   uint64 // content of all types except wireBytes
	bytes  []byte // content of wireBytes; points into the file
}

// fields calls each for every field of a message.
func fields(b []byte, each func(field) error) error {
	for len(b) > 0 {
		f, rest, err := next(b)
		if err != nil {
			return err
		}
		if err := each(f); err != nil {
			return err
		}
		b = rest
	}
	return nil
}

func next(b []byte) (f field, rest []byte, err error) {
	tag, n := binary.Uvarint(b)
	if n <= 0 || tag>>3 == 0 || tag>>3 > math.MaxInt32 {
		return f, nil, errCut
	}
	b = b[n:]
	f = field{number: int(tag >> 3), wire: int(tag & 7)}
	switch f.wire {
	case wireVarint:
		f.bits, n = binary.Uvarint(b)
		if n <= 0 {
			return f, nil, errCut
		}
	case wireFixed64:
		if n = 8; len(b) < n {
			return f, nil, errCut
		}
		f.bits = binary.LittleEndian.Uint64(b)
	case wireFixed32:
		if n = 4; len(b) < n {
			return f, nil, errCut
		}
		f.bits = uint64(binary.LittleEndian.Uint32(b))
	case wireBytes:
		size, m := binary.Uvarint(b)
		if m <= 0 || size > uint64(len(b)-m) {
			return f, nil, errCut
		}
		n = m + int(size)
		f.bytes = b[m:n:n]
	default: // groups, which ONNX never had
		return f, nil, errForm
	}
	return f, b[n:], nil
}

// message returns the field's bytes.
func (f field) message() ([]byte, error) {
	if f.wire != wireBytes {
		return nil, errForm
	}
	return f.bytes, nil
}

// integer returns the field's number.
func (f field) integer() (int64, error) {
	if f.wire != wireVarint {
		return 0, errForm
	}
	return int64(f.bits), nil
}

// float returns the field's number.
func (f field) float() (float32, error) {
	if f.wire != wireFixed32 {
		return 0, errForm
	}
	return math.Float32frombits(uint32(f.bits)), nil
}

// Numbers may be packed, many in one field, or one in a field, as older writers do.
// Memory for them is counted before it is allocated.

func (r *reader) integers(to []int64, f field) ([]int64, error) {
	if f.wire != wireBytes {
		v, err := f.integer()
		if err == nil {
			err = r.countMemory(8)
		}
		return append(to, v), err
	}
	count := 0
	for _, b := range f.bytes {
		if b < 0x80 { // last byte of a number
			count++
		}
	}
	if err := r.countMemory(8 * count); err != nil {
		return nil, err
	}
	to = grown(to, count)
	for b := f.bytes; len(b) > 0; {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, errCut
		}
		to, b = append(to, int64(v)), b[n:]
	}
	return to, nil
}

func (r *reader) floats(to []float32, f field) ([]float32, error) {
	if f.wire != wireBytes {
		v, err := f.float()
		if err == nil {
			err = r.countMemory(4)
		}
		return append(to, v), err
	}
	b := f.bytes
	if len(b)%4 != 0 {
		return nil, errCut
	}
	if err := r.countMemory(len(b)); err != nil {
		return nil, err
	}
	to = grown(to, len(b)/4)
	for ; len(b) >= 4; b = b[4:] {
		to = append(to, math.Float32frombits(binary.LittleEndian.Uint32(b)))
	}
	return to, nil
}

func (r *reader) doubles(to []float64, f field) ([]float64, error) {
	b := f.bytes
	switch {
	case f.wire == wireFixed64:
		b = binary.LittleEndian.AppendUint64(nil, f.bits)
	case f.wire != wireBytes:
		return nil, errForm
	case len(b)%8 != 0:
		return nil, errCut
	}
	if err := r.countMemory(len(b)); err != nil {
		return nil, err
	}
	to = grown(to, len(b)/8)
	for ; len(b) >= 8; b = b[8:] {
		to = append(to, math.Float64frombits(binary.LittleEndian.Uint64(b)))
	}
	return to, nil
}

// integerList reads the elements of a list up to the first field that is something else. Each has its
// tag in front of it.
func (r *reader) integerList(to []int64, b []byte) ([]int64, []byte, error) {
	count := len(to)
	for tag := b[0]; len(b) > 0 && b[0] == tag; {
		v, n := uint64(0), 0
		if len(b) > 1 && b[1] < 0x80 {
			v, n = uint64(b[1]), 1
		} else if v, n = binary.Uvarint(b[1:]); n <= 0 {
			return nil, nil, errCut
		}
		to, b = append(to, int64(v)), b[1+n:]
	}
	return to, b, r.countMemory(8 * (len(to) - count))
}

// floatList is integerList for floats.
func (r *reader) floatList(to []float32, b []byte) ([]float32, []byte, error) {
	count := len(to)
	for tag := b[0]; len(b) > 0 && b[0] == tag; b = b[5:] {
		if len(b) < 5 {
			return nil, nil, errCut
		}
		to = append(to, math.Float32frombits(binary.LittleEndian.Uint32(b[1:])))
	}
	return to, b, r.countMemory(4 * (len(to) - count))
}

// grown makes room for more elements: exactly as many if the slice was empty, which is
// the usual case.
func grown[T any](s []T, more int) []T {
	if s == nil {
		return make([]T, 0, more)
	}
	return s
}

// text returns a copy of a field's text, so that the model does not keep the file in memory.
func (r *reader) text(f field) (string, error) {
	b, err := f.message()
	if err == nil {
		err = r.countMemory(textSize + len(b))
	}
	return string(b), err
}

// texts appends a text. The nodes of trees repeat a few texts very often, and these are copied once.
func (r *reader) texts(to []string, f field) ([]string, error) {
	if s, known := r.known[string(f.bytes)]; known && f.wire == wireBytes {
		return append(to, s), r.countMemory(textSize)
	}
	s, err := r.text(f)
	if len(r.known) < mostKnown && len(s) <= 16 {
		r.known[s] = s
	}
	return append(to, s), err
}

// mostKnown is the number of texts that are copied once.
const mostKnown = 32
