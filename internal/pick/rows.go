package pick

import (
	"math"
	"slices"

	"tidemill.dev/internal/infer/tensor"
)

// Begin makes tensors ready for up to rows rows. What was read into them before
// may be overwritten from now on.
func (p *Plan) Begin(in []tensor.Tensor, rows int) {
	for i := range p.slots {
		s, t := &p.slots[i], &in[i]
		t.Type = s.Type
		t.Shape = append(t.Shape[:0], s.Shape...)
		t.Shape[0] = rows
		t.Text = t.Text[:0]
		resize(t, max(0, rows*width(t)))
	}
}

// End cuts the tensors to the rows that were read.
func (p *Plan) End(in []tensor.Tensor, rows int) {
	for i := range p.slots {
		t := &in[i]
		t.Shape[0] = rows
		for j, n := range t.Shape {
			t.Shape[j] = max(n, 0) // no event has said it
		}
		resize(t, rows*width(t))
	}
}

// width is how many values a row has, negative if no event has said it yet.
func width(t *tensor.Tensor) int {
	n := 1
	for _, size := range t.Shape[1:] {
		if size < 0 {
			return -1
		}
		n *= size
	}
	return n
}

// resize makes room for n values and keeps those that there are.
func resize(t *tensor.Tensor, n int) {
	switch t.Type {
	case tensor.Float:
		t.Floats = sized(t.Floats, n)
	case tensor.Double:
		t.Doubles = sized(t.Doubles, n)
	case tensor.String:
		t.Strings = sized(t.Strings, n)
	default:
		t.Ints = sized(t.Ints, n)
	}
}

func sized[T any](s []T, n int) []T {
	if n > cap(s) {
		s = slices.Grow(s, n-len(s))
	}
	return s[:n]
}

// size is how many values there is room for.
func size(t *tensor.Tensor) int {
	switch t.Type {
	case tensor.Float:
		return len(t.Floats)
	case tensor.Double:
		return len(t.Doubles)
	case tensor.String:
		return len(t.Strings)
	}
	return len(t.Ints)
}

// room is how many values there is room for without asking for more.
func room(t *tensor.Tensor) int {
	switch t.Type {
	case tensor.Float:
		return cap(t.Floats)
	case tensor.Double:
		return cap(t.Doubles)
	case tensor.String:
		return cap(t.Strings)
	}
	return cap(t.Ints)
}

// bounds are those of a type of integers.
func bounds(t tensor.Type) (low, high int64) {
	switch t {
	case tensor.Bool:
		return 0, 1
	case tensor.Int32:
		return math.MinInt32, math.MaxInt32
	}
	return math.MinInt64, math.MaxInt64
}
