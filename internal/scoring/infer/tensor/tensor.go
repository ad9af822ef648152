package tensor

import "slices"

// Type is the type of a tensor's values, numbered as in ONNX.
type Type int32

// Types of inputs and outputs.
const (
	Float  Type = 1 // float32
	Int32  Type = 6
	Int64  Type = 7
	String Type = 8
	Bool   Type = 9
	Double Type = 11
)

// Any is a size that a model leaves open, such as the number of rows.
const Any = -1

// Spec is a model's declaration of an input or an output.
type Spec struct {
	Name  string
	Type  Type
	Shape []int // Any where the model leaves a size open; the first is the number of rows
}

// Tensor is a table. Its type determines which slice is used: Floats for Float, Doubles
// for Double, Ints for the integers and Bool (0 and 1), Strings for String.
type Tensor struct {
	Type    Type
	Shape   []int
	Floats  []float32
	Doubles []float64
	Ints    []int64
	Strings []string
	// Text is the tensor's own memory for Strings that had to be unescaped and so
	// cannot point into the input.
	Text []byte
}

// Budget limits the memory of runs. A run takes bytes before it makes a table, and the caller returns
// all of them after it has used the answer. An error means that there is no room for the table.
type Budget interface{ Take(bytes int64) error }

// Resize sets the number of values. It keeps the existing values, and allocates only if the tensor has
// no memory for as many.
func (t *Tensor) Resize(n int) {
	switch t.Type {
	case Float:
		t.Floats = sized(t.Floats, n)
	case Double:
		t.Doubles = sized(t.Doubles, n)
	case String:
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

// Len returns the number of values.
func (t *Tensor) Len() int {
	switch t.Type {
	case Float:
		return len(t.Floats)
	case Double:
		return len(t.Doubles)
	case String:
		return len(t.Strings)
	}
	return len(t.Ints)
}

// Cap returns the number of values for which the tensor has memory.
func (t *Tensor) Cap() int {
	switch t.Type {
	case Float:
		return cap(t.Floats)
	case Double:
		return cap(t.Doubles)
	case String:
		return cap(t.Strings)
	}
	return cap(t.Ints)
}
