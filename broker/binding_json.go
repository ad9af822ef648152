package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

var errNotObject = errors.New("structured event is no JSON object")

// eachMember calls f with each member of a JSON object in its order, the value
// as it stands in b. The document is validated as a whole first, so that the
// scan after it needs no care; encoding/json also bounds the nesting.
func eachMember(b []byte, f func(name string, value []byte) error) error {
	if !utf8.Valid(b) {
		return errors.New("structured event is not valid UTF-8")
	}
	if !json.Valid(b) {
		return jsonFault(b)
	}
	i := skipSpace(b, 0)
	if b[i] != '{' {
		return errNotObject
	}
	for i = skipSpace(b, i+1); b[i] != '}'; i = skipSpace(b, i) {
		if b[i] == ',' {
			i = skipSpace(b, i+1)
		}
		end := skipValue(b, i)
		name, err := unquote(b[i:end])
		if err != nil {
			return err
		}
		start := skipSpace(b, skipSpace(b, end)+1) // past the colon
		end = skipValue(b, start)
		if err := f(name, b[start:end]); err != nil {
			return err
		}
		i = end
	}
	return nil
}

// jsonFault has encoding/json say what is wrong and where.
func jsonFault(b []byte) error {
	var syntax *json.SyntaxError
	err := json.Unmarshal(b, new(json.RawMessage))
	if errors.As(err, &syntax) {
		return fmt.Errorf("structured event is no JSON, byte %d: %w", syntax.Offset, err)
	}
	return fmt.Errorf("structured event is no JSON: %w", err)
}

func skipSpace(b []byte, i int) int {
	for b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r' {
		i++
	}
	return i
}

// skipValue is the end of the value that begins at i of a valid object.
func skipValue(b []byte, i int) int {
	depth := 0
	for {
		switch b[i] {
		case '"':
			i = skipString(b, i)
		case '{', '[':
			depth++
			i++
		case '}', ']':
			depth--
			i++
		case ',', ':', ' ', '\t', '\n', '\r':
			i++
		default:
			i = skipScalar(b, i)
		}
		if depth == 0 {
			return i
		}
	}
}

func skipString(b []byte, i int) int {
	for i++; b[i] != '"'; i++ {
		if b[i] == '\\' {
			i++
		}
	}
	return i + 1
}

func skipScalar(b []byte, i int) int {
	for strings.IndexByte(",:]} \t\n\r", b[i]) < 0 {
		i++
	}
	return i
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
