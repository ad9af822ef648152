package cehttp

import "strings"

// encode writes a value as a header's: space, quote, percent and all but
// printable ASCII become %XY, byte by byte of UTF-8.
func encode(s string) string {
	n := 0
	for i := range len(s) {
		if mustEncode(s[i]) {
			n++
		}
	}
	if n == 0 {
		return s
	}
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	b.Grow(len(s) + 2*n)
	for i := range len(s) {
		c := s[i]
		if !mustEncode(c) {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(hex[c>>4])
		b.WriteByte(hex[c&15])
	}
	return b.String()
}

func mustEncode(c byte) bool {
	return c <= ' ' || c >= 0x7f || c == '"' || c == '%'
}

// escape is where the first %XY of s stands, -1 if there is none.
func escape(s string) int {
	for i := 0; ; i++ {
		next := strings.IndexByte(s[i:], '%')
		if next < 0 {
			return -1
		}
		if i += next; i+2 < len(s) && isHex(s[i+1]) && isHex(s[i+2]) {
			return i
		}
	}
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f'
}

func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c | 0x20 - 'a' + 10
}

// isURI reports whether s has only what RFC 3986 allows in a URI; whether it is
// one is for Validate to say.
func isURI(s string) bool {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f || strings.IndexByte("\"<>\\^`{|}", c) >= 0 {
			return false
		}
	}
	return true
}
