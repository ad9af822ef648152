// Package transfer copies files between a folder and a gateway, for agents and for `tidemill data`.
// It transfers only missing objects, several in parallel.
//
// A file is opened beneath the folder only, even if another process swaps a link meanwhile. A
// written file gets its name only when it is complete and its digest is right. Memory does not grow
// with the size of files.
package transfer
