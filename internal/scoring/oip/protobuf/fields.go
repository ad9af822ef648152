package protobuf

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"tidemill.dev/broker/jsonscan"
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
