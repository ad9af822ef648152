// Package history writes the outcomes of a scorer, with the events that were answered, as a file that a run
// gets as its input.
package history
