package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"tidemill.dev/broker/jsonscan"
)

var (
	errNotObject = errors.New("structured event is no JSON object")
	errNotArray  = errors.New("batch is no JSON array of events")
	errEventUTF8 = errors.New("structured event is not valid UTF-8")
)

// eachMember calls f with each member of a JSON object in order; the value is a part of b. The
// caller has checked that the document is valid, so the scan does not check again.
func eachMember(b []byte, f func(name string, value []byte) error) error {
	i := jsonscan.SkipSpace(b, 0)
	if b[i] != '{' {
		return errNotObject
	}
	i, more := jsonscan.Enter(b, i, '}', 1)
	for more {
		end := jsonscan.ReadString(b, i).End
		start := jsonscan.SkipColon(b, end)
		name := unquote(b[i:end])
		end = jsonscan.SkipValue(b, start, 1)
		if err := f(name, b[start:end]); err != nil {
			return err
		}
		i, more = jsonscan.Next(b, end, '}')
	}
	return nil
}

// elements returns the elements of a JSON array as parts of b. It checks during the scan that b is
// JSON, because a check of its own would read b twice.
func elements(b []byte, limit int) ([][]byte, error) {
	i := skipSpace(b, 0)
	if i >= len(b) || b[i] != '[' {
		if jsonscan.Valid(b) {
			return nil, errNotArray
		}
		return nil, jsonFault("batch", b)
	}
	n := 0
	i, more := jsonscan.Enter(b, i, ']', 1)
	for ; more; n++ {
		end := jsonscan.SkipValue(b, i, 1)
		if end < 0 {
			return nil, jsonFault("batch", b)
		}
		if n < limit {
			all = append(all, b[i:end:end])
		}
		i, more = jsonscan.Next(b, end, ']')
	}
	if i < 0 || jsonscan.SkipSpace(b, i) < len(b) {
		return nil, jsonFault("batch", b)
	}
	if n > limit {
		return nil, fmt.Errorf("%w: at most %d are taken at once; send them in several", ErrTooMany, limit)
	}
	return all, nil
}

// nothingBehind returns an error if anything but space follows index i.
func nothingBehind(b []byte, i int) error {
	if skipSpace(b, i+1) < len(b) {
		return jsonFault("batch", b)
	}
	return nil
}

// jsonFault asks encoding/json for the fault in a document and its place.
func jsonFault(what string, b []byte) error {
	var syntax *json.SyntaxError
	err := json.Unmarshal(b, new(json.RawMessage))
	if errors.As(err, &syntax) {
		return fmt.Errorf("%s is no JSON, byte %d: %w", what, syntax.Offset, err)
	}
	return fmt.Errorf("%s is no JSON: %w", what, err)
}

// unquote reads a valid JSON string. Without escapes, the result points into b.
func unquote(b []byte) (string, error) {
	inner := b[1 : len(b)-1]
	if strings.IndexByte(text(inner), '\\') < 0 {
		return text(inner), nil
	}
	var s string
	err := json.Unmarshal(b, &s)
	return s, err
}

const hexDigits = "0123456789abcdef"

// appendQuoted writes a JSON string. It escapes control characters and DEL, so that an event shown
// on a terminal stays text. Bytes that are not UTF-8 become U+FFFD.
func appendQuoted(dst []byte, s string) []byte {
	dst = append(dst, '"')
	if plainString(s) && strings.IndexByte(s, '"') < 0 && strings.IndexByte(s, '\\') < 0 {
		return append(append(dst, s...), '"')
	}
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < ' ' || r == 0x7f:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[r>>4], hexDigits[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}

// The scanner knows only JSON's grammar (RFC 8259): it judges a document and finds the end of a
// value. It agrees with encoding/json, as a fuzz test checks, and takes a fraction of the time.
// Before, encoding/json took most of the time of reading an event or a batch.

// maxNesting is the limit of encoding/json.
const maxNesting = 10000

func validJSON(b []byte) bool { return validJSONWithin(b, 0) }

// validJSONWithin judges a document that will be nested at this depth in another.
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

// skipValue returns the index after the value that begins at i, or -1 if there is no valid value.
// The other skip functions do the same.
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

// skipItem skips a value and the comma or closing bracket after it. After a comma, more is true.
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

// skipPlain returns the index of the next quote, backslash or control character. It checks eight
// bytes at once, because most of an event is in strings.
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

// oddInString sets the high bit of the first byte that skipPlain looks for. A subtraction borrows
// only from higher bytes, so the bits above the first one may be wrong.
func oddInString(x uint64) uint64 {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	quote, backslash := x^('"'*ones), x^('\\'*ones)
	return ((x-' '*ones)&^x | (quote-ones)&^quote | (backslash-ones)&^backslash) & high
}

// skipEscape skips the rest of an escape, after its backslash.
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
		i++ // no digit may follow
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
