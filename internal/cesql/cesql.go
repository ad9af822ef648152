// Package cesql reads the CloudEvents SQL Expression Language, version 1.0, into
// a tree. It is pure: what an expression means for an event is the business of
// triggers/match.
//
// Where the text of the specification and the grammar that the SDKs share
// disagree, the text counts: AND, OR and XOR have one precedence and are read
// from left to right, 4-1 is three, and what nobody can call is an error before
// the first event comes.
package cesql

import (
	"fmt"
	"unicode/utf8"
)

const (
	maxLength  = 16 << 10 // bytes
	maxNesting = 100      // of parentheses, arguments and signs
)

// Parse reads an expression. The error is a *SyntaxError.
func Parse(text string) (Expr, error) {
	if len(text) > maxLength {
		return nil, fail(1, "an expression has %d bytes at most, and this one %d", maxLength, len(text))
	}
	if !utf8.ValidString(text) {
		return nil, fail(columnOf(text, invalidAt(text)), "expected text in UTF-8")
	}
	p := &parser{text: text}
	p.advance()
	return p.whole()
}

// ParseCondition reads an expression that is to be true or false for an event,
// as a filter is. One that can be neither would match nothing, and is an error.
func ParseCondition(text string) (Expr, error) {
	x, err := Parse(text)
	if err != nil {
		return nil, err
	}
	switch kindOf(x) {
	case integerKind:
		return nil, fail(1, "expected a condition, and this is a number: compare it with something, as in LENGTH(subject) = 6")
	case textKind:
		return nil, fail(1, "expected a condition, and this is a text: compare it with something, as in type = 'new-data'")
	}
	return x, nil
}

func invalidAt(text string) int {
	for i, r := range text {
		if r == utf8.RuneError {
			if _, size := utf8.DecodeRuneInString(text[i:]); size == 1 {
				return i
			}
		}
	}
	return 0
}

// SyntaxError says where an expression is wrong, and what was expected there.
type SyntaxError struct {
	Column  int // of the first letter that is wrong; the first of the text is 1
	Message string
	cause   error
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("column %d: %s", e.Column, e.Message) }

func (e *SyntaxError) Unwrap() error { return e.cause }

func fail(column int, format string, args ...any) *SyntaxError {
	return &SyntaxError{Column: column, Message: fmt.Sprintf(format, args...)}
}

// columnOf counts letters, as people and their editors do.
func columnOf(text string, at int) int { return utf8.RuneCountInString(text[:at]) + 1 }
