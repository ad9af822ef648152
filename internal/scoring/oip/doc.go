// Package oip serves models over the REST form of the Open Inference Protocol, version
// 2, as Triton, KServe and MLServer do. A request names a model, optionally a version,
// and has tensors as inputs.
package oip
