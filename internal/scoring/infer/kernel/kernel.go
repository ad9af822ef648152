package kernel

import (
	"math/bits"
)

// variant is a set of instructions.
type variant uint8

const (
	scalar variant = iota
	avx2           // with FMA
)

// best is the variant that this processor supports.
var best = detect()

// Name returns the set of instructions in use: avx2 or scalar.
func Name() string { return best.String() }

func (v variant) String() string {
	if v == avx2 {
		return "avx2"
	}
	return "scalar"
}

// Activation is a function of one number. It is applied to rows, or together with a product.
type Activation uint8

// The activations.
const (
	None    Activation = iota
	Relu               // 0 for negative numbers; NaN stays
	Sigmoid            // 1/(1+exp(-x))
	Tanh
	Exp
)

// Apply changes x in place.
func (act Activation) Apply(x []float32) { act.apply(best, x) }

func (act Activation) apply(on variant, x []float32) {
	if on == scalar || len(x) == 0 {
		act.scalar(x)
		return
	}
	act.vector(x)
}

// Softmax replaces each row of n numbers by their exponentials, divided by the row's
// sum of exponentials.
func Softmax(rows, n int, x []float32) { softmax(best, rows, n, x) }

func softmax(on variant, rows, n int, x []float32) {
	for x = x[:rows*n]; len(x) > 0; x = x[n:] {
		if on == scalar {
			softmaxScalar(x[:n])
		} else {
			softmaxVector(x[:n])
		}
	}
}

// operation combines two rows, number by number.
type operation uint8

const (
	adding operation = iota
	subtracting
	multiplying
	dividing
)

// Add writes dst = a + b, number by number. dst may be a or b, and its length is the
// number of elements.
func Add(dst, a, b []float32) { adding.combine(best, dst, a, b) }

// Sub writes dst = a - b; see Add.
func Sub(dst, a, b []float32) { subtracting.combine(best, dst, a, b) }

// Mul writes dst = a * b; see Add.
func Mul(dst, a, b []float32) { multiplying.combine(best, dst, a, b) }

// Div writes dst = a / b; see Add.
func Div(dst, a, b []float32) { dividing.combine(best, dst, a, b) }

func (how operation) combine(on variant, dst, a, b []float32) {
	a, b = a[:len(dst)], b[:len(dst)]
	if on == scalar || len(dst) == 0 {
		how.scalar(dst, a, b)
		return
	}
	how.vector(dst, a, b)
}

// Filled finds the numbers of x that are not 0. It writes their positions to index and
// the numbers to value, and returns how many there are. If index is too short for them,
// it stops early and returns -1, so a dense row costs little more than a look at it.
func Filled(x []float32, index []int32, value []float32) int { return filled(best, x, index, value) }

func filled(on variant, x []float32, index []int32, value []float32) int {
	var masks [32]uint64 // one bit for each number
	n := 0
	for from := 0; from < len(x); from += 64 * len(masks) {
		part := x[from:min(from+64*len(masks), len(x))]
		used := masks[:(len(part)+63)/64]
		mask(on, part, used)
		all := n
		for _, m := range used {
			all += bits.OnesCount64(m)
		}
		if all > len(index) {
			return -1
		}
		for i, m := range used {
			for ; m != 0; m &= m - 1 {
				at := 64*i + bits.TrailingZeros64(m)
				index[n], value[n] = int32(from+at), part[at]
				n++
			}
		}
	}
	return n
}

// mask sets a bit for each number that is not 0. NaN is not 0.
func mask(on variant, x []float32, masks []uint64) {
	whole := 0
	if on != scalar {
		whole = len(x) / 64
		maskVector(x[:64*whole], masks)
	}
	for i := whole; i < len(masks); i++ {
		masks[i] = maskScalar(x[64*i : min(64*i+64, len(x))])
	}
}

func maskScalar(x []float32) (mask uint64) {
	for i, v := range x {
		if v != 0 {
			mask |= 1 << i
		}
	}
	return mask
}
