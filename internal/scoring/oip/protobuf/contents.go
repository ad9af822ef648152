package protobuf

import (
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"tidemill.dev/broker/jsonscan"
	"tidemill.dev/internal/scoring/infer/tensor"
	"tidemill.dev/internal/scoring/oip"
)

// fieldOf returns the field of InferTensorContents for a datatype, and the least number of bytes of
// a value in it.
func fieldOf(datatype string) (number protowire.Number, least int) {
	switch datatype {
	case "BOOL":
		return 1, 1
	case "INT32":
		return 2, 1
	case "INT64":
		return 3, 1
	case "FP32":
		return 6, 4
	case "FP64":
		return 7, 8
	}
	return 8, 2 // BYTES; a tag and a length
}

// fillContents fills a tensor from InferTensorContents, which must have as many values as the tensor.
func fillContents(name string, t *tensor.Tensor, contents []byte) error {
	number, _ := fieldOf(oip.Datatype(t.Type))
	w := writer{t: t, size: t.Len()}
	f := fields{rest: contents}
	for f.next() {
		if f.number != number {
			return oip.Errorf(oip.Invalid, "input %q: its contents have values of another datatype than %s", name, oip.Datatype(t.Type))
		}
		if f.kind == protowire.BytesType && t.Type != tensor.String {
			f.failed = !w.packed(f.bytes)
			continue
		}
		f.failed = !w.one(&f)
	}
	if f.failed {
		return oip.Errorf(oip.Invalid, "input %q: its contents are not a valid message", name)
	}
	if w.n != w.size {
		return oip.Errorf(oip.Invalid, "input %q: its contents have %d values, and its shape has %d", name, w.n, w.size)
	}
	return nil
}

// writer sets the values of a tensor, one after the other. It counts the values beyond the last.
type writer struct {
	t       *tensor.Tensor
	n, size int
}

// packed sets values that are stored together. It returns false if the bytes are invalid.
func (w *writer) packed(data []byte) bool {
	switch w.t.Type {
	case tensor.Float:
		for ; len(data) >= 4; data = data[4:] {
			v, _ := protowire.ConsumeFixed32(data)
			w.set(uint64(v))
		}
	case tensor.Double:
		for ; len(data) >= 8; data = data[8:] {
			v, _ := protowire.ConsumeFixed64(data)
			w.set(v)
		}
	default:
		for len(data) > 0 {
			v, n := protowire.ConsumeVarint(data)
			if n < 0 {
				return false
			}
			w.set(v)
			data = data[n:]
		}
	}
	return len(data) == 0
}

// one sets the value of a field that has one value. It returns false for another kind of field.
func (w *writer) one(f *fields) bool {
	kind := protowire.VarintType
	switch w.t.Type {
	case tensor.Float:
		kind = protowire.Fixed32Type
	case tensor.Double:
		kind = protowire.Fixed64Type
	case tensor.String:
		if w.n < w.size {
			w.t.Strings[w.n] = jsonscan.AsText(f.bytes)
		}
		w.n++
		return f.kind == protowire.BytesType && utf8.Valid(f.bytes)
	}
	w.set(f.value)
	return f.kind == kind
}

func (w *writer) set(v uint64) {
	if w.n < w.size {
		switch w.t.Type {
		case tensor.Float:
			w.t.Floats[w.n] = math.Float32frombits(uint32(v))
		case tensor.Double:
			w.t.Doubles[w.n] = math.Float64frombits(v)
		case tensor.Int32:
			w.t.Ints[w.n] = int64(int32(v))
		case tensor.Bool:
			w.t.Ints[w.n] = 0
			if v != 0 {
				w.t.Ints[w.n] = 1
			}
		default:
			w.t.Ints[w.n] = int64(v)
		}
	}
	w.n++
}

// contentsLength is the length of a tensor's values in InferTensorContents, without their tag.
func contentsLength(t *tensor.Tensor) int {
	switch t.Type {
	case tensor.Float, tensor.Double, tensor.Bool:
		return t.Len() * oip.RawSize(t.Type)
	}
	n := 0
	for _, v := range t.Ints {
		n += protowire.SizeVarint(uint64(v))
	}
	return n
}

// appendContents appends InferTensorContents.
func appendContents(to []byte, t *tensor.Tensor) []byte {
	number, _ := fieldOf(oip.Datatype(t.Type))
	if t.Type == tensor.String {
		for _, s := range t.Strings {
			to = protowire.AppendString(protowire.AppendTag(to, number, protowire.BytesType), s)
		}
		return to
	}
	to = appendHead(to, number, contentsLength(t))
	if t.Type == tensor.Int32 || t.Type == tensor.Int64 {
		for _, v := range t.Ints {
			to = protowire.AppendVarint(to, uint64(v))
		}
		return to
	}
	return oip.AppendRaw(to, t)
}
