package onnx

import (
	"encoding/binary"
	"math"
)

// Numbers that may stand many to a field (packed), or one to a field, as older
// writers have it. Room for them is taken from the budget before it is made.

func (r *reader) integers(to []int64, f field) ([]int64, error) {
	if f.wire != wireBytes {
		v, err := f.integer()
		if err == nil {
			err = r.take(8)
		}
		return append(to, v), err
	}
	count := 0
	for _, b := range f.bytes {
		if b < 0x80 { // the last byte of a number
			count++
		}
	}
	if err := r.take(8 * count); err != nil {
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
			err = r.take(4)
		}
		return append(to, v), err
	}
	b := f.bytes
	if len(b)%4 != 0 {
		return nil, errCut
	}
	if err := r.take(len(b)); err != nil {
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
	if err := r.take(len(b)); err != nil {
		return nil, err
	}
	to = grown(to, len(b)/8)
	for ; len(b) >= 8; b = b[8:] {
		to = append(to, math.Float64frombits(binary.LittleEndian.Uint64(b)))
	}
	return to, nil
}

// grown has room for more: exactly, if it was empty, as it is for nearly every
// file.
func grown[T any](s []T, more int) []T {
	if s == nil {
		return make([]T, 0, more)
	}
	return s
}

// text is a field's, copied, so that nothing holds the file.
func (r *reader) text(f field) (string, error) {
	b, err := f.message()
	if err == nil {
		err = r.take(textSize + len(b))
	}
	return string(b), err
}

func (r *reader) texts(to []string, f field) ([]string, error) {
	s, err := r.text(f)
	return append(to, s), err
}
