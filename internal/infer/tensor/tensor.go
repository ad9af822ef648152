// Package tensor is what goes into a model and comes out: tables of numbers or
// texts, one row an event.
package tensor

// Type is what a tensor consists of. The values are those of ONNX.
type Type int32

// The types that models are fed with and answer in.
const (
	Float  Type = 1 // float32
	Int32  Type = 6
	Int64  Type = 7
	String Type = 8
	Bool   Type = 9
	Double Type = 11
)

// Any is a size that a model leaves open, as it does with its rows.
const Any = -1

// Spec is what a model says of an input or an output.
type Spec struct {
	Name  string
	Type  Type
	Shape []int // Any where the model leaves it open; the first is the rows
}

// Tensor is a table. Of its slices the one of its type counts: Floats for Float,
// Doubles for Double, Ints for the integers and Bool (0 and 1), Strings for String.
type Tensor struct {
	Type    Type
	Shape   []int
	Floats  []float32
	Doubles []float64
	Ints    []int64
	Strings []string
	// Text is memory of the tensor's own for Strings that could not stay where they
	// were read, because they had to be unescaped there.
	Text []byte
}
