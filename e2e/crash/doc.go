// Package crash stops a Tidemill before and after each write on the way from two
// events to the ends of their runs, and from there to the champion of the model
// that they made, starts it again, and holds what came of it
// against what must always hold: exactly one run's effects for each, and nothing
// lost. A stop in good order is held to less trouble still.
package crash
