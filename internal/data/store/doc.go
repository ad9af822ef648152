// Package store stores bytes: content-addressed objects, trees of them, the commits and branches of
// datasets, and the logs and checkpoints of runs. It uses gocloud.dev/blob on a folder, in memory,
// or on a bucket that a URL names.
//
// DESIGN.md lists the keys of the store and the races that the code prevents.
package store
