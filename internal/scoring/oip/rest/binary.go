package rest

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"tidemill.dev/broker/jsonscan"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// The extension for binary tensors: the body is JSON, and then the bytes of the tensors that the JSON
// names, one after the other. Numbers are little-endian. A text has its length before it, in four
// bytes.

// binaryHeader has the length of the JSON. It is in requests and in answers with binary tensors.
const binaryHeader = "Inference-Header-Content-Length"

// split splits a body into its JSON and the binary tensors after it.
func split(header string, body []byte) (text, tail []byte, err error) {
	if header == "" {
		return body, nil, nil
	}
	n, err := strconv.Atoi(header)
	if err != nil || n < 0 || n > len(body) {
		return nil, nil, badf("the header %s is %.20q, and must be the length of the JSON before the binary tensors; the body has %d bytes", binaryHeader, header, len(body))
	}
	return body[:n], body[n:], nil
}

// readBinary reads an input from the bytes after the JSON. The input's JSON ends at end.
func (q *question) readBinary(g *given, end int) int {
	if g.size > len(q.tail) {
		return q.fail("input %.100q: binary_data_size is %d, and %d bytes follow the JSON; the header %s has the length of the JSON", g.name, g.size, len(q.tail), binaryHeader)
	}
	t, err := q.call.Input(g.name, g.datatype, q.shape, g.size) // each value takes at least one byte
	if err != nil {
		q.err = err
		return -1
	}
	data := q.tail[:g.size]
	q.tail = q.tail[g.size:]
	if t.Type == tensor.String {
		q.err = readTexts(g.name, t, data)
	} else if width := widthOf(t.Type); len(data) != t.Len()*width {
		q.err = badf("input %.100q: binary_data_size is %d, and %d values of %s take %d bytes", g.name, g.size, t.Len(), g.datatype, t.Len()*width)
	} else {
		readNumbers(t, data)
	}
	if q.err != nil {
		return -1
	}
	return end
}

// widthOf returns the bytes of a number.
func widthOf(t tensor.Type) int {
	switch t {
	case tensor.Bool:
		return 1
	case tensor.Float, tensor.Int32:
		return 4
	}
	return 8
}

func readNumbers(t *tensor.Tensor, data []byte) {
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
}

// readTexts reads texts that point into the data.
func readTexts(name string, t *tensor.Tensor, data []byte) error {
	for i := range t.Strings {
		if len(data) < 4 || uint64(binary.LittleEndian.Uint32(data)) > uint64(len(data)-4) {
			return badf("input %.100q: its binary tensor ends within text %d of %d; each has its length before it, in four bytes", name, i+1, len(t.Strings))
		}
		n := int(binary.LittleEndian.Uint32(data))
		if t.Strings[i] = jsonscan.AsText(data[4 : 4+n]); !utf8.ValidString(t.Strings[i]) {
			return badf("input %.100q: text %d of its binary tensor is not UTF-8", name, i+1)
		}
		data = data[4+n:]
	}
	if len(data) > 0 {
		return badf("input %.100q: its binary tensor has %d bytes after its %d texts", name, len(data), len(t.Strings))
	}
	return nil
}

// appendBinary appends a tensor's bytes.
func appendBinary(dst []byte, t *tensor.Tensor) []byte {
	dst = slices.Grow(dst, t.Len()*widthOf(t.Type))
	switch t.Type {
	case tensor.Float:
		for _, v := range t.Floats {
			dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(v))
		}
	case tensor.Double:
		for _, v := range t.Doubles {
			dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(v))
		}
	case tensor.Int32:
		for _, v := range t.Ints {
			dst = binary.LittleEndian.AppendUint32(dst, uint32(v))
		}
	case tensor.Int64:
		for _, v := range t.Ints {
			dst = binary.LittleEndian.AppendUint64(dst, uint64(v))
		}
	case tensor.Bool:
		for _, v := range t.Ints {
			dst = append(dst, byte(v))
		}
	default:
		for _, s := range t.Strings {
			dst = append(binary.LittleEndian.AppendUint32(dst, uint32(len(s))), s...)
		}
	}
	return dst
}
