package features

import (
	"encoding/binary"
	"math/bits"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// The scanner knows JSON's grammar, RFC 8259, as encoding/json does, and skips
// everything that is not wanted. Its functions return the end of a value, or -1 if no
// value begins there.

// maxNesting is the limit of encoding/json.
const maxNesting = 10000

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skipValue skips a value that is inside depth objects and arrays.
func skipValue(b []byte, i, depth int) int {
	if i >= len(b) {
		return -1
	}
	switch b[i] {
	case '"':
		return scanString(b, i).end
	case '{':
		return skipObject(b, i, depth+1)
	case '[':
		return skipArray(b, i, depth+1)
	case 't':
		return skipWord(b, i, "true")
	case 'f':
		return skipWord(b, i, "false")
	case 'n':
		return skipWord(b, i, "null")
	}
	_, end := number(b, i)
	return end
}

func skipWord(b []byte, i int, word string) int {
	if len(b)-i < len(word) || string(b[i:i+len(word)]) != word {
		return -1
	}
	return i + len(word)
}

func skipObject(b []byte, i, depth int) int {
	i, more := enter(b, i, '}', depth)
	for more {
		if i >= len(b) || b[i] != '"' {
			return -1
		}
		if i = skipColon(b, scanString(b, i).end); i < 0 {
			return -1
		}
		if i = skipValue(b, i, depth); i < 0 {
			return -1
		}
		i, more = next(b, i, '}')
	}
	return i
}

func skipArray(b []byte, i, depth int) int {
	i, more := enter(b, i, ']', depth)
	for more {
		if i = skipValue(b, i, depth); i < 0 {
			return -1
		}
		i, more = next(b, i, ']')
	}
	return i
}

// enter skips the opening bracket of an object or an array, and reports whether it has
// a member. It does not enter beyond the deepest level allowed.
func enter(b []byte, i int, closing byte, depth int) (at int, more bool) {
	if depth > maxNesting {
		return -1, false
	}
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == closing {
		return i + 1, false
	}
	return i, true
}

// next skips the character after a value, and reports whether it was a comma.
func next(b []byte, i int, closing byte) (at int, more bool) {
	i = skipSpace(b, i)
	if i >= len(b) {
		return -1, false
	}
	switch b[i] {
	case ',':
		return skipSpace(b, i+1), true
	case closing:
		return i + 1, false
	}
	return -1, false
}

func skipColon(b []byte, i int) int {
	if i < 0 {
		return -1
	}
	if i = skipSpace(b, i); i >= len(b) || b[i] != ':' {
		return -1
	}
	return skipSpace(b, i+1)
}

// A word holds eight bytes of the document, the first one in its lowest byte.
const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

func word(b []byte, i int) uint64 { return binary.LittleEndian.Uint64(b[i:]) }

// zeros marks the zero bytes. Above the first one it may mark others too.
func zeros(w uint64) uint64 { return (w - ones) &^ w & highs }

// special marks the bytes that a string cannot hold unescaped.
func special(w uint64) uint64 {
	return zeros(w^('"'*ones)) | zeros(w^('\\'*ones)) | (w-' '*ones)&^w&highs
}

// scanned is a string literal.
type scanned struct {
	end     int
	escaped bool // has a backslash
	wide    bool // has bytes that are not ASCII
}

// scanString skips a string whose opening quote is at i.
func scanString(b []byte, i int) (s scanned) {
	for i++; ; {
		var high uint64
		for i+8 <= len(b) {
			w := word(b, i)
			if found := special(w); found != 0 {
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
			return scanned{end: -1}
		}
		if b[i] == '"' {
			s.end = i + 1
			return s
		}
		s.escaped = true
		if i = skipEscape(b, i); i < 0 {
			return scanned{end: -1}
		}
	}
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

// asText returns bytes as a string without copying. The bytes must not change while the
// string is used.
func asText(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// asBytes returns a string's bytes without copying. They must not be written to.
func asBytes(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// quoted prints a text in an error, cut if it is long.
func quoted(s string) string {
	const most = 40
	if len(s) <= most {
		return strconv.Quote(s)
	}
	return strconv.Quote(s[:most]) + "…"
}

// plain reports whether a literal's bytes are its text, without escapes.
func (s scanned) plain(b []byte, i int) bool {
	return !s.escaped && (!s.wide || utf8.Valid(b[i+1:s.end-1]))
}

// is reports whether a literal at i spells a name.
func (s scanned) is(b []byte, i int, name string) bool {
	if s.plain(b, i) {
		return string(b[i+1:s.end-1]) == name
	}
	var short [64]byte
	return string(unescape(short[:0], b[i+1:s.end-1])) == name
}

// text returns a string without copying, if it has no escapes. Otherwise it appends the
// text to memory and returns memory too.
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
