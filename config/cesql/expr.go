package cesql

import (
	"errors"
	"fmt"
	"math"
)

// Expr is a part of an expression: one of the types below.
type Expr interface{ expr() }

// Literal is a value: a bool, an int32 or a string.
type Literal struct{ Value any }

// Attribute is the value of an event's attribute.
type Attribute struct{ Name string } // in lower case

// Exists is true if an event has an attribute.
type Exists struct{ Name string } // in lower case

// Unary is NOT or -. An operator that the language defines as NOT (…) is parsed as that: !=,
// <>, NOT LIKE and NOT IN.
type Unary struct {
	Op string
	X  Expr
}

// Binary is one of AND OR XOR = < <= > >= + - * / %.
type Binary struct {
	Op   string
	X, Y Expr
}

// Like compares with a pattern. The pattern is unchanged: %, _ and their escapes are as written.
type Like struct {
	X       Expr
	Pattern string
}

// In is true if a value is in a set. The set is not empty.
type In struct {
	X   Expr
	Set []Expr
}

// Call calls a function that exists and accepts this number of arguments.
type Call struct {
	Name string // in upper case
	Args []Expr
}

func (*Literal) expr()   {}
func (*Attribute) expr() {}
func (*Exists) expr()    {}
func (*Unary) expr()     {}
func (*Binary) expr()    {}
func (*Like) expr()      {}
func (*In) expr()        {}
func (*Call) expr()      {}

// ErrNoFunction is in the chain of the error about a call of an unknown function, which the
// language distinguishes from other errors.
var ErrNoFunction = errors.New("there is no such function")

// kind is the type of a value as far as it is known before there is an event.
type kind uint8

const (
	unknownKind kind = iota // an attribute's: the type depends on its text
	booleanKind
	integerKind
	textKind
)

type function struct {
	name        string
	least, most int // number of arguments
	result      kind
}

// functions returns the functions of the language. IS_BOOL and IS_INT were in its drafts, and
// the SDKs have kept them.
func functions() []function {
	const any = math.MaxInt
	return []function{
		{"ABS", 1, 1, integerKind},
		{"BOOL", 1, 1, booleanKind},
		{"CONCAT", 0, any, textKind},
		{"CONCAT_WS", 1, any, textKind},
		{"INT", 1, 1, integerKind},
		{"IS_BOOL", 1, 1, booleanKind},
		{"IS_INT", 1, 1, booleanKind},
		{"LEFT", 2, 2, textKind},
		{"LENGTH", 1, 1, integerKind},
		{"LOWER", 1, 1, textKind},
		{"RIGHT", 2, 2, textKind},
		{"STRING", 1, 1, textKind},
		{"SUBSTRING", 2, 3, textKind},
		{"TRIM", 1, 1, textKind},
		{"UPPER", 1, 1, textKind},
	}
}

func lookUp(name string) (function, bool) {
	for _, f := range functions() {
		if f.name == name {
			return f, true
		}
	}
	return function{}, false
}

// checkCall reports a call that would fail for every event.
func checkCall(column int, c *Call) error {
	f, ok := lookUp(c.Name)
	var e *SyntaxError
	switch n := len(c.Args); {
	case !ok:
		var names []string
		for _, f := range functions() {
			names = append(names, f.name)
		}
		e = fail(column, "there is no function %s%s", shorten(c.Name), didYouMean(c.Name, names))
	case n < f.least || n > f.most:
		e = fail(column, "%s takes %s, and here %s", c.Name, f.takes(), areMany(n))
	default:
		return nil
	}
	e.cause = ErrNoFunction
	return e
}

func (f function) takes() string {
	switch {
	case f.most == f.least && f.least == 1:
		return "one argument"
	case f.most == f.least:
		return fmt.Sprintf("%d arguments", f.least)
	case f.most == math.MaxInt:
		return fmt.Sprintf("%d or more arguments", f.least)
	}
	return fmt.Sprintf("%d or %d arguments", f.least, f.most)
}

func areMany(n int) string {
	switch n {
	case 0:
		return "are none"
	case 1:
		return "is one"
	}
	return fmt.Sprintf("are %d", n)
}

func kindOf(x Expr) kind {
	switch x := x.(type) {
	case *Literal:
		switch x.Value.(type) {
		case int32:
			return integerKind
		case string:
			return textKind
		}
	case *Attribute:
		return unknownKind
	case *Unary:
		if x.Op == "-" {
			return integerKind
		}
	case *Binary:
		switch x.Op {
		case "+", "-", "*", "/", "%":
			return integerKind
		}
	case *Call:
		f, _ := lookUp(x.Name) // checkCall has checked that it exists
		return f.result
	}
	return booleanKind
}
