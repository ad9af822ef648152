// Package follow reads streams without a consumer group, so every process gets
// the whole stream and no group's offsets move.
//
// A [Follower] keeps a fold in memory up to date: it reads a stream to its end,
// goes on for ever, and opens the stream again after a failure. A [Reader] reads
// once, from a place that a person or an earlier reader named, and returns
// batches in the order of time. [Place] is how far a stream has been read.
package follow
