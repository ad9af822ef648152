package filter

import (
	"strconv"
	"strings"

	"tidemill.dev/broker"
)

type kind uint8

const (
	boolean kind = iota
	integer
	text
)

// value is one of the three kinds. It allocates nothing.
type value struct {
	kind kind
	b    bool
	i    int32
	s    string
}

func ofBool(b bool) value   { return value{kind: boolean, b: b} }
func ofInt(i int32) value   { return value{kind: integer, i: i} }
func ofText(s string) value { return value{kind: text, s: s} }

// toValue returns the value of a literal.
func toValue(literal any) value {
	switch l := literal.(type) {
	case bool:
		return ofBool(l)
	case int32:
		return ofInt(l)
	}
	s, _ := literal.(string) // there are no other literals
	return ofText(s)
}

func (v value) any() any {
	switch v.kind {
	case boolean:
		return v.b
	case integer:
		return v.i
	}
	return v.s
}

// castTo casts a value. Every number is a text and a boolean, but not every text is either.
func (v value) castTo(k kind) (value, bool) {
	switch {
	case v.kind == k:
		return v, true
	case k == text:
		return ofText(v.text()), true
	case k == boolean:
		b, ok := v.boolean()
		return ofBool(b), ok
	}
	i, ok := v.integer()
	return ofInt(i), ok
}

func (v value) text() string {
	switch v.kind {
	case boolean:
		return strconv.FormatBool(v.b)
	case integer:
		return strconv.Itoa(int(v.i))
	}
	return v.s
}

func (v value) boolean() (b, ok bool) {
	switch v.kind {
	case integer:
		return v.i != 0, true
	case text:
		return parseBool(v.s)
	}
	return v.b, true
}

func (v value) integer() (i int32, ok bool) {
	switch {
	case v.kind == text:
		return parseInt(v.s)
	case v.kind == integer:
		return v.i, true
	case v.b:
		return 1, true
	}
	return 0, true
}

// parseBool accepts true and false in any case.
func parseBool(s string) (b, ok bool) {
	switch {
	case len(s) == len("true") && strings.EqualFold(s, "true"):
		return true, true
	case len(s) == len("false") && strings.EqualFold(s, "false"): // the length excludes a long s
		return false, true
	}
	return false, false
}

// parseInt is strconv.ParseInt for 32 bits without its error, which would allocate memory
// for each event without a number.
func parseInt(s string) (int32, bool) {
	negative := false
	if s != "" && (s[0] == '-' || s[0] == '+') {
		negative, s = s[0] == '-', s[1:]
	}
	n := int64(0)
	for i := range len(s) {
		digit := s[i] - '0'
		if n = 10*n + int64(digit); digit > 9 || n > 1<<31 {
			return 0, false
		}
	}
	if negative {
		n = -n
	}
	return int32(n), s != "" && n < 1<<31
}

// faultKind is the kind of an error of the language.
type faultKind uint8

const (
	mathFault faultKind = iota + 1
	castFault
	missingAttribute
	functionFault
)

// fault is an error of an evaluation. It is made when the expression is compiled,
// because many events lack an attribute.
type fault struct {
	kind faultKind
	text string
}

func (f *fault) Error() string { return f.text }

func missing(attribute string) *fault {
	return &fault{missingAttribute, "the event has no attribute " + attribute}
}

func noCast(of string, to kind) *fault {
	wanted := "true or false"
	if to == integer {
		wanted = "an integer"
	}
	return &fault{castFault, of + " is not " + wanted}
}

// attribute gets an attribute of an event. It is chosen at compile time, so the name is
// not compared for each event.
type attribute func(*broker.View) (text string, there bool)

func attributeOf(name string) attribute {
	switch name {
	case "id":
		return func(v *broker.View) (string, bool) { return v.ID, v.ID != "" }
	case "source":
		return func(v *broker.View) (string, bool) { return v.Source, v.Source != "" }
	case "type":
		return func(v *broker.View) (string, bool) { return v.Type, v.Type != "" }
	case "subject":
		return func(v *broker.View) (string, bool) { return v.Subject, v.Subject != "" }
	case "time":
		return func(v *broker.View) (string, bool) { return v.Time, v.Time != "" }
	case "dataschema", "datacontenttype":
		return func(v *broker.View) (string, bool) { return v.Attribute(name) }
	}
	return extension(name)
}

func extension(name string) attribute {
	return func(v *broker.View) (string, bool) {
		for i := range v.Extensions {
			if v.Extensions[i].Name == name {
				return v.Extensions[i].Value, true
			}
		}
		return "", false
	}
}

// always reports whether every event has an attribute.
func always(name string) bool {
	return name == "id" || name == "source" || name == "specversion" || name == "type"
}
