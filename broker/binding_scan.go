package broker

import (
	"encoding/binary"
	"math/bits"
)

// The scanner knows JSON's grammar, RFC 8259, and nothing of what it says:
// enough to judge a document and to find where a value ends. It agrees with
// encoding/json, which a fuzz test holds it to, and takes a fraction of its time,
// which was most of the time of reading an event or a batch.

// maxNesting is encoding/json's.
const maxNesting = 10000

func validJSON(b []byte) bool { return validJSONWithin(b, 0) }

// validJSONWithin judges a document that is to lie so deep in another.
func validJSONWithin(b []byte, depth int) bool {
	end := skipValue(b, skipSpace(b, 0), depth)
	return end >= 0 && skipSpace(b, end) == len(b)
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// skipValue is the end of the value that begins at i, -1 if none does; so are the
// other skippers.
func skipValue(b []byte, i, depth int) int {
	if i >= len(b) {
		return -1
	}
	switch b[i] {
	case '"':
		return skipString(b, i)
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
	return skipNumber(b, i)
}

func skipWord(b []byte, i int, word string) int {
	if len(b)-i < len(word) || string(b[i:i+len(word)]) != word {
		return -1
	}
	return i + len(word)
}

func skipObject(b []byte, i, depth int) int {
	if i = skipSpace(b, i+1); i < len(b) && b[i] == '}' && depth <= maxNesting {
		return i + 1
	}
	for {
		if i >= len(b) || b[i] != '"' {
			return -1
		}
		if i = skipString(b, i); i < 0 {
			return -1
		}
		if i = skipSpace(b, i); i >= len(b) || b[i] != ':' {
			return -1
		}
		end, more := skipItem(b, i+1, depth, '}')
		if !more {
			return end
		}
		i = end
	}
}

func skipArray(b []byte, i, depth int) int {
	if i = skipSpace(b, i+1); i < len(b) && b[i] == ']' && depth <= maxNesting {
		return i + 1
	}
	for {
		end, more := skipItem(b, i, depth, ']')
		if !more {
			return end
		}
		i = end
	}
}

// skipItem skips a value and what stands behind it: a comma, then there are more
// of them, or the closing bracket.
func skipItem(b []byte, i, depth int, closing byte) (end int, more bool) {
	if depth > maxNesting {
		return -1, false
	}
	if i = skipValue(b, skipSpace(b, i), depth); i < 0 {
		return -1, false
	}
	if i = skipSpace(b, i); i >= len(b) {
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

func skipString(b []byte, i int) int {
	for i++; ; {
		if i = skipPlain(b, i); i >= len(b) || b[i] < ' ' {
			return -1
		}
		if b[i] == '"' {
			return i + 1
		}
		if i = skipEscape(b, i+1); i < 0 {
			return -1
		}
	}
}

// skipPlain is where the next quote, backslash or control character stands. It
// looks at eight bytes at once, for most of an event is in strings.
func skipPlain(b []byte, i int) int {
	for ; i+8 <= len(b); i += 8 {
		if odd := oddInString(binary.LittleEndian.Uint64(b[i:])); odd != 0 {
			return i + bits.TrailingZeros64(odd)/8
		}
	}
	for i < len(b) && b[i] >= ' ' && b[i] != '"' && b[i] != '\\' {
		i++
	}
	return i
}

// oddInString sets the high bit of the first byte that skipPlain looks for.
// Subtracting borrows from the bytes above it alone, so those may be wrong.
func oddInString(x uint64) uint64 {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	quote, backslash := x^('"'*ones), x^('\\'*ones)
	return ((x-' '*ones)&^x | (quote-ones)&^quote | (backslash-ones)&^backslash) & high
}

// skipEscape skips what stands behind a backslash.
func skipEscape(b []byte, i int) int {
	if i >= len(b) {
		return -1
	}
	switch b[i] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 1
	case 'u':
		if len(b)-i > 4 && isHex(b[i+1]) && isHex(b[i+2]) && isHex(b[i+3]) && isHex(b[i+4]) {
			return i + 5
		}
	}
	return -1
}

func skipNumber(b []byte, i int) int {
	if i < len(b) && b[i] == '-' {
		i++
	}
	if i < len(b) && b[i] == '0' {
		i++ // and no digit after it
	} else if i = skipDigits(b, i); i < 0 {
		return -1
	}
	if i < len(b) && b[i] == '.' {
		if i = skipDigits(b, i+1); i < 0 {
			return -1
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		if i++; i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		return skipDigits(b, i)
	}
	return i
}

// skipDigits skips one digit or more.
func skipDigits(b []byte, i int) int {
	start := i
	for i < len(b) && b[i]-'0' < 10 {
		i++
	}
	if i == start {
		return -1
	}
	return i
}
