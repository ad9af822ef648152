// Package protobuf answers the messages of the Open Inference Protocol over gRPC. It reads and
// writes them field by field, so that tensors are not copied, and a small message cannot make large
// objects. inference.proto describes the messages.
package protobuf
