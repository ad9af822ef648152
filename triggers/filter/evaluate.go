package filter

import (
	"strconv"
	"strings"

	"tidemill.dev/broker"
	"tidemill.dev/config/cesql"
)

// eval evaluates an expression for any event. With a fault it also returns a value,
// usually the zero value of the operator. Evaluation ends at the first fault.
type eval func(*broker.View) (value, *fault)

func evaluate(x cesql.Expr) eval {
	switch x := x.(type) {
	case *cesql.Literal:
		literal := toValue(x.Value)
		return func(*broker.View) (value, *fault) { return literal, nil }
	case *cesql.Attribute:
		return evaluateAttribute(x.Name)
	case *cesql.Exists:
		get := attributeOf(x.Name)
		return func(v *broker.View) (value, *fault) { _, there := get(v); return ofBool(there), nil }
	case *cesql.Unary:
		if x.Op == "NOT" {
			return not(evaluate(x.X))
		}
		return negative(evaluate(x.X))
	case *cesql.Binary:
		return evaluateBinary(x)
	case *cesql.Like:
		return like(evaluate(x.X), newPattern(x.Pattern))
	case *cesql.In:
		return inSet(evaluate(x.X), evaluateAll(x.Set))
	}
	return call(x.(*cesql.Call)) // the only kind that is left
}

func evaluateAll(list []cesql.Expr) []eval {
	all := make([]eval, len(list))
	for i, x := range list {
		all[i] = evaluate(x)
	}
	return all
}

func evaluateAttribute(name string) eval {
	get, none := attributeOf(name), missing(name)
	return func(v *broker.View) (value, *fault) {
		s, there := get(v)
		if !there {
			return ofBool(false), none
		}
		return ofText(s), nil
	}
}

// not negates. For a number the TCK requires an error together with the value true: the
// cast gives false, and NOT negates it.
func not(x eval) eval {
	wrong := noCast("what follows NOT", boolean)
	return func(v *broker.View) (value, *fault) {
		a, f := x(v)
		if f != nil {
			return ofBool(false), f
		}
		b, ok := a.boolean()
		if !ok || a.kind == integer {
			return ofBool(true), wrong
		}
		return ofBool(!b), nil
	}
}

func negative(x eval) eval {
	minus := calculate("-")
	return func(v *broker.View) (value, *fault) {
		a, f := x(v)
		if f != nil {
			return ofInt(0), f
		}
		return minus(ofInt(0), a)
	}
}

func evaluateBinary(x *cesql.Binary) eval {
	left, right := evaluate(x.X), evaluate(x.Y)
	switch x.Op {
	case "AND", "OR", "XOR":
		return logic(x.Op, left, right)
	case "=":
		return operate(left, right, ofBool(false), equal())
	case "<", "<=", ">", ">=":
		return operate(left, right, ofBool(false), compare(x.Op))
	}
	return operate(left, right, ofInt(0), calculate(x.Op))
}

// operate evaluates both operands and then the operator.
func operate(left, right eval, zero value, op func(a, b value) (value, *fault)) eval {
	return func(v *broker.View) (value, *fault) {
		a, f := left(v)
		if f != nil {
			return zero, f
		}
		b, f := right(v)
		if f != nil {
			return zero, f
		}
		return op(a, b)
	}
}

// logic evaluates the right side only if the left side does not decide alone.
func logic(op string, left, right eval) eval {
	wrong := noCast("an operand of "+op, boolean)
	side := func(x eval, v *broker.View) (bool, *fault) {
		a, f := x(v)
		b, ok := a.boolean()
		if f == nil && !ok {
			f = wrong
		}
		return b && f == nil, f
	}
	return func(v *broker.View) (value, *fault) {
		a, f := side(left, v)
		if f != nil || op == "AND" && !a || op == "OR" && a {
			return ofBool(a), f
		}
		b, f := side(right, v)
		return ofBool(f == nil && b != (op == "XOR" && a)), f
	}
}

func like(x eval, p pattern) eval {
	return func(v *broker.View) (value, *fault) {
		a, f := x(v)
		return ofBool(f == nil && p.matches(a.text())), f
	}
}

// inSet casts each element of the set to the kind of the left value, until one is equal.
func inSet(x eval, set []eval) eval {
	noBool, noInt := noCast("a value of the list", boolean), noCast("a value of the list", integer)
	return func(v *broker.View) (value, *fault) {
		a, f := x(v)
		if f != nil {
			return ofBool(false), f
		}
		for _, y := range set {
			b, f := y(v)
			if f != nil {
				return ofBool(false), f
			}
			switch b, ok := b.castTo(a.kind); {
			case !ok && a.kind == integer:
				return ofBool(false), noInt
			case !ok:
				return ofBool(false), noBool
			case a == b:
				return ofBool(true), nil
			}
		}
		return ofBool(false), nil
	}
}

// equal casts the left side to the kind of the right side.
func equal() func(a, b value) (value, *fault) {
	noBool, noInt := noCast("the left side of =", boolean), noCast("the left side of =", integer)
	return func(a, b value) (value, *fault) {
		a, ok := a.castTo(b.kind)
		switch {
		case ok:
			return ofBool(a == b), nil
		case b.kind == boolean:
			return ofBool(false), noBool
		}
		return ofBool(false), noInt
	}
}

func compare(op string) func(a, b value) (value, *fault) {
	wrong := noCast("an operand of "+op, integer)
	holds := map[string]func(x, y int32) bool{
		"<":  func(x, y int32) bool { return x < y },
		"<=": func(x, y int32) bool { return x <= y },
		">":  func(x, y int32) bool { return x > y },
		">=": func(x, y int32) bool { return x >= y },
	}[op]
	return func(a, b value) (value, *fault) {
		x, ok := a.integer()
		y, also := b.integer()
		if !ok || !also {
			return ofBool(false), wrong
		}
		return ofBool(holds(x, y)), nil
	}
}

// calculate computes with more bits than the result has, so it notices an overflow. The
// language only says that integers are bounded; an error is better than a wrong number.
func calculate(op string) func(a, b value) (value, *fault) {
	wrong, zero, overflow := noCast("an operand of "+op, integer), &fault{mathFault, "division by zero"}, &fault{mathFault, "the result of " + op + " is beyond the integers"}
	result := arithmetic(op)
	return func(a, b value) (value, *fault) {
		x, ok := a.integer()
		y, also := b.integer()
		if !ok || !also {
			return ofInt(0), wrong
		}
		if y == 0 && (op == "/" || op == "%") {
			return ofInt(0), zero
		}
		n := result(int64(x), int64(y))
		if n != int64(int32(n)) {
			return ofInt(0), overflow
		}
		return ofInt(int32(n)), nil
	}
}

func arithmetic(op string) func(x, y int64) int64 {
	switch op {
	case "+":
		return func(x, y int64) int64 { return x + y }
	case "-":
		return func(x, y int64) int64 { return x - y }
	case "*":
		return func(x, y int64) int64 { return x * y }
	case "/":
		return func(x, y int64) int64 { return x / y }
	}
	return func(x, y int64) int64 { return x % y }
}

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
