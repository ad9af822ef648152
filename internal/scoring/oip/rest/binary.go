package rest

import (
	"strconv"

	"tidemill.dev/internal/scoring/oip"
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
	q.err = oip.FillRaw(g.name, t, data)
	if q.err != nil {
		return -1
	}
	return end
}
