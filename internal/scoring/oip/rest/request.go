package rest

import (
	"tidemill.dev/broker/jsonscan"
	"tidemill.dev/internal/scoring/oip"
)

// question is one inference request and its answer. Its memory is used again by later requests.
type question struct {
	b      []byte // JSON of the request
	tail   []byte // bytes of binary tensors that are not read yet
	call   *oip.Call
	id     string
	binary bool   // whether outputs are binary that do not say it themselves
	forms  []int8 // form of each requested output, in the order of the request
	err    error  // first fault; nil if the JSON is not valid
	shape  []int
	names  []byte // memory of names with escapes
	answer []byte
	bytes  []byte // binary tensors of the answer
	mixed  bool   // whether the answer has a binary tensor
}

// Forms of an output.
const (
	formDefault int8 = iota
	formJSON
	formBinary
)

// keptAnswer is the greatest size of an answer's memory that a later request uses.
const keptAnswer = 1 << 18

// reset drops everything that points into the request, and large memory.
func (q *question) reset() {
	answer, bytes := q.answer[:0], q.bytes[:0]
	if cap(answer)+cap(bytes) > keptAnswer {
		answer, bytes = nil, nil
	}
	*q = question{forms: q.forms[:0], shape: q.shape[:0], names: q.names[:0], answer: answer, bytes: bytes}
}

const example = `{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,2]}]}`

// read reads the whole request.
func (q *question) read() error {
	end := q.object(jsonscan.SkipSpace(q.b, 0), 1, "an inference request", q.member)
	switch {
	case q.err != nil:
		return q.err
	case end < 0 || jsonscan.SkipSpace(q.b, end) != len(q.b):
		return badf("the body is not an inference request: it is not valid JSON; send one such as %s", example)
	case len(q.tail) > 0:
		return badf("the body has %d bytes after the binary tensors that the inputs name: check each binary_data_size and %s", len(q.tail), binaryHeader)
	}
	return nil
}

// fail notes the first fault and ends the reading.
func (q *question) fail(format string, args ...any) int {
	if q.err == nil {
		q.err = badf(format, args...)
	}
	return -1
}

// object calls member for each member of the object at i, with the index of its value. The function
// returns the value's end, or -1. An index of -1 means a fault everywhere in this file.
func (q *question) object(i, depth int, what string, member func(name string, i int) int) int {
	if i < 0 || i >= len(q.b) {
		return -1
	}
	if q.b[i] != '{' {
		return q.wrong(i, depth, "%s must be an object; send one such as %s", what, example)
	}
	i, more := jsonscan.Enter(q.b, i, '}', depth)
	for more {
		var name string
		name, i, q.names = jsonscan.Text(q.b, i, q.names)
		if i = jsonscan.SkipColon(q.b, i); i < 0 || i >= len(q.b) {
			return -1
		}
		if i = member(name, i); i < 0 {
			return -1
		}
		i, more = jsonscan.Next(q.b, i, '}')
	}
	return i
}

// list calls member for each member of the list at i.
func (q *question) list(i, depth int, what string, member func(i int) int) int {
	if i >= len(q.b) {
		return -1
	}
	if q.b[i] != '[' {
		return q.wrong(i, depth, "%s must be a list; send one such as %s", what, example)
	}
	i, more := jsonscan.Enter(q.b, i, ']', depth)
	for more {
		if i = member(i); i < 0 {
			return -1
		}
		i, more = jsonscan.Next(q.b, i, ']')
	}
	return i
}

// wrong notes that a value is of another kind than expected, if it is JSON at all.
func (q *question) wrong(i, depth int, format string, args ...any) int {
	if jsonscan.SkipValue(q.b, i, depth) < 0 {
		return -1
	}
	return q.fail("the body is not an inference request: "+format, args...)
}

// text reads a text.
func (q *question) text(i, depth int, what string, to *string) (end int) {
	if q.b[i] != '"' {
		return q.wrong(i, depth, "%s must be a text", what)
	}
	*to, end, q.names = jsonscan.Text(q.b, i, q.names)
	return end
}

// boolean reads true or false.
func (q *question) boolean(i, depth int, what string, to *bool) (end int) {
	*to = q.b[i] == 't'
	if end = jsonscan.SkipWord(q.b, i, "true"); end < 0 {
		end = jsonscan.SkipWord(q.b, i, "false")
	}
	if end < 0 {
		return q.wrong(i, depth, "%s must be true or false", what)
	}
	return end
}

