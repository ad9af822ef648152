// Package oip answers by the Open Inference Protocol, version 2, as Triton, KServe and MLServer do.
// A call names a model, optionally a version, and has tensors as inputs. The package knows no
// transport: rest has HTTP. Read DESIGN.md first.
package oip
