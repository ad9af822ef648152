// Package scoring is the wing of all that answers with a model. Features takes
// a model's inputs out of an event's JSON; infer loads models and computes;
// serving keeps the champion's version ready and swaps it; oip is the Open
// Inference Protocol. The function on a stream is functions/score.
package scoring
