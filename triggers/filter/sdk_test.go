package filter

import (
	"fmt"
	"strings"
	"testing"

	sdkerrors "github.com/cloudevents/sdk-go/sql/v2/errors"
	"github.com/cloudevents/sdk-go/sql/v2/parser"

	"tidemill.dev/broker"
	"tidemill.dev/config/cesql"
)

// outcome is an engine's result of an expression as text: a value or the kind of an
// error. The TCK test checks the value with an error.
func ours(expression string, v *broker.View) string {
	x, err := cesql.Parse(expression)
	if err != nil {
		return "parse error"
	}
	value, err := compile(expression, x).Value(v)
	if err != nil {
		return kindOfFault(err) + " error"
	}
	return fmt.Sprintf("%T %v", value, value)
}

func sdks(t testing.TB, expression string, v *broker.View) (outcome string) {
	defer func() {
		if recover() != nil {
			outcome = "panic"
		}
	}()
	e, err := v.Event()
	if err != nil {
		t.Fatal(err)
	}
	x, err := parser.Parse(expression)
	if err != nil {
		return "parse error"
	}
	value, err := x.Evaluate(e)
	switch {
	case err == nil:
		return fmt.Sprintf("%T %v", value, value)
	case sdkerrors.IsMathError(err):
		return "math error"
	case sdkerrors.IsCastError(err):
		return "cast error"
	case sdkerrors.IsMissingAttributeError(err):
		return "missingAttribute error"
	case sdkerrors.IsMissingFunctionError(err):
		return "missingFunction error"
	case sdkerrors.IsFunctionEvaluationError(err):
		return "functionEvaluation error"
	}
	return err.Error()
}

// These expressions give different results here and in sdk-go. The comments cite the
// specification.
func TestKnownDifferences(t *testing.T) {
	t.Parallel()
	v := &broker.View{ID: "1", Source: "/x", Type: "t", Subject: "äöü", Time: "2026-01-31T12:00:00.50Z"}
	for _, d := range []struct{ expression, ours, sdks string }{
		// AND, OR and XOR have one precedence and are read from left to right (3.6); sdk-go reads from right to left.
		{"FALSE AND TRUE OR TRUE", "bool true", "bool false"},
		{"TRUE OR TRUE AND FALSE", "bool false", "bool true"},
		// A sign is part of a number, except where an operator is expected; sdk-go panics
		// on most expressions that it cannot read.
		{"4-1", "int32 3", "panic"},
		{"4 -1", "int32 3", "panic"},
		// Strings have Unicode's characters (3.1); sdk-go counts bytes.
		{"LENGTH(subject)", "int32 3", "int32 6"},
		{"subject LIKE '___'", "bool true", "bool false"},
		{"LEFT(subject, 1) = 'ä'", "bool true", "bool false"},
		{"RIGHT(subject, 1) = 'ü'", "bool true", "bool false"},
		{"SUBSTRING(subject, 2, 1) = 'ö'", "bool true", "bool false"},
		{"SUBSTRING('abc', 1, -1)", "functionEvaluation error", "panic"},
		// An escaped wildcard stands only for that character; sdk-go also lets the
		// backslash match.
		{`'\\abc' LIKE '\%'`, "bool false", "bool true"},
		// Integers are bounded (3.1). The specification requires an overflow error for
		// ABS only.
		{"2147483647 + 1", "math error", "int32 -2147483648"},
		{"65536 * 65536", "math error", "int32 0"},
		{"-(-2147483648)", "math error", "int32 -2147483648"},
		{"-2147483648 / -1", "math error", "int32 -2147483648"},
		// The TCK requires it.
		{"NOT 10", "cast error", "bool false"},
		// A call of an unknown function is an error when the expression is compiled, as
		// 3.3 requires.
		{"TRUE OR F()", "parse error", "bool true"},
		// A quote in a string is escaped by a backslash (2.2). In sdk-go it can be
		// doubled, and then both remain.
		{"'it''s'", "parse error", "string it''s"},
		// A time is the text that its publisher wrote.
		{"time", "string 2026-01-31T12:00:00.50Z", "string 2026-01-31T12:00:00.5Z"},
	} {
		if got := ours(d.expression, v); got != d.ours {
			t.Errorf("%s: %s, want %s", d.expression, got, d.ours)
		}
		if got := sdks(t, d.expression, v); got != d.sdks {
			t.Errorf("%s: sdk-go says %s, and not %s any more", d.expression, got, d.sdks)
		}
	}
}

// choices are a fuzzer's bytes, interpreted as decisions.
type choices []byte

func (c *choices) of(n int) int {
	if len(*c) == 0 {
		return 0
	}
	first := (*c)[0]
	*c = (*c)[1:]
	return int(first) % n
}

