// Package scoring is the wing for everything that answers with a model. features reads a
// model's inputs from an event's JSON, and jsontensor reads and writes their values. infer loads
// models and computes. serving keeps the champion's version ready and swaps it. oip is the Open
// Inference Protocol. The function on a stream is functions/score.
package scoring
