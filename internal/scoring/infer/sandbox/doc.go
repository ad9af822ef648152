// Package sandbox runs ONNX Runtime in a child process without credentials. Read DESIGN.md first.
package sandbox
