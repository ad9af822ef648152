// Package kernel has the arithmetic of small models: a matrix product with bias and
// activation, and functions over rows. It has one implementation for AVX2 and one in
// plain Go, and chooses when the program starts.
//
// A row's answer does not depend on the other rows of its batch, because every sum is
// taken in the order of the weights. Scoring an event again, alone or in another batch,
// gives the same bits on the same kind of processor.
package kernel
