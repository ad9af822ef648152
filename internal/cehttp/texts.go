package cehttp

import (
	"strings"
	"unicode/utf8"
)

// texts is memory for what cannot point into a message, such as a name in lower
// case: one allocation for all of an event's, nearly always.
type texts struct{ b strings.Builder }

const usualTexts = 128

func (t *texts) grow(n int) (start int) {
	if t.b.Cap()-t.b.Len() < n {
		// A full one is left to those that point into it; growing it would copy.
		t.b = strings.Builder{}
		t.b.Grow(max(n, usualTexts))
	}
	return t.b.Len()
}

// name is the attribute that a header ce-<name> carries. net/http has made its
// first letter upper case.
func (t *texts) name(key string) string {
	switch key {
	case headerSpecVersion:
		return "specversion"
	case "Ce-Id":
		return "id"
	case "Ce-Source":
		return "source"
	case "Ce-Type":
		return "type"
	case "Ce-Subject":
		return "subject"
	case "Ce-Time":
		return "time"
	case "Ce-Dataschema":
		return "dataschema"
	}
	return t.lower(key[len(headerPrefix):])
}

// lower is ASCII's lower case and no more: no letter beyond it is in a name.
func (t *texts) lower(s string) string {
	start := t.grow(len(s))
	for i := range len(s) {
		c := s[i]
		if c >= 'A' && c <= 'Z' {
			c |= 0x20
		}
		t.b.WriteByte(c)
	}
	return t.b.String()[start:]
}

// decode is an attribute's value of a header's: quotes are taken off and one
// round of percent-decoding is done. A percent sign that begins no escape stands
// for itself, and so does a quote within a value: half of the SDKs, sdk-go too,
// write values as they are, and 100% has to survive.
func (t *texts) decode(name, value string) string {
	value = unquote(value)
	plain := t.unescape(value)
	if (name == "source" || name == "dataschema") && utf8.ValidString(plain) && !isURI(plain) {
		// The escapes are the URI's own, from one of those SDKs: a writer that
		// encodes would have encoded their percent signs.
		return value
	}
	return plain
}

// unquote undoes a quoted-string of RFC 7230 if that is what the whole value
// is, which is how writers before 1.0.2 of the binding protected spaces.
func unquote(s string) string {
	if len(s) < 2 || s[0] != '"' || s[len(s)-1] != '"' {
		return s
	}
	inner := s[1 : len(s)-1]
	if !strings.ContainsAny(inner, `"\`) {
		return inner
	}
	plain := make([]byte, 0, len(inner))
	for i := 0; i < len(inner); i++ {
		switch c := inner[i]; {
		case c == '"', c == '\\' && i+1 == len(inner):
			return s // it ends before its end, so it is none
		case c == '\\':
			i++
		}
		plain = append(plain, inner[i])
	}
	return string(plain)
}

func (t *texts) unescape(s string) string {
	next := escape(s)
	if next < 0 {
		return s
	}
	start := t.grow(len(s))
	for ; next >= 0; next = escape(s) {
		t.b.WriteString(s[:next])
		t.b.WriteByte(unhex(s[next+1])<<4 | unhex(s[next+2]))
		s = s[next+3:]
	}
	t.b.WriteString(s)
	return t.b.String()[start:]
}
