package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strconv"

	"tidemill.dev/internal/scoring/infer/tensor"
	"tidemill.dev/internal/scoring/oip"
)

// reader reads a tensor's data: its values in one list, or nested like its shape.
type reader struct {
	name  string
	t     *tensor.Tensor
	json  *json.Decoder
	count int // number of values so far
	want  int
	depth int // depth of the lists around the values; 0 while it is unknown
}

// readData reads the values of a tensor whose type and shape are set.
func readData(name string, data []byte, t *tensor.Tensor, want int) error {
	r := &reader{name: name, t: t, json: json.NewDecoder(bytes.NewReader(data)), want: want}
	r.json.UseNumber()
	first, err := r.json.Token()
	if err != nil || first != json.Delim('[') {
		return badf("input %.100q: data must be a list", name)
	}
	if err := r.list(1); err != nil {
		return err
	}
	if r.count != want {
		return badf("input %.100q: data has %d values, and the shape %v has %d", name, r.count, t.Shape, want)
	}
	return nil
}

// list reads to the end of a list at some depth.
func (r *reader) list(depth int) error {
	n := 0
	for ; ; n++ {
		token, err := r.json.Token()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return badf("input %.100q: %v", r.name, err)
		}
		if token == json.Delim(']') {
			break
		}
		if token == json.Delim('[') {
			err = r.nested(depth)
		} else {
			err = r.value(token, depth)
		}
		if err != nil {
			return err
		}
	}
	if r.depth > 1 && n != r.t.Shape[depth-1] {
		return badf("input %.100q: a list of depth %d has %d members, and the shape is %v", r.name, depth, n, r.t.Shape)
	}
	return nil
}

// nested reads a list in a list. If lists are nested at all, they must match the shape.
func (r *reader) nested(depth int) error {
	if r.depth == depth || depth == len(r.t.Shape) || r.depth == 0 && len(r.t.Shape) < 2 {
		return badf("input %.100q: data is nested deeper than its shape %v", r.name, r.t.Shape)
	}
	if r.depth == 0 {
		r.depth = len(r.t.Shape)
	}
	return r.list(depth + 1)
}

func (r *reader) value(token json.Token, depth int) error {
	if r.depth == 0 {
		r.depth = depth
	}
	if depth != r.depth {
		return badf("input %.100q: data is nested in one place and not in another; its shape is %v", r.name, r.t.Shape)
	}
	if r.count++; r.count > r.want {
		return badf("input %.100q: data has more than the %d values of the shape %v", r.name, r.want, r.t.Shape)
	}
	if !r.addValue(token) {
		return badf("input %.100q: value %d of data is none of %s", r.name, r.count, oip.Datatype(r.t.Type))
	}
	return nil
}

// addValue adds a value if it has the tensor's type.
func (r *reader) addValue(token json.Token) bool {
	switch r.t.Type {
	case tensor.String:
		s, ok := token.(string)
		r.t.Strings = append(r.t.Strings, s)
		return ok
	case tensor.Bool:
		b, ok := token.(bool)
		n := int64(0)
		if b {
			n = 1
		}
		r.t.Ints = append(r.t.Ints, n)
		return ok
	}
	n, ok := token.(json.Number)
	return ok && r.number(string(n))
}

func (r *reader) number(text string) bool {
	switch r.t.Type {
	case tensor.Float:
		f, err := strconv.ParseFloat(text, 32)
		r.t.Floats = append(r.t.Floats, float32(f))
		return err == nil
	case tensor.Double:
		f, err := strconv.ParseFloat(text, 64)
		r.t.Doubles = append(r.t.Doubles, f)
		return err == nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	r.t.Ints = append(r.t.Ints, n)
	return err == nil && (r.t.Type == tensor.Int64 || n >= math.MinInt32 && n <= math.MaxInt32)
}
