package pick

import (
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// asText reads bytes as a string where they lie, which must not change while the
// string is used.
func asText(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// asBytes is its inverse. The bytes must not be written to.
func asBytes(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// quoted shows a text in an error, the beginning of a long one.
func quoted(s string) string {
	const most = 40
	if len(s) <= most {
		return strconv.Quote(s)
	}
	return strconv.Quote(s[:most]) + "…"
}

// plain tells whether a literal says what it means, byte for byte.
func (s scanned) plain(b []byte, i int) bool {
	return !s.escaped && (!s.wide || utf8.Valid(b[i+1:s.end-1]))
}

// is tells whether a literal at i means a name.
func (s scanned) is(b []byte, i int, name string) bool {
	if s.plain(b, i) {
		return string(b[i+1:s.end-1]) == name
	}
	var short [64]byte
	return string(unescape(short[:0], b[i+1:s.end-1])) == name
}

// text reads a string where it lies, or else into memory, which it returns grown.
func text(b []byte, i int, memory []byte) (s string, end int, grown []byte) {
	if i >= len(b) || b[i] != '"' {
		return "", -1, memory
	}
	l := scanString(b, i)
	switch {
	case l.end < 0:
		return "", -1, memory
	case l.plain(b, i):
		return asText(b[i+1 : l.end-1]), l.end, memory
	}
	start := len(memory)
	memory = unescape(memory, b[i+1:l.end-1])
	return asText(memory[start:]), l.end, memory
}

// unescape appends what lies between the quotes of a literal, as encoding/json
// reads it: what is no UTF-8, and half a surrogate pair, become U+FFFD.
func unescape(dst, s []byte) []byte {
	for i := 0; i < len(s); {
		switch c := s[i]; {
		case c == '\\' && s[i+1] == 'u':
			r, n := escapedRune(s, i)
			dst = utf8.AppendRune(dst, r)
			i += n
		case c == '\\':
			dst = append(dst, escaped(s[i+1]))
			i += 2
		case c < utf8.RuneSelf:
			dst = append(dst, c)
			i++
		default:
			r, n := utf8.DecodeRune(s[i:])
			dst = utf8.AppendRune(dst, r)
			i += n
		}
	}
	return dst
}

func escaped(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

// escapedRune reads \uXXXX, and the second half of a pair behind it.
func escapedRune(s []byte, i int) (r rune, n int) {
	r = hex4(s, i+2)
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	if i+8 <= len(s) && s[i+6] == '\\' && s[i+7] == 'u' {
		if pair := utf16.DecodeRune(r, hex4(s, i+8)); pair != utf8.RuneError {
			return pair, 12
		}
	}
	return utf8.RuneError, 6
}
