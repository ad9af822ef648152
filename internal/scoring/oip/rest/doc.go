// Package rest serves the Open Inference Protocol over HTTP: tensors as JSON, or as bytes after the
// JSON.
package rest
