// Package rpc is a gRPC server whose clients cannot take much memory before they are known. Its
// handlers get messages as bytes.
package rpc
