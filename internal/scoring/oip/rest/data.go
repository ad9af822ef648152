package rest

import (
	"strconv"

	"tidemill.dev/broker/jsonscan"
	"tidemill.dev/internal/scoring/infer/tensor"
	"tidemill.dev/internal/scoring/jsontensor"
	"tidemill.dev/internal/scoring/oip"
)

// readData reads the data of an input into its tensor: the values in one list, or nested like the
// shape. The data ends before limit.
func (q *question) readData(g *given, limit int) int {
	// Each value takes at least two bytes, with its separator.
	t, err := q.call.Input(g.name, g.datatype, q.shape, (limit-g.data)/2+1)
	if err != nil {
		q.err = err
		return -1
	}
	if g.data == 0 {
		return q.fail("input %.100q: data must be a list, and it is missing", g.name)
	}
	if end := q.values(t, g.data); end >= 0 {
		return end
	}
	if q.err = explain(q.b, g.name, t, g.data); q.err == nil {
		return -1 // not JSON
	}
	return -1
}

// values reads the data at i into a tensor.
func (q *question) values(t *tensor.Tensor, i int) int {
	if q.b[i] != '[' {
		return -1
	}
	if at := jsonscan.SkipSpace(q.b, i+1); len(t.Shape) > 1 && at < len(q.b) && q.b[at] == '[' {
		return q.nested(t, 0, i, 0)
	}
	return q.row(t, i, 0, t.Len())
}

// nested reads the values of a dimension and of those below it, from the position at on.
func (q *question) nested(t *tensor.Tensor, dim, i, at int) int {
	if i >= len(q.b) || q.b[i] != '[' {
		return -1
	}
	size := t.Shape[dim]
	if dim == len(t.Shape)-1 {
		return q.row(t, i, at, at+size)
	}
	width := 1
	for _, n := range t.Shape[dim+1:] {
		width *= n
	}
	i, more := jsonscan.Enter(q.b, i, ']', dim+1)
	n := 0
	for ; more; n++ {
		if n == size {
			return -1
		}
		if i = q.nested(t, dim+1, i, at+n*width); i < 0 {
			return -1
		}
		i, more = jsonscan.Next(q.b, i, ']')
	}
	if n != size {
		return -1
	}
	return i
}

// row reads a list of values into the positions from at to limit.
func (q *question) row(t *tensor.Tensor, i, at, limit int) int {
	n, end := jsontensor.Values(q.b, i+1, t, at, limit)
	if end < 0 || n != limit-at || q.b[end-1] != ']' {
		return -1
	}
	return end
}

// explain says why data does not fit a tensor. It reads the data again, value by value. The error is
// nil if the data is not JSON.
func explain(b []byte, name string, t *tensor.Tensor, i int) error {
	if jsonscan.SkipValue(b, i, 3) < 0 {
		return nil
	}
	if b[i] != '[' {
		return badf("input %.100q: data must be a list", name)
	}
	w := &walk{b: b, name: name, shape: t.Shape, one: tensor.Tensor{Type: t.Type}}
	w.one.Resize(1)
	if _, err := w.list(i, 1); err != nil {
		return err
	}
	return badf("input %.100q: data has %d values, and the shape %v has %d", name, w.count, t.Shape, t.Len())
}

// walk visits the values of data that is JSON.
type walk struct {
	b     []byte
	name  string
	shape []int
	one   tensor.Tensor
	count int // number of values so far
	depth int // depth of the lists around the values; 0 while it is unknown
}

func (w *walk) list(i, depth int) (end int, err error) {
	i, more := jsonscan.Enter(w.b, i, ']', depth)
	n := 0
	for ; more; n++ {
		if w.b[i] == '[' {
			i, err = w.nested(i, depth)
		} else {
			i, err = w.value(i, depth)
		}
		if err != nil {
			return 0, err
		}
		i, more = jsonscan.Next(w.b, i, ']')
	}
	if w.depth > 1 && n != w.shape[depth-1] {
		return 0, badf("input %.100q: a list of depth %d has %d members, and the shape is %v", w.name, depth, n, w.shape)
	}
	return i, nil
}

// nested visits a list in a list. If lists are nested at all, they must match the shape.
func (w *walk) nested(i, depth int) (end int, err error) {
	if w.depth == depth || depth >= len(w.shape) {
		return 0, badf("input %.100q: data is nested deeper than its shape %v", w.name, w.shape)
	}
	w.depth = len(w.shape)
	return w.list(i, depth+1)
}

func (w *walk) value(i, depth int) (end int, err error) {
	if w.depth == 0 {
		w.depth = depth
	}
	if depth != w.depth {
		return 0, badf("input %.100q: data is nested in one place and not in another; its shape is %v", w.name, w.shape)
	}
	w.count++
	end = jsonscan.SkipValue(w.b, i, depth)
	if jsontensor.Value(w.b, i, &w.one, 0) != end {
		return 0, badf("input %.100q: value %d of data is none of %s", w.name, w.count, oip.Datatype(w.one.Type))
	}
	return end, nil
}

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

// answerValue is the memory of a value of an answer, twice, because the text grows by copies.
const answerValue = 32

// write writes the outputs of a call into the question's memory: the JSON into answer, the binary
// tensors into bytes.
func (q *question) write() error {
	if err := q.call.Take(q.call.Values(), answerValue); err != nil {
		return err
	}
	dst := append(q.answer[:0], `{"model_name":`...)
	dst = jsontensor.AppendText(dst, q.call.Ref().Model)
	dst = append(dst, `,"model_version":"`...)
	dst = strconv.AppendInt(dst, int64(q.call.Ref().Version), 10)
	dst = append(dst, '"')
	if q.id != "" {
		dst = jsontensor.AppendText(append(dst, `,"id":`...), q.id)
	}
	dst = append(dst, `,"outputs":[`...)
	n := 0
	for s, t := range q.call.Outputs {
		if n > 0 {
			dst = append(dst, ',')
		}
		dst = jsontensor.AppendText(append(dst, `{"name":`...), s.Name)
		dst = append(dst, `,"shape":[`...)
		for i, size := range t.Shape {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = strconv.AppendInt(dst, int64(size), 10)
		}
		dst = append(dst, `],"datatype":"`...)
		dst = append(dst, oip.Datatype(t.Type)...)
		if q.isBinary(n) {
			before := len(q.bytes)
			q.mixed = true
			q.bytes = oip.AppendRaw(q.bytes, t)
			dst = append(dst, `","parameters":{"binary_data_size":`...)
			dst = strconv.AppendInt(dst, int64(len(q.bytes)-before), 10)
			dst = append(dst, "}}"...)
		} else {
			finite := false
			dst, finite = jsontensor.Append(append(dst, `","data":`...), t)
			if !finite {
				return oip.Errorf(oip.Broken, "the model's answer %q contains NaN or infinity, which JSON cannot express: request it with the parameter binary_data", s.Name)
			}
			dst = append(dst, '}')
		}
		n++
	}
	if dst = append(dst, "]}"...); !q.mixed {
		dst = append(dst, '\n')
	}
	q.answer = dst
	return nil
}

// isBinary reports whether the output at a place of the answer is binary.
func (q *question) isBinary(n int) bool {
	if n < len(q.forms) && q.forms[n] != formDefault {
		return q.forms[n] == formBinary
	}
	return q.binary
}
