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

// eachMember calls f with the name and the bytes of each member of a JSON object, in
// order. The document must be valid.
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

// elements returns the elements of a JSON array as parts of b. It checks on the way
// that b is JSON, because a pass for that alone would read b twice.
func elements(b []byte, limit int) (all [][]byte, err error) {
	i := jsonscan.SkipSpace(b, 0)
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

// jsonFault returns the error of encoding/json for a document, with its place.
func jsonFault(what string, b []byte) error {
	var syntax *json.SyntaxError
	err := json.Unmarshal(b, new(json.RawMessage))
	if errors.As(err, &syntax) {
		return fmt.Errorf("%s is no JSON, byte %d: %w", what, syntax.Offset, err)
	}
	return fmt.Errorf("%s is no JSON: %w", what, err)
}

// unquote reads a valid JSON string. Without escapes the result points into b.
func unquote(b []byte) string {
	s, _, _ := jsonscan.Text(b, 0, nil)
	return s
}

const hexDigits = "0123456789abcdef"

// appendQuoted writes a JSON string. Control characters are escaped, DEL too, so
// that an event shown on a terminal stays text; what is no UTF-8 becomes U+FFFD.
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
