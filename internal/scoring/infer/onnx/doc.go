// Package onnx reads ONNX files: a graph of operators and its weights.
//
// A file is a protocol buffers message. This package reads the fields that describe a
// graph and skips unknown ones, as all readers of such messages do. Files come from any
// trainer, so the package trusts nothing in them: it checks sizes before it allocates,
// and the memory that a file may use is bounded by its length.
package onnx