// whole reads a whole number that is not negative.
func (q *question) whole(i, depth int, what string, to *int) (end int) {
	n := 0
	for end = i; end < len(q.b) && q.b[end]-'0' < 10; end++ {
		if n >= 1<<53 {
			return q.wrong(i, depth, "%s is too large", what)
		}
		n = n*10 + int(q.b[end]-'0')
	}
	if end == i || end < len(q.b) && (q.b[end] == '.' || q.b[end]|0x20 == 'e') || end > i+1 && q.b[i] == '0' {
		return q.wrong(i, depth, "%s must be a whole number from 0", what)
	}
	*to = n
	return end
}

// member reads a member of the request.
func (q *question) member(name string, i int) int {
	const depth = 1
	switch name {
	case "id":
		if end := jsonscan.SkipWord(q.b, i, "null"); end >= 0 {
			return end
		}
		return q.text(i, depth, "id", &q.id)
	case "inputs":
		return q.list(i, depth+1, "inputs", q.input)
	case "outputs":
		if end := jsonscan.SkipWord(q.b, i, "null"); end >= 0 {
			return end
		}
		return q.list(i, depth+1, "outputs", q.output)
	case "parameters":
		return q.object(i, depth+1, "parameters", func(name string, i int) int {
			if name == "binary_data_output" {
				return q.boolean(i, depth+1, name, &q.binary)
			}
			return jsonscan.SkipValue(q.b, i, depth+1)
		})
	}
	return jsonscan.SkipValue(q.b, i, depth)
}

// output reads a requested output.
func (q *question) output(i int) int {
	const depth = 3
	name, form := "", formDefault
	end := q.object(i, depth, "each of outputs", func(member string, i int) int {
		switch member {
		case "name":
			return q.text(i, depth, "the name of an output", &name)
		case "parameters":
			return q.object(i, depth+1, "parameters of an output", func(name string, i int) int {
				switch name {
				case "binary_data":
					form = formJSON
					if q.b[i] == 't' {
						form = formBinary
					}
					return q.boolean(i, depth+1, name, new(bool))
				case "classification", "shared_memory_region":
					return q.unsupported(i, name)
				}
				return jsonscan.SkipValue(q.b, i, depth+1)
			})
		}
		return jsonscan.SkipValue(q.b, i, depth)
	})
	if end < 0 {
		return -1
	}
	if q.err = q.call.Want(name); q.err != nil {
		return -1
	}
	q.forms = append(q.forms, form)
	return end
}

func (q *question) unsupported(i int, name string) int {
	return q.wrong(i, 4, "the parameter %s is not supported; leave it out", name)
}

// given is an input of the request.
type given struct {
	name, datatype string
	shape          bool
	data           int // index of its data; 0 if there is none yet
	size           int // bytes of its binary tensor; -1 if it has none
	read           bool
}

// input reads an input. Its data usually comes last, and is read at once. Data that comes before the
// shape is skipped and read afterwards.
func (q *question) input(i int) int {
	const depth = 3
	g := given{size: -1}
	q.shape = q.shape[:0]
	end := q.object(i, depth, "each of inputs", func(name string, i int) int {
		switch name {
		case "name", "datatype", "shape", "data":
			if g.read {
				return q.fail("input %.100q: it has %s twice", g.name, name)
			}
		}
		switch name {
		case "name":
			return q.text(i, depth, "the name of an input", &g.name)
		case "datatype":
			return q.text(i, depth, "the datatype of an input", &g.datatype)
		case "shape":
			g.shape, q.shape = true, q.shape[:0]
			return q.list(i, depth+1, "the shape of an input", func(i int) int {
				if len(q.shape) == mostDimensions {
					return q.fail("input %.100q: its shape has more than %d dimensions", g.name, mostDimensions)
				}
				q.shape = append(q.shape, 0)
				return q.whole(i, depth+1, "each of a shape", &q.shape[len(q.shape)-1])
			})
		case "data":
			if g.data = i; g.shape && g.name != "" && g.datatype != "" {
				g.read = true
				return q.readData(&g, len(q.b))
			}
		case "parameters":
			return q.object(i, depth+1, "parameters of an input", func(name string, i int) int {
				switch name {
				case "binary_data_size":
					return q.whole(i, depth+1, name, &g.size)
				case "shared_memory_region":
					return q.unsupported(i, name)
				}
				return jsonscan.SkipValue(q.b, i, depth+1)
			})
		}
		return jsonscan.SkipValue(q.b, i, depth)
	})
	switch {
	case end < 0:
		return -1
	case g.size >= 0 && g.data > 0:
		return q.fail("input %.100q has data and binary_data_size: give one of them", g.name)
	case g.size >= 0:
		return q.readBinary(&g, end)
	case !g.read && q.readData(&g, end) < 0:
		return -1
	}
	return end
}

// mostDimensions is the greatest number of dimensions of a shape.
const mostDimensions = 16
