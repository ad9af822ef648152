// Package filter evaluates the filters of triggers and recipes. Filters are CloudEvents
// SQL, version 1.0, compiled to closures over event views. They are pure, mostly
// allocate nothing, and are safe for concurrent use.
//
// Attributes are texts here, because the types that they have in an event do not survive a Kafka
// header. The language casts a text if an operator needs another type, so sequence = 10 and urgent
// AND x = 'y' mean the same. The only difference is where the language would cast from the
// attribute's own type: urgent + 1, where urgent is a boolean, is an error here and 2 there.
package filter

import (
	"fmt"

	"tidemill.dev/broker"
	"tidemill.dev/config/cesql"
)

// Filter is a compiled expression.
type Filter struct {
	text      string
	value     eval
	holds     condition
	conjuncts []conjunct // conditions that must all hold, for the index
}

// Compile compiles a condition. The error is a *cesql.SyntaxError with the position of the mistake.
func Compile(where string) (*Filter, error) {
	x, err := cesql.ParseCondition(where)
	if err != nil {
		return nil, err
	}
	return compile(where, x), nil
}

func compile(text string, x cesql.Expr) *Filter {
	x = simplify(x)
	f := &Filter{text: text, value: evaluate(x), conjuncts: conjuncts(x)}
	f.holds = allOf(f.conjuncts)
	return f
}

// String returns the text of the filter.
func (f *Filter) String() string { return f.text }

// Match reports whether the condition holds for an event. It does not hold after an
// error, such as a missing attribute or one that is not a number. An attribute alone, as
// in urgent AND x = 'y' or just urgent, holds if its text is true.
func (f *Filter) Match(v *broker.View) bool { return f.holds(v) == yes }

// Value returns the value of the expression: a bool, an int32 or a string. As the
// language requires, an error comes with a value too.
func (f *Filter) Value(v *broker.View) (any, error) {
	result, fault := f.value(v)
	if fault != nil {
		return result.any(), fault
	}
	return result.any(), nil
}

// simplify replaces parts that do not depend on the event by their values, because
// comparisons with values are fast. A part with an error stays as it is.
func simplify(x cesql.Expr) cesql.Expr {
	switch x := x.(type) {
	case *cesql.Attribute:
		if x.Name == "specversion" {
			return &cesql.Literal{Value: "1.0"}
		}
	case *cesql.Exists:
		if always(x.Name) {
			return &cesql.Literal{Value: true}
		}
	case *cesql.Unary:
		y := &cesql.Unary{Op: x.Op, X: simplify(x.X)}
		return folded(y, y.X)
	case *cesql.Like:
		y := &cesql.Like{X: simplify(x.X), Pattern: x.Pattern}
		return folded(y, y.X)
	case *cesql.Binary:
		return simplifyBinary(x)
	case *cesql.In:
		set := simplifyAll(x.Set)
		y := &cesql.In{X: simplify(x.X), Set: set}
		return folded(y, append(set, y.X)...)
	case *cesql.Call:
		args := simplifyAll(x.Args)
		return folded(&cesql.Call{Name: x.Name, Args: args}, args...)
	}
	return x
}

func simplifyBinary(x *cesql.Binary) cesql.Expr {
	y := &cesql.Binary{Op: x.Op, X: simplify(x.X), Y: simplify(x.Y)}
	if l, ok := y.X.(*cesql.Literal); ok && (x.Op == "AND" || x.Op == "OR") {
		if b, ok := toValue(l.Value).boolean(); ok && b == (x.Op == "OR") {
			return &cesql.Literal{Value: b}
		}
	}
	return folded(y, y.X, y.Y)
}

func simplifyAll(list []cesql.Expr) []cesql.Expr {
	all := make([]cesql.Expr, len(list))
	for i, x := range list {
		all[i] = simplify(x)
	}
	return all
}

// folded returns the value of an expression whose operands are values.
func folded(x cesql.Expr, operands ...cesql.Expr) cesql.Expr {
	for _, o := range operands {
		if _, ok := o.(*cesql.Literal); !ok {
			return x
		}
	}
	result, f := evaluate(x)(nil)
	if f != nil {
		return x
	}
	return &cesql.Literal{Value: result.any()}
}

// longest is the largest number of bytes of an attribute.
const longest = 64 << 10

// CompileFor compiles expressions of untrusted authors. It refuses an expression that
// could keep the machine busy with a single event: most bounds the bytes that one
// evaluation may examine in the worst case.
func CompileFor(where string, most int) (*Filter, error) {
	x, err := cesql.ParseCondition(where)
	if err != nil {
		return nil, err
	}
	if _, work := effort(x); work > most {
		return nil, fmt.Errorf("it could take too long for one event: write shorter patterns between two %%, or fewer functions inside of each other")
	}
	return compile(where, x), nil // compiling computes constant parts, so it comes after the check
}

// effort bounds the length of an expression's value, and the bytes examined for it with attributes
// of the largest size. Neither overflows an int, because an expression is short.
func effort(x cesql.Expr) (length, work int) {
	switch x := x.(type) {
	case *cesql.Literal:
		s, _ := x.Value.(string)
		return len(s), 0
	case *cesql.Attribute:
		return longest, 0
	case *cesql.Unary:
		_, work = effort(x.X)
	case *cesql.Binary:
		a, left := effort(x.X)
		b, right := effort(x.Y)
		return 0, left + right + min(a, b)
	case *cesql.Like:
		length, work = effort(x.X)
		return 0, work + length*retriesOf(x.Pattern)
	case *cesql.In:
		length, work = effort(x.X)
		_, set := effortOfAll(x.Set)
		return 0, work + set + length
	case *cesql.Call:
		return effortOfCall(x)
	}
	return 0, work
}

func effortOfAll(list []cesql.Expr) (length, work int) {
	for _, x := range list {
		l, w := effort(x)
		length, work = length+l, work+w
	}
	return length, work
}

// effortOfCall assumes that a function reads all its arguments and returns as much. An
// upper-case letter may take more bytes than the lower-case one.
func effortOfCall(x *cesql.Call) (length, work int) {
	length, work = effortOfAll(x.Args)
	switch x.Name {
	case "CONCAT_WS":
		if len(x.Args) > 0 {
			between, _ := effort(x.Args[0])
			length += between * len(x.Args)
		}
	case "UPPER", "LOWER":
		length += length / 2
	}
	length = min(length, 2*mostText)
	return length, work + length
}

// retriesOf returns how often a character of the text is examined in the worst case: the
// largest number of characters between two %.
func retriesOf(written string) int {
	most, run, p := 1, 0, newPattern(written)
	if p.plain {
		return most
	}
	for _, r := range p.letters {
		if run++; r == anyText {
			run = 0
		}
		most = max(most, run)
	}
	return most
}
