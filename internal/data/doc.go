// Package data is the wing of all that Tidemill keeps. The ledger folds the
// facts into the state of every run and model; the store holds files, commits,
// logs and checkpoints; transfer moves files between a run and the gateway.
// Nothing here decides what should happen next: it records what has happened.
package data
