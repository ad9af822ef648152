// Package fold computes the state of runs and models from their facts: pure functions
// of the order on one partition of the log.
package fold
