package kernel

import "math/bits"

// Filled finds the numbers of x that are not 0: it writes which they are and what
// they are, and says how many. It gives up, with -1, once there are more than index
// has room for: a row that is full costs little more than to look at it.
func Filled(x []float32, index []int32, value []float32) int { return filled(best, x, index, value) }

func filled(on variant, x []float32, index []int32, value []float32) int {
	var masks [32]uint64 // a bit a number
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

// mask sets a bit for each number that is not 0; NaN is not.
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
