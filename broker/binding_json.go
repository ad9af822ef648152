package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

var (
	errNotObject = errors.New("structured event is no JSON object")
	errNotArray  = errors.New("batch is no JSON array of events")
	errEventUTF8 = errors.New("structured event is not valid UTF-8")
)

// eachMember calls f with each member of a JSON object in its order, the value
// as it stands in b. The document must have been found valid as a whole, so
// that the scan needs no care.
func eachMember(b []byte, f func(name string, value []byte) error) error {
	i := skipSpace(b, 0)
	if b[i] != '{' {
		return errNotObject
	}
	for i = skipSpace(b, i+1); b[i] != '}'; i = skipSpace(b, i) {
		if b[i] == ',' {
			i = skipSpace(b, i+1)
		}
		end := skipValue(b, i, 0)
		name, err := unquote(b[i:end])
		if err != nil {
			return err
		}
		start := skipSpace(b, skipSpace(b, end)+1) // past the colon
		end = skipValue(b, start, 0)
		if err := f(name, b[start:end]); err != nil {
			return err
		}
		i = end
	}
	return nil
}

// elements are those of a JSON array, as they stand in b. It finds out as it
// goes whether b is JSON at all: a pass for that alone would read it twice.
func elements(b []byte, limit int) ([][]byte, error) {
	i := skipSpace(b, 0)
	if i >= len(b) || b[i] != '[' {
		if validJSON(b) {
			return nil, errNotArray
		}
		return nil, jsonFault("batch", b)
	}
	if i = skipSpace(b, i+1); i < len(b) && b[i] == ']' {
		return nil, nothingBehind(b, i)
	}
	var all [][]byte
	for n := 0; ; n++ {
		end := skipValue(b, i, 1)
		next := skipSpace(b, max(0, end))
		if end < 0 || next == len(b) || b[next] != ',' && b[next] != ']' {
			return nil, jsonFault("batch", b)
		}
		if n < limit {
			all = append(all, b[i:end:end])
		}
		if b[next] == ',' {
			i = skipSpace(b, next+1)
			continue
		}
		if err := nothingBehind(b, next); err != nil {
			return nil, err
		}
		if n >= limit {
			return nil, fmt.Errorf("%w: at most %d are taken at once; send them in several", ErrTooMany, limit)
		}
		return all, nil
	}
}

// nothingBehind is an error if there is more than space behind i.
func nothingBehind(b []byte, i int) error {
	if skipSpace(b, i+1) < len(b) {
		return jsonFault("batch", b)
	}
	return nil
}

// jsonFault has encoding/json say what is wrong with a document and where.
func jsonFault(what string, b []byte) error {
	var syntax *json.SyntaxError
	err := json.Unmarshal(b, new(json.RawMessage))
	if errors.As(err, &syntax) {
		return fmt.Errorf("%s is no JSON, byte %d: %w", what, syntax.Offset, err)
	}
	return fmt.Errorf("%s is no JSON: %w", what, err)
}

// unquote reads a valid JSON string; without escapes it points into b.
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
