// Package fold computes the state of runs and models from their facts. Its functions are
// pure: the result depends only on the order of the facts on one partition of the log.
package fold
