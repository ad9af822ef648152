package protobuf

import (
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"tidemill.dev/broker/jsonscan"
	"tidemill.dev/internal/scoring/infer/tensor"
	"tidemill.dev/internal/scoring/oip"
)

// fields reads a message field by field, without an allocation.
type fields struct {
	rest   []byte
	number protowire.Number
	kind   protowire.Type
	value  uint64 // value of a varint or of a number of fixed size
	bytes  []byte // text, bytes, message or packed numbers
	failed bool   // message is cut off or invalid
}

// next reads the next field. It returns false at the end, and if the message is invalid.
func (f *fields) next() bool {
	if len(f.rest) == 0 || f.failed {
		return false
	}
	number, kind, n := protowire.ConsumeTag(f.rest)
	if n < 0 {
		f.failed = true
		return false
	}
	f.number, f.kind, f.rest = number, kind, f.rest[n:]
	switch kind {
	case protowire.VarintType:
		f.value, n = protowire.ConsumeVarint(f.rest)
	case protowire.Fixed32Type:
		var v uint32
		v, n = protowire.ConsumeFixed32(f.rest)
		f.value = uint64(v)
	case protowire.Fixed64Type:
		f.value, n = protowire.ConsumeFixed64(f.rest)
	case protowire.BytesType:
		f.bytes, n = protowire.ConsumeBytes(f.rest)
	default: // proto3 has no groups
		n = -1
	}
	if n < 0 {
		f.failed = true
		return false
	}
	f.rest = f.rest[n:]
	return true
}

// is reports whether the field has a number and holds bytes.
func (f *fields) is(number protowire.Number) bool {
	return f.number == number && f.kind == protowire.BytesType
}

// end returns an error if the message is invalid.
func (f *fields) end(what string) error {
	if f.failed {
		return oip.Errorf(oip.Invalid, "%s is not a valid message of the Open Inference Protocol", what)
	}
	return nil
}

// text returns the field as text, which shares the memory of the message.
func (f *fields) text(what string) (string, error) {
	if !utf8.Valid(f.bytes) {
		return "", oip.Errorf(oip.Invalid, "%s is not UTF-8", what)
	}
	return jsonscan.AsText(f.bytes), nil
}

// names are the first two texts of a small request.
type names struct{ first, second string }

func readNames(message []byte) (n names, err error) {
	f := fields{rest: message}
	for f.next() && err == nil {
		switch {
		case f.is(1):
			n.first, err = f.text("a name")
		case f.is(2):
			n.second, err = f.text("a version or name")
		}
	}
	if err == nil {
		err = f.end("the request")
	}
	return n, err
}

func appendText(to []byte, number protowire.Number, text string) []byte {
	if text == "" {
		return to
	}
	return protowire.AppendString(protowire.AppendTag(to, number, protowire.BytesType), text)
}

func appendBool(to []byte, number protowire.Number, value bool) []byte {
	if !value {
		return to
	}
	return protowire.AppendVarint(protowire.AppendTag(to, number, protowire.VarintType), 1)
}

// appendHead begins a field of the given size.
func appendHead(to []byte, number protowire.Number, size int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(to, number, protowire.BytesType), uint64(size))
}

// appendNested appends a message that fill appends, after it has made room for the size.
func appendNested(to []byte, number protowire.Number, fill func([]byte) []byte) []byte {
	to = protowire.AppendTag(to, number, protowire.BytesType)
	at := len(to)
	to = fill(append(to, 0))
	size := len(to) - at - 1
	extra := protowire.SizeVarint(uint64(size)) - 1
	if extra > 0 { // the size needs more than one byte
		to = append(to, make([]byte, extra)...)
		copy(to[at+1+extra:], to[at+1:at+1+size])
	}
	protowire.AppendVarint(to[:at], uint64(size))
	return to
}

// appendShape appends the sizes of a tensor.
func appendShape(to []byte, number protowire.Number, shape []int) []byte {
	size := 0
	for _, n := range shape {
		size += protowire.SizeVarint(uint64(n))
	}
	if size == 0 {
		return to
	}
	to = appendHead(to, number, size)
	for _, n := range shape {
		to = protowire.AppendVarint(to, uint64(n))
	}
	return to
}

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
