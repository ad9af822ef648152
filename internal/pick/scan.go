package pick

import (
	"encoding/binary"
	"math/bits"
)

// The scanner knows JSON's grammar, RFC 8259, as encoding/json does. What is not
// looked for is passed by it. Its functions return where a value ends, and -1 if
// none begins where they are asked.

// maxNesting is encoding/json's.
const maxNesting = 10000

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skipValue passes a value that lies in so many objects and arrays.
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

// enter passes the opening of an object or an array, and tells whether there is
// anything in it. What lies too deep is not entered.
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

// next passes what stands behind a value, and tells whether it was a comma.
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

// A word holds eight bytes of the document, the first in its lowest.
const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

func word(b []byte, i int) uint64 { return binary.LittleEndian.Uint64(b[i:]) }

// zeros marks the bytes that are zero. Above the first it may mark others.
func zeros(w uint64) uint64 { return (w - ones) &^ w & highs }

// special marks the bytes that a string cannot hold as they are.
func special(w uint64) uint64 {
	return zeros(w^('"'*ones)) | zeros(w^('\\'*ones)) | (w-' '*ones)&^w&highs
}

// scanned is a string literal.
type scanned struct {
	end     int
	escaped bool // it holds a backslash
	wide    bool // it holds bytes that are not ASCII
}

// scanString passes a string, whose quote is at i.
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

// hex4 is the number that four digits say, -1 if they are none.
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
