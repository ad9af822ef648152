// Package ort runs graphs with ONNX Runtime, which it loads at run time without cgo.
// Read DESIGN.md first.
package ort
