package jsontensor

import (
	"math"
	"strconv"
	"unicode/utf8"

	"tidemill.dev/broker/jsonscan"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// Values reads an array's elements from i on into the tensor at positions from at to limit. It
// returns how many it read and where it stopped: after the closing bracket, or after a comma if the
// tensor is full. That is -1 if an element is not of the tensor's kind or not JSON.
func Values(b []byte, i int, t *tensor.Tensor, at, limit int) (n, end int) {
	switch t.Type {
	case tensor.Float:
		return floats(b, i, t.Floats[at:limit])
	case tensor.Double:
		return doubles(b, i, t.Doubles[at:limit])
	case tensor.String:
		return texts(b, i, t, at, limit)
	}
	return integers(b, i, t.Ints[at:limit], t.Type)
}

// Value reads one element into the tensor at position at.
func Value(b []byte, i int, t *tensor.Tensor, at int) (end int) {
	switch t.Type {
	case tensor.Float:
		t.Floats[at], end = float(b, i)
	case tensor.Double:
		t.Doubles[at], end = double(b, i)
	case tensor.String:
		t.Strings[at], end, t.Text = jsonscan.Text(b, i, t.Text)
	default:
		low, high := bounds(t.Type)
		t.Ints[at], end = integer(b, i, low, high)
	}
	return end
}

// afterElement skips the character after an element; more reports whether it was a comma.
func afterElement(b []byte, i int) (at int, more bool) {
	if i >= 0 && i < len(b) {
		switch b[i] {
		case ',':
			return i + 1, true
		case ']':
			return i + 1, false
		}
	}
	if i < 0 {
		return -1, false
	}
	if i = jsonscan.SkipSpace(b, i); i >= len(b) || b[i] != ',' && b[i] != ']' {
		return -1, false
	}
	return i + 1, b[i] == ','
}

func floats(b []byte, i int, dst []float32) (n, end int) {
	more := true
	for n < len(dst) && more {
		read := 0
		if read, i = fours(b, i, dst[n:]); read > 0 {
			n += read
			continue
		}
		if read, i = shorts(b, i, dst[n:]); read > 0 {
			n += read
			continue
		}
		if i < len(b) && b[i] == ' ' {
			i++
		}
		dst[n], i = quickFloat(b, i)
		i, more = afterElement(b, i)
		n++
		if more {
			read, i, more = fractions(b, i, dst[n:])
			n += read
		}
	}
	return n, i
}

// fractions reads as many fractions as follow each other. A list that has one with many digits mostly
// has more of them, and for those the attempts of fours and shorts would be lost.
func fractions(b []byte, i int, dst []float32) (n, end int, more bool) {
	for more = true; more && n < len(dst); n++ {
		at := i
		if at < len(b) && b[at] == ' ' {
			at++
		}
		f, end := fraction(b, at)
		if end < 0 {
			break
		}
		dst[n] = f
		i, more = afterElement(b, end)
	}
	return n, i, more
}

// Four one-digit numbers, each with a comma after it, are read at once. Counts and
// pixels look like that.
const fourDigits = 0x2C302C302C302C30

// isFour reports whether a word holds four such numbers. It is folded with fourDigits
// first: each digit is then its value, and each comma zero.
func isFour(w uint64) bool {
	const upper, six = 0xFFF0FFF0FFF0FFF0, 0x0006000600060006
	return (w|(w+six))&upper == 0
}

func four(w uint64, dst *[4]float32) {
	dst[0] = float32(int32(w & 0xF))
	dst[1] = float32(int32(w >> 16 & 0xF))
	dst[2] = float32(int32(w >> 32 & 0xF))
	dst[3] = float32(int32(w >> 48))
}

// fours reads as many of these groups as follow each other.
func fours(b []byte, i int, dst []float32) (n, end int) {
	for n+4 <= len(dst) && i+8 <= len(b) {
		w := word(b, i) ^ fourDigits
		if !isFour(w) {
			break
		}
		four(w, (*[4]float32)(dst[n:]))
		n, i = n+4, i+8
	}
	return n, i
}

func float(b []byte, i int) (float32, int) {
	d, end := number(b, i)
	if end < 0 {
		return otherElement(b, i, float)
	}
	f, ok := d.float(b[i:end])
	if !ok {
		return 0, -1
	}
	return f, end
}

func doubles(b []byte, i int, dst []float64) (n, end int) {
	for more := true; n < len(dst) && more; n++ {
		dst[n], i = double(b, i)
		i, more = afterElement(b, i)
	}
	return n, i
}

func double(b []byte, i int) (float64, int) {
	d, end := number(b, i)
	if end < 0 {
		return otherElement(b, i, double)
	}
	f, ok := d.double(b[i:end])
	if !ok {
		return 0, -1
	}
	return f, end
}

func integers(b []byte, i int, dst []int64, t tensor.Type) (n, end int) {
	low, high := bounds(t)
	for more := true; n < len(dst) && more; n++ {
		dst[n], i = integer(b, i, low, high)
		i, more = afterElement(b, i)
	}
	return n, i
}

func integer(b []byte, i int, low, high int64) (int64, int) {
	d, end := number(b, i)
	if end < 0 {
		return otherElement(b, i, func(b []byte, i int) (int64, int) { return integer(b, i, low, high) })
	}
	n, ok := d.integer(b[i:end], low, high)
	if !ok {
		return 0, -1
	}
	return n, end
}

// otherElement reads an element that does not begin with a digit: a number after white space,
// or a boolean.
func otherElement[T float32 | float64 | int64](b []byte, i int, read func([]byte, int) (T, int)) (T, int) {
	if i < 0 {
		return 0, -1
	}
	if at := jsonscan.SkipSpace(b, i); at > i {
		return read(b, at)
	}
	if end := jsonscan.SkipWord(b, i, "true"); end >= 0 {
		return 1, end
	}
	return 0, jsonscan.SkipWord(b, i, "false")
}

func texts(b []byte, i int, t *tensor.Tensor, at, limit int) (n, end int) {
	for more := true; at+n < limit && more; n++ {
		t.Strings[at+n], i, t.Text = jsonscan.Text(b, jsonscan.SkipSpace(b, max(i, 0)), t.Text)
		i, more = afterElement(b, i)
	}
	return n, i
}

// bounds returns the limits of a type of integers.
func bounds(t tensor.Type) (low, high int64) {
	switch t {
	case tensor.Bool:
		return 0, 1
	case tensor.Int32:
		return math.MinInt32, math.MaxInt32
	}
	return math.MinInt64, math.MaxInt64
}

// Append appends a tensor's values as one list. It returns false if one of them is NaN or infinity, for
// which JSON has no number; then null is in its place.
func Append(dst []byte, t *tensor.Tensor) (text []byte, ok bool) {
	dst, ok = append(dst, '['), true
	start := len(dst)
	switch t.Type {
	case tensor.Float:
		for _, v := range t.Floats {
			ok = ok && v-v == 0
			dst = append(AppendFloat(dst, v), ',')
		}
	case tensor.Double:
		for _, v := range t.Doubles {
			ok = ok && v-v == 0
			dst = append(AppendDouble(dst, v), ',')
		}
	case tensor.String:
		for _, v := range t.Strings {
			dst = append(AppendText(dst, v), ',')
		}
	case tensor.Bool:
		for _, v := range t.Ints {
			dst = append(strconv.AppendBool(dst, v != 0), ',')
		}
	default:
		for _, v := range t.Ints {
			dst = append(strconv.AppendInt(dst, v, 10), ',')
		}
	}
	if len(dst) > start {
		dst = dst[:len(dst)-1] // last comma
	}
	return append(dst, ']'), ok
}

// AppendFloat appends a number with the fewest digits that give the same number again, in the form of
// encoding/json. It takes 28 ns. NaN and infinity are null.
func AppendFloat(dst []byte, v float32) []byte {
	f := math.Abs(float64(v))
	switch {
	case !(f <= math.MaxFloat32):
		return append(dst, "null"...)
	case f != 0 && f < 1e-6 || f >= 1e21:
		return strconv.AppendFloat(dst, float64(v), 'g', -1, 32)
	}
	return strconv.AppendFloat(dst, float64(v), 'f', -1, 32)
}

// AppendDouble is AppendFloat for float64.
func AppendDouble(dst []byte, v float64) []byte {
	f := math.Abs(v)
	switch {
	case !(f <= math.MaxFloat64):
		return append(dst, "null"...)
	case f != 0 && f < 1e-6 || f >= 1e21:
		return strconv.AppendFloat(dst, v, 'g', -1, 64)
	}
	return strconv.AppendFloat(dst, v, 'f', -1, 64)
}

// AppendText appends a text as JSON. Labels hardly ever need escapes. Invalid UTF-8
// becomes U+FFFD.
func AppendText(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			return appendEscaped(append(dst, s[:i]...), s[i:])
		}
	}
	dst = append(dst, s...)
	return append(dst, '"')
}

// appendEscaped appends the rest of a text and its closing quote.
func appendEscaped(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < ' ':
			dst = append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&0xF])
		default:
			dst = utf8.AppendRune(dst, r) // the error rune for invalid UTF-8
		}
	}
	return append(dst, '"')
}
