package jsontensor

import (
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"

	"tidemill.dev/broker/jsonscan"
)

// decimal is a number as JSON writes it: digits, times a power of ten.
type decimal struct {
	digits uint64
	exp    int32
	neg    bool
	whole  bool // number has neither a dot nor an exponent
	cut    bool // number has more digits than fit
}

// Numbers are read eight bytes at a time: a word has the first byte in its lowest byte.
const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

func word(b []byte, i int) uint64 { return binary.LittleEndian.Uint64(b[i:]) }

// maxDigits is the number of digits that fit.
const maxDigits = 19

// number reads one number.
func number(b []byte, i int) (d decimal, end int) {
	if i < len(b) && b[i] == '-' {
		d.neg = true
		i++
	}
	if i >= len(b) || b[i]-'0' > 9 {
		return d, -1
	}
	start := i
	d.digits, d.whole = uint64(b[i]-'0'), true
	if i++; d.digits != 0 {
		d.digits, i = digits(b, i, d.digits)
	}
	if i < len(b) && b[i] == '.' {
		dot := i
		if d.digits, i = digits(b, i+1, d.digits); i == dot+1 {
			return d, -1
		}
		d.whole, d.exp = false, int32(dot+1-i)
		start++ // skips the dot
	}
	d.cut = i-start > maxDigits
	if i < len(b) && b[i]|0x20 == 'e' {
		return exponent(b, i, d)
	}
	return d, i
}

// digits reads a run of digits that continues a number.
func digits(b []byte, i int, before uint64) (n uint64, end int) {
	for i+8 <= len(b) {
		w := word(b, i) ^ '0'*ones
		others := (w + 0x76*ones | w) & highs // exact for the first non-digit only
		k := bits.TrailingZeros64(others) / 8 // 8 if all are digits
		before = before*pow10u[k] + eight(w<<(64-8*k))
		i += k
		if k < 8 {
			return before, i
		}
	}
	for i < len(b) && b[i]-'0' <= 9 {
		before = before*10 + uint64(b[i]-'0')
		i++
	}
	return before, i
}

// eight converts eight digits to their number. The first digit is in the lowest byte.
// It combines pairs, then pairs of pairs.
func eight(w uint64) uint64 {
	const pairs, first, second = 0x000000FF000000FF, 1_000_000<<32 + 100, 10_000<<32 + 1
	w = w*10 + w>>8
	return ((w&pairs)*first + (w>>16&pairs)*second) >> 32
}

// exponent reads the digits after an e. For an absurd exponent it only makes sure that
// strconv decides.
func exponent(b []byte, i int, d decimal) (decimal, int) {
	i++
	neg := i < len(b) && b[i] == '-'
	if i < len(b) && (b[i] == '-' || b[i] == '+') {
		i++
	}
	n, end := digits(b, i, 0)
	if end == i {
		return d, -1
	}
	d.whole, d.cut = false, d.cut || end-i > 4
	if e := int32(n & 0xFFFF); neg {
		d.exp -= e
	} else {
		d.exp += e
	}
	return d, end
}

// Powers of ten that floats represent exactly. They are read only.
var (
	pow10u = [...]uint64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8}
	pow10f = [...]float32{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10}
	pow10d = [...]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
		1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22}
)

// float returns the nearest float32, the same as strconv. If digits and power are exact float32s,
// one division rounds once. Otherwise it computes a float64 that is off by a few units at most.
// strconv decides where that error matters and where the number is out of range.
func (d decimal) float(literal []byte) (float32, bool) {
	var f float32
	switch {
	case !d.cut && d.digits < 1<<24 && -d.exp < int32(len(pow10f)) && d.exp <= 0:
		f = float32(d.digits) / pow10f[-d.exp]
	case !d.cut && d.viaFloat64(&f):
	default:
		v, err := strconv.ParseFloat(jsonscan.AsText(literal), 32)
		return float32(v), err == nil
	}
	if d.neg {
		f = -f
	}
	return f, true
}

// viaFloat64 rounds through a float64, if the result is certainly correct.
func (d decimal) viaFloat64(f *float32) bool {
	v, ok := d.scaled()
	if !ok {
		v, ok = nearest(d.digits, d.exp)
	}
	if !ok || v > math.MaxFloat32/2 || v != 0 && v < 1e-37 || !roundsExactly(v) {
		return false
	}
	*f = float32(v)
	return true
}

// scaled returns the number without its sign. Only its last bits may be wrong.
func (d decimal) scaled() (float64, bool) {
	switch {
	case d.exp <= 0 && int(-d.exp) < len(pow10d):
		return float64(d.digits) / pow10d[-d.exp], true
	case d.exp > 0 && int(d.exp) < len(pow10d):
		return float64(d.digits) * pow10d[d.exp], true
	}
	return 0, false
}

