// Package follow reads streams without a consumer group, so every process gets
// the whole stream and no group's offsets move.
//
// A [Follower] keeps a fold in memory up to date: it reads a stream to its end, continues
// with new events, and opens the stream again after a failure. A [Reader] reads once,
// from a position that a person or an earlier reader gave, and returns batches in the
// order of time. [Place] says how far a stream has been read.
package follow
