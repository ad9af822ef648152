package jsonscan

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// String is a string literal.
type String struct {
	End     int  // index after the closing quote; -1 if the literal is not valid
	Escaped bool // has a backslash
	wide    bool // has bytes that are not ASCII
}

// ReadString skips a string whose opening quote is at i.
func ReadString(b []byte, i int) (s String) {
	for i++; ; {
		var high uint64
		for i+8 <= len(b) {
			w := binary.LittleEndian.Uint64(b[i:])
			if found := markSpecial(w); found != 0 {
				n := bits.TrailingZeros64(found) &^ 7
				high |= w & (1<<n - 1)
				i += n / 8
				break
			}
			high |= w
			i += 8
		}
		for i < len(b) && b[i] >= ' ' && b[i] != '"' && b[i] != '\\' {
			high |= uint64(b[i])
			i++
		}
		s.wide = s.wide || high&highs != 0
		if i >= len(b) || b[i] < ' ' {
			return String{End: -1}
		}
		if b[i] == '"' {
			s.End = i + 1
			return s
		}
		s.Escaped = true
		if i = skipEscape(b, i); i < 0 {
			return String{End: -1}
		}
	}
}

// A word holds eight bytes of the document, the first one in its lowest byte.
const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// markZeros marks the zero bytes of a word. Above the first one it may mark others too.
func markZeros(w uint64) uint64 { return (w - ones) &^ w & highs }

// markSpecial marks the bytes that a string cannot hold unescaped.
func markSpecial(w uint64) uint64 {
	return markZeros(w^('"'*ones)) | markZeros(w^('\\'*ones)) | (w-' '*ones)&^w&highs
}

func skipEscape(b []byte, i int) int {
	if i+1 >= len(b) {
		return -1
	}
	switch b[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2
	case 'u':
		if hex4(b, i+2) >= 0 {
			return i + 6
		}
	}
	return -1
}

// hex4 returns the value of four hex digits, or -1.
func hex4(b []byte, i int) rune {
	if i+4 > len(b) {
		return -1
	}
	var r rune
	for _, c := range b[i : i+4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

// isPlain reports whether a literal's bytes are its text: no escapes, valid UTF-8.
func (s String) isPlain(b []byte, i int) bool {
	return !s.Escaped && (!s.wide || utf8.Valid(b[i+1:s.End-1]))
}

// Is reports whether the literal at i spells a name.
func (s String) Is(b []byte, i int, name string) bool {
	if s.isPlain(b, i) {
		return string(b[i+1:s.End-1]) == name
	}
	var short [64]byte
	return string(unescape(short[:0], b[i+1:s.End-1])) == name
}

// Text reads the string at i. Without escapes the text points into b. Otherwise it is
// appended to memory, and Text returns memory too.
func Text(b []byte, i int, memory []byte) (s string, end int, grown []byte) {
	if i >= len(b) || b[i] != '"' {
		return "", -1, memory
	}
	l := ReadString(b, i)
	switch {
	case l.End < 0:
		return "", -1, memory
	case l.isPlain(b, i):
		return AsText(b[i+1 : l.End-1]), l.End, memory
	}
	start := len(memory)
	memory = unescape(memory, b[i+1:l.End-1])
	return AsText(memory[start:]), l.End, memory
}

// AsText returns bytes as a string without copying. The bytes must not change while the
// string is used.
func AsText(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// unescape appends the text of a literal, as encoding/json reads it: invalid UTF-8, and
// half of a surrogate pair, become U+FFFD.
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

// escapedRune reads \uXXXX, and the second half of a surrogate pair after it.
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
