// Package store stores bytes: content-addressed objects, trees of them, the commits and branches of
// datasets, and the logs and checkpoints of runs. It keeps them in a folder, or in a bucket of S3 or
// of a server that speaks S3.
//
// DESIGN.md lists the keys of the store and the races that the code prevents.
package store
