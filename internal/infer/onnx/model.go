// Package onnx reads ONNX files: a graph of operators and its weights.
//
// A file is a message of protocol buffers, of which this package reads what a
// graph consists of, and passes over what it does not know, as every reader of
// such messages does. Files come from whoever trains, so nothing in them is
// believed: sizes are checked before anything is made, and the memory that a file
// may ask for is bounded by its own length.
package onnx

import (
	"errors"

	"tidemill.dev/internal/infer/tensor"
)

// ErrUnsupported says that a graph is sound, as far as was read, but that this
// engine does not take it. It names the operator.
var ErrUnsupported = errors.New("is not supported by this engine")

// Model is an ONNX file.
type Model struct {
	IR              int64
	Opsets          map[string]int64 // by domain; "" is ONNX's own
	Inputs, Outputs []tensor.Spec    // inputs without the weights
	Nodes           []Node           // in an order in which each comes behind what it needs
	// Weights have no numbers if they are of a type that tensor has no name for.
	Weights   map[string]*tensor.Tensor
	Metadata  map[string]string
	Functions []string // operators that the file defines itself, as domain.name
}

// Node is an operator with its inputs and outputs.
type Node struct {
	Name, Op, Domain string
	Inputs, Outputs  []string // empty is an optional one that is left out
	Attributes       map[string]Attribute
}

// The types of attributes that are read. One of another type, such as the graph of
// a loop, has its type and nothing else.
const (
	AttributeFloat  = 1
	AttributeInt    = 2
	AttributeText   = 3
	AttributeTensor = 4
	AttributeFloats = 6
	AttributeInts   = 7
	AttributeTexts  = 8
)

// Attribute is a setting of an operator.
type Attribute struct {
	Type   int // AttributeProto.AttributeType
	Float  float32
	Int    int64
	Text   string
	Tensor *tensor.Tensor
	Floats []float32
	Ints   []int64
	Texts  []string
}

// standard is the name of ONNX's own domain, which files write in two ways.
const standard = "ai.onnx"

// domain is the one way in which we do.
func domain(name string) string {
	if name == standard {
		return ""
	}
	return name
}
