// Package tensor has the inputs and outputs of models: tables of numbers or texts with
// one row for each event.
package tensor
