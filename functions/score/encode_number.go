package score

import (
	"math"
	"strconv"
)

// appendScore writes a number with six decimals. Scores are probabilities mostly:
// more digits would be noise, and cost what the whole answer does.
func appendScore(dst []byte, v float32) []byte {
	const million, most = 1e6, 1 << 32
	f := float64(v)
	if f < 0 {
		f = -f
	}
	if !(f < most) {
		return appendLarge(dst, v)
	}
	n := uint64(f*million + 0.5)
	if v < 0 && n > 0 {
		dst = append(dst, '-')
	}
	whole, part := n/million, uint32(n%million)
	if whole < 10 {
		dst = append(dst, byte('0'+whole))
	} else {
		dst = strconv.AppendUint(dst, whole, 10)
	}
	a, b, c := part/10000*2, part/100%100*2, part%100*2
	return append(dst, '.', pairs[a], pairs[a+1], pairs[b], pairs[b+1], pairs[c], pairs[c+1])
}

// appendLarge writes what six decimals say nothing about.
func appendLarge(dst []byte, v float32) []byte {
	if f := float64(v); !math.IsNaN(f) && !math.IsInf(f, 0) {
		return strconv.AppendFloat(dst, f, 'g', -1, 32)
	}
	return append(dst, "null"...)
}

// appendValue writes a number that is no score and so may be small: six decimals
// where they are at least four digits, else as many as it takes.
func appendValue(dst []byte, v float32) []byte {
	if v != 0 && v > -0.001 && v < 0.001 {
		return appendLarge(dst, v)
	}
	return appendScore(dst, v)
}

// pairs are the numbers below a hundred.
const pairs = "00010203040506070809" + "10111213141516171819" + "20212223242526272829" + "30313233343536373839" + "40414243444546474849" +
	"50515253545556575859" + "60616263646566676869" + "70717273747576777879" + "80818283848586878889" + "90919293949596979899"