// double returns the nearest float64, the same as strconv. If digits and power are exact float64s, one
// operation rounds once.
func (d decimal) double(literal []byte) (v float64, ok bool) {
	if !d.cut && d.digits < 1<<53 {
		v, ok = d.scaled()
	}
	if !d.cut && !ok {
		v, ok = nearest(d.digits, d.exp)
	}
	if !ok {
		v, err := strconv.ParseFloat(jsonscan.AsText(literal), 64)
		return v, err == nil
	}
	if d.neg {
		v = -v
	}
	return v, true
}

// integer returns a whole number between two bounds, also if it is written as 5.0 or 5e3.
func (d decimal) integer(literal []byte, low, high int64) (int64, bool) {
	n := int64(d.digits)
	switch {
	case d.whole && !d.cut && n >= 0:
		if d.neg {
			n = -n
		}
	case d.whole:
		var err error
		if n, err = strconv.ParseInt(jsonscan.AsText(literal), 10, 64); err != nil {
			return 0, false
		}
	default:
		f, ok := d.double(literal)
		if n = int64(f); !ok || float64(n) != f || f < -1<<53 || f > 1<<53 {
			return 0, false
		}
	}
	return n, n >= low && n <= high
}

// quickFloat is float for the most common spellings. It takes a third of the time of float.
func quickFloat(b []byte, i int) (f float32, end int) {
	if f, end = fraction(b, i); end >= 0 {
		return f, end
	}
	return float(b, i)
}

// shorts reads consecutive numbers of up to seven digits and dots, each with a comma after it. Most
// numbers are like that. It looks at the eight bytes from the number's start, finds the end of the
// digits, removes the dot from between them, and divides once, which rounds right.
func shorts(b []byte, i int, dst []float32) (n, end int) {
	for n < len(dst) && i+9 <= len(b) {
		if b[i] == ' ' {
			i++
		}
		w := word(b, i)
		digits := w ^ '0'*ones
		others := (digits + 0x76*ones | digits) & highs
		k := bits.TrailingZeros64(others) / 8
		if uint(k-1) > 6 || byte(digits) == 0 && k > 1 { // no digits, too many, or a leading zero
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

// fraction reads one or two digits, a dot and any digits, perhaps after a minus: the usual spelling of a
// number. It has no branch on the length of the fraction, because a processor predicts that branch badly.
// The product is off by a few units of a float64 at most. Where that could change the rounding, fraction
// leaves the number to others.
func fraction(b []byte, i int) (float32, int) {
	if i+29 > len(b) {
		return 0, -1
	}
	sign, whole, dot := uint32(0), uint64(b[i]-'0'), i+1
	if whole > 9 || b[dot] != '.' {
		if sign, whole, dot = beforeDot(b, i); dot < 0 {
			return 0, -1
		}
	}
	first, k := digitRun(b, dot+1)
	second, l := digitRun(b, dot+9)
	l &= -(k >> 3) // zero unless the first eight are digits
	v := whole*pow10u[k] + eight(first<<(64-8*k))
	v = v*pow10u[l] + eight(second<<(64-8*l))
	n := k + l
	end := dot + 1 + n
	if n == 16 {
		_, more := digitRun(b, end)
		if end += more; more == 8 || v < 1e15 {
			return 0, -1 // omitted digits may matter
		}
	}
	f := float64(int64(v)) * tenths[n]
	if n == 0 || b[end]|0x20 == 'e' || !roundsExactly(f) {
		return 0, -1
	}
	return math.Float32frombits(math.Float32bits(float32(f)) | sign<<31), end
}

// beforeDot reads a minus, perhaps, and one or two digits with a dot after them.
func beforeDot(b []byte, i int) (sign uint32, whole uint64, dot int) {
	if b[i] == '-' {
		sign, i = 1, i+1
	}
	if whole = uint64(b[i] - '0'); whole > 9 {
		return 0, 0, -1
	}
	if next := uint64(b[i+1] - '0'); next <= 9 && whole > 0 {
		whole, i = whole*10+next, i+1
	}
	if b[i+1] != '.' {
		return 0, 0, -1
	}
	return sign, whole, i + 1
}

// digitRun returns the eight bytes at i folded, so that digits are their values, and how
// many of them are digits.
func digitRun(b []byte, i int) (w uint64, n int) {
	w = word(b, i) ^ '0'*ones
	return w, bits.TrailingZeros64((w+0x76*ones|w)&highs) / 8
}

// roundsExactly reports whether a float64 that may be off by a few units still rounds to the
// right float32.
func roundsExactly(f float64) bool {
	const dropped, half, slack = 1<<29 - 1, 1 << 28, 16
	low := math.Float64bits(f)&dropped + slack - half
	return low > 2*slack
}

// tenths are powers of a tenth, rounded. They are read only.
var tenths = [...]float64{1, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-11, 1e-12, 1e-13, 1e-14, 1e-15, 1e-16}
