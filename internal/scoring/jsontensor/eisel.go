package jsontensor

import (
	"math"
	"math/bits"
)

// nearest returns the float64 that is nearest to digits times 10 to the power of exp, by the algorithm
// of Eisel and Lemire (Number Parsing at a Gigabyte per Second, 2021). It returns false in the few cases
// in which 128 bits of the power do not decide, and for powers that are not in the table.
//
// The digits are shifted to 64 bits and multiplied with the power's first 64 bits. The product has 128
// bits, of which the upper 54 are the result with one bit more for rounding. The power is truncated, so
// the product may be too small by less than the digits. If that could carry into the upper bits, the
// power's next 64 bits are multiplied too.
func nearest(digits uint64, exp int32) (float64, bool) {
	i := int(exp) - leastPower
	if digits == 0 || i < 0 || i >= len(powers) {
		return 0, digits == 0
	}
	shift := bits.LeadingZeros64(digits)
	digits <<= shift
	high, low := bits.Mul64(digits, powers[i][0])
	if high&0x1FF == 0x1FF && low+digits < digits {
		nextHigh, nextLow := bits.Mul64(digits, powers[i][1])
		var carry uint64
		low, carry = bits.Add64(low, nextHigh, 0)
		high += carry
		if high&0x1FF == 0x1FF && low+1 == 0 && nextLow+digits < digits {
			return 0, false
		}
	}
	msb := high >> 63
	mantissa := high >> (msb + 9)
	if low == 0 && high&0x1FF == 0 && mantissa&3 == 1 {
		return 0, false // perhaps exactly between two floats
	}
	mantissa = (mantissa + mantissa&1) >> 1
	// The exponent of the power is floor(exp·log2(10)); 217706/2^16 is close enough for the table.
	e := uint64(217706*int64(exp)>>16+64+1023) - uint64(shift) - (1 - msb)
	if mantissa>>53 > 0 {
		mantissa >>= 1
		e++
	}
	return math.Float64frombits(e<<52 | mantissa&(1<<52-1)), true
}

// The powers of ten in the table. Numbers beyond them are rare, and strconv reads them.
const (
	leastPower = -64
	mostPower  = 64
)
