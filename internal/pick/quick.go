package pick

import (
	"math"
	"math/bits"
)

// quick is float for numbers as they mostly are, which take a third of the time
// that any number takes.
func quick(b []byte, i int) (f float32, end int) {
	if f, end = fraction(b, i); end >= 0 {
		return f, end
	}
	return float(b, i)
}

// shorts reads numbers of up to seven digits and dots, as most are, with a comma
// behind each, as many as follow each other. It looks at the eight bytes that begin
// with a number: it finds where the digits end, takes the dot out from between
// them, and divides once, which rounds right.
func shorts(b []byte, i int, dst []float32) (n, end int) {
	for n < len(dst) && i+9 <= len(b) {
		if b[i] == ' ' {
			i++
		}
		w := word(b, i)
		digits := w ^ '0'*ones
		others := (digits + 0x76*ones | digits) & highs
		k := bits.TrailingZeros64(others) / 8
		if k-1 > 6 || byte(digits) == 0 && k > 1 { // none, too many, or a zero before others
			return n, i
		}
		stop := byte(w >> (8 * k))
		fraction := 0
		if stop == '.' {
			end := bits.TrailingZeros64(others&(others-1)) / 8
			whole := uint64(1)<<(8*k) - 1
			digits = digits&whole | digits>>8&^whole
			fraction, k = end-k-1, end-1
			if fraction == 0 || end == 8 {
				return n, i
			}
			stop = byte(w >> (8 * end))
			i++
		}
		if stop != ',' {
			return n, i - min(fraction, 1)
		}
		dst[n] = float32(int32(eight(digits<<(64-8*k)))) / pow10f[fraction]
		n, i = n+1, i+k+1
	}
	return n, i
}

// fraction reads one digit, a dot and any digits, as programs write what lies
// between zero and one. The length of such numbers is what a processor guesses
// wrong, so there is no branch for it. The product is a few units of a float64 off
// at most; where that can decide how it is rounded it is left to others.
func fraction(b []byte, i int) (float32, int) {
	if i+27 > len(b) || b[i]-'0' > 9 || b[i+1] != '.' {
		return 0, -1
	}
	first, k := run(b, i+2)
	second, l := run(b, i+10)
	l &= -(k >> 3) // none unless the first are eight
	v := uint64(b[i]-'0')*pow10u[k] + eight(first<<(64-8*k))
	v = v*pow10u[l] + eight(second<<(64-8*l))
	n := k + l
	end := i + 2 + n
	if n == 16 {
		_, more := run(b, end)
		if end += more; more == 8 || v < 1e15 {
			return 0, -1 // what is left out may count
		}
	}
	f := float64(int64(v)) * tenths[n]
	if n == 0 || b[end]|0x20 == 'e' || !rounds(f) {
		return 0, -1
	}
	return float32(f), end
}

// run is the eight bytes at i folded so that digits are their values, and how many
// of them are digits.
func run(b []byte, i int) (w uint64, n int) {
	w = word(b, i) ^ '0'*ones
	return w, bits.TrailingZeros64((w+0x76*ones|w)&highs) / 8
}

// rounds tells whether a float64 that may be a few units off rounds to the same
// float32 all the same.
func rounds(f float64) bool {
	const dropped, half, slack = 1<<29 - 1, 1 << 28, 16
	low := math.Float64bits(f)&dropped + slack - half
	return low > 2*slack
}

// tenths are powers of a tenth, rounded. They are read only.
var tenths = [...]float64{1, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-11, 1e-12, 1e-13, 1e-14, 1e-15, 1e-16}
