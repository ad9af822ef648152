// Package wire encodes and decodes the Kafka requests and record batches of the hot path.
// It does no I/O and checks every byte of its input.
package wire
