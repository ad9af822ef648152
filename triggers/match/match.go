// Package match tells which events a filter wants. Filters are CloudEvents SQL,
// version 1.0, compiled to closures over event views: pure, without allocations
// for what filters mostly do, and safe for many goroutines at once.
//
// Attributes are texts here. In an event they may have types, but those do not
// survive a Kafka header; the language casts a text where an operator wants
// something else, so that sequence = 10 and urgent AND x = 'y' mean the same. A
// difference is left only where the language would cast from the attribute's own
// type: urgent + 1, where urgent is a boolean, is an error here and 2 there.
package match

import (
	"tidemill.dev/broker"
	"tidemill.dev/internal/cesql"
)

// Filter is a compiled expression.
type Filter struct {
	text      string
	value     eval
	holds     condition
	conjuncts []conjunct // what must hold, each; the index finds filters by it
}

// Compile reads a condition. The error is a *cesql.SyntaxError, which says where
// the text is wrong.
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

// String is the text it was compiled from.
func (f *Filter) String() string { return f.text }

// Match tells whether the condition holds for an event. Where it cannot be told,
// because an attribute is missing or is no number, it does not. An attribute
// alone, as in urgent AND x = 'y' or just urgent, holds if its text is true.
func (f *Filter) Match(v *broker.View) bool { return f.holds(v) == yes }

// Value is what the expression comes to: a bool, an int32 or a string. Beside an
// error there is one too, as the language has it.
func (f *Filter) Value(v *broker.View) (any, error) {
	result, fault := f.value(v)
	if fault != nil {
		return result.any(), fault
	}
	return result.any(), nil
}