func (c *choices) word(all ...string) string { return all[c.of(len(all))] }

// expression returns an expression of a depth without the known differences: logic
// operators are in parentheses, operators have spaces, and texts are ASCII.
func (c *choices) expression(deep int) string {
	if deep == 0 {
		return c.operand()
	}
	x := func() string { return c.expression(deep - 1) }
	switch c.of(12) {
	case 0, 1:
		return x() + c.word(" = ", " != ", " <> ", " < ", " <= ", " > ", " >= ") + c.operand()
	case 2, 3, 4:
		return "(" + x() + ")" + c.word(" AND ", " and ", " OR ", " XOR ") + "(" + x() + ")"
	case 5:
		return c.word("NOT ", "- ") + "(" + x() + ")"
	case 6, 7:
		return c.operand() + c.word(" LIKE ", " NOT LIKE ") + c.word(`'bot-%'`, `'%a'`, `'%b%'`, `'%'`, `''`, `'b_t%1'`, `'a\%b'`, `'\_%'`, `'%a%b%'`, `'_'`)
	case 8:
		return c.operand() + c.word(" IN ", " NOT IN ") + "(" + c.operand() + ", " + x() + ", " + c.operand() + ")"
	case 9:
		return "(" + x() + ")" + c.word(" + ", " - ", " * ", " / ", " % ") + c.operand()
	case 10:
		return c.call(x)
	}
	return x()
}

func (c *choices) operand() string {
	return c.word("subject", "type", "Branch", "number", "flag", "missing", "EXISTS flag", "EXISTS subject", "EXISTS missing", "id", "time",
		"'bot-1'", "'a'", `"true"`, "'FALSE'", "'10'", "'-7'", "''", "'a%b'", `'it\'s'`, "'2147483648'", "0", "1", "10", "-7", "2147483647", "-2147483648", "TRUE", "false", "('a')")
}

func (c *choices) call(x func() string) string {
	switch name := c.word("INT", "BOOL", "STRING", "IS_INT", "IS_BOOL", "ABS", "LENGTH", "LOWER", "UPPER", "TRIM", "LEFT", "RIGHT", "SUBSTRING", "CONCAT", "CONCAT_WS", "sub"); name {
	case "LEFT", "RIGHT", "SUBSTRING":
		return name + "(" + x() + ", " + c.operand() + ")"
	case "sub":
		return "substring(" + x() + ", " + c.operand() + ", " + c.operand() + ")"
	case "CONCAT", "CONCAT_WS":
		return name + "(" + x() + ", " + c.operand() + ", " + x() + ")"
	default:
		return name + "(" + x() + ")"
	}
}

func (c *choices) view() *broker.View {
	v := &broker.View{ID: "1", Source: "/x", Type: c.word("a", "new-data", "10"), Subject: c.word("bot-1", "", "a", "true", " b ")}
	if c.of(2) == 0 {
		v.Time = "2026-01-31T12:00:00Z"
	}
	for _, name := range []string{"branch", "number", "flag"} {
		if value := c.word("main", "-", "10", "true", "False", "a%b", "", "2147483647", "+7"); value != "-" {
			v.Extensions = append(v.Extensions, broker.Attribute{Name: name, Value: value})
		}
	}
	return v
}

// This package and sdk-go have the same result for any expression and event, and a
// condition matches if its value is true.
func FuzzAgainstSDK(f *testing.F) {
	for i := range 200 {
		seed := make([]byte, 40)
		for j := range seed {
			seed[j] = byte((i*131 + j*j*17 + i*j*7) >> 1)
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed []byte) {
		c := choices(seed)
		v := c.view()
		expression := c.expression(1 + c.of(3))
		a, b := ours(expression, v), sdks(t, expression, v)
		if a != b && !excused(expression, v) {
			t.Errorf("%s is %s, and sdk-go says %s; the event is %+v", expression, a, b, *v)
		}
		if filter, err := Compile(expression); err == nil && filter.Match(v) != (a == "bool true") && !isName(expression) {
			t.Errorf("%s is %s, and Match says %t; the event is %+v", expression, a, filter.Match(v), *v)
		}
	})
}

// excused reports whether an evaluation meets a known difference.
func excused(expression string, v *broker.View) bool {
	x, err := cesql.Parse(expression)
	if err != nil {
		return false
	}
	if _, err = compile(expression, x).Value(v); err == nil {
		return false
	}
	return strings.HasSuffix(err.Error(), "is beyond the integers") ||
		err.Error() == "the length that SUBSTRING is given is negative" ||
		err.Error() == "what follows NOT is not true or false"
}

func isName(expression string) bool {
	x, err := cesql.Parse(expression)
	return err == nil && isAttribute(x)
}
