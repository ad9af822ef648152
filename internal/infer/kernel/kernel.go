// Package kernel is the arithmetic of small models: a matrix product with what
// comes behind it, and functions over rows. It is written for the instructions
// that this processor has; the choice is made once, when the program starts.
//
// A row's answer does not depend on the rows beside it: products are summed in the
// order of the weights, whatever the batch. Scoring an event again, alone or among
// others, answers the same bits on the same kind of processor.
package kernel

// variant is a set of instructions.
type variant uint8

const (
	scalar variant = iota
	avx2           // with FMA
	avx512         // F, VL, DQ and BW
)

// best is what this processor has.
var best = detect()

// Name says which instructions are used: avx512, avx2 or scalar.
func Name() string { return best.String() }

func (v variant) String() string {
	switch v {
	case avx512:
		return "avx512"
	case avx2:
		return "avx2"
	}
	return "scalar"
}
