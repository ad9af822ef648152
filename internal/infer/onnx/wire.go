package onnx

import (
	"encoding/binary"
	"errors"
	"math"
)

// The ways in which a field is written.
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

// field is one of a message: its number, and what it holds, by the way it is
// written.
type field struct {
	number int
	wire   int
	bits   uint64 // of all but wireBytes
	bytes  []byte // of wireBytes; points into the file
}

// fields walks over a message.
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

// message is the field's bytes.
func (f field) message() ([]byte, error) {
	if f.wire != wireBytes {
		return nil, errForm
	}
	return f.bytes, nil
}

// integer is the field's number.
func (f field) integer() (int64, error) {
	if f.wire != wireVarint {
		return 0, errForm
	}
	return int64(f.bits), nil
}

// float is the field's number.
func (f field) float() (float32, error) {
	if f.wire != wireFixed32 {
		return 0, errForm
	}
	return math.Float32frombits(uint32(f.bits)), nil
}
