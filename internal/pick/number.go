package pick

import (
	"math"
	"math/bits"
	"strconv"
)

// decimal is a number as JSON writes it: digits, times ten to a power.
type decimal struct {
	digits uint64
	exp    int32
	neg    bool
	whole  bool // neither a dot nor an exponent
	cut    bool // there were more digits than fit
}

// maxDigits is how many fit.
const maxDigits = 19

// number reads one.
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
		start++ // the dot is no digit
	}
	d.cut = i-start > maxDigits
	if i < len(b) && b[i]|0x20 == 'e' {
		return exponent(b, i, d)
	}
	return d, i
}

// digits reads a run of digits behind others.
func digits(b []byte, i int, before uint64) (n uint64, end int) {
	for i+8 <= len(b) {
		w := word(b, i) ^ '0'*ones
		others := (w + 0x76*ones | w) & highs // above the first it may mark others
		k := bits.TrailingZeros64(others) / 8 // 8 if there are none
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

// eight is the number that eight digits say, the first in the lowest byte: pairs
// of them, then pairs of pairs.
func eight(w uint64) uint64 {
	const pairs, first, second = 0x000000FF000000FF, 1_000_000<<32 + 100, 10_000<<32 + 1
	w = w*10 + w>>8
	return ((w&pairs)*first + (w>>16&pairs)*second) >> 32
}

// exponent reads what stands behind an e. Of one that is absurd it is enough to
// know that the slow way has to look at it.
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

// Powers of ten that are what they are called. They are read only.
var (
	pow10u = [...]uint64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8}
	pow10f = [...]float32{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10}
	pow10d = [...]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
		1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22}
)

// float is the float32 that lies nearest, which is what strconv says. Where digits
// and power are float32s themselves, one division rounds once. Else a float64 is
// computed, which is a few units off at most: what that can decide, and what is
// out of range, strconv decides.
func (d decimal) float(literal []byte) (float32, bool) {
	var f float32
	switch {
	case !d.cut && d.digits < 1<<24 && -d.exp < int32(len(pow10f)) && d.exp <= 0:
		f = float32(d.digits) / pow10f[-d.exp]
	case !d.cut && d.nearly(&f):
	default:
		v, err := strconv.ParseFloat(asText(literal), 32)
		return float32(v), err == nil
	}
	if d.neg {
		f = -f
	}
	return f, true
}

// nearly rounds by way of a float64, if that is certain to be right.
func (d decimal) nearly(f *float32) bool {
	v, ok := d.scaled()
	if !ok || v > math.MaxFloat32/2 || v != 0 && v < 1e-37 || !rounds(v) {
		return false
	}
	*f = float32(v)
	return true
}

// scaled is the number but for its sign, right but for the last bits.
func (d decimal) scaled() (float64, bool) {
	switch {
	case d.exp <= 0 && int(-d.exp) < len(pow10d):
		return float64(d.digits) / pow10d[-d.exp], true
	case d.exp > 0 && int(d.exp) < len(pow10d):
		return float64(d.digits) * pow10d[d.exp], true
	}
	return 0, false
}

// double is the float64 that lies nearest.
func (d decimal) double(literal []byte) (float64, bool) {
	if v, ok := d.scaled(); ok && !d.cut && d.digits < 1<<53 {
		if d.neg {
			v = -v
		}
		return v, true
	}
	v, err := strconv.ParseFloat(asText(literal), 64)
	return v, err == nil
}

// integer is the whole number, also where it is written as 5.0 or 5e3, if it lies
// between two others.
func (d decimal) integer(literal []byte, low, high int64) (int64, bool) {
	n := int64(d.digits)
	switch {
	case d.whole && !d.cut && n >= 0:
		if d.neg {
			n = -n
		}
	case d.whole:
		var err error
		if n, err = strconv.ParseInt(asText(literal), 10, 64); err != nil {
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
