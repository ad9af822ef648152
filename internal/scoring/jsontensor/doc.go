// Package jsontensor reads the numbers and texts of JSON into tensors, and writes them, without
// allocation. Scorers, /v2 and /score use it.
//
// Numbers are the nearest ones, the same as those of strconv. In addition, true and false are 1 and 0
// where numbers are wanted.
package jsontensor
