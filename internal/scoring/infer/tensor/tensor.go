package tensor

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
