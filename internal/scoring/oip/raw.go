package oip

import (
	"encoding/binary"
	"math"
	"slices"
	"unicode/utf8"

	"tidemill.dev/broker/jsonscan"
	"tidemill.dev/internal/scoring/infer/tensor"
)

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
