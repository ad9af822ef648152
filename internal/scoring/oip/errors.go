package oip

import (
	"errors"
	"fmt"
)

// Code is the kind of an error. Each transport has its own number for it.
type Code int8

// The kinds of errors.
const (
	Unavailable Code = iota // same request may succeed later
	Invalid                 // request is wrong, or the model refuses it
	NotFound                // there is no such model, version or path
	TooLarge                // fewer rows may succeed
	Broken                  // model cannot be loaded or used here
)

// Error is an error with its kind.
type Error struct {
	Code Code
	text string
}

// Error returns the message.
func (e *Error) Error() string { return e.text }

// Errorf makes an error of a kind.
func Errorf(code Code, format string, args ...any) error {
	return &Error{code, fmt.Sprintf(format, args...)}
}

// CodeOf returns the kind of an error. An error without a kind is Unavailable, because it comes from
// the servers below.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Unavailable
}

func invalid(format string, args ...any) error { return Errorf(Invalid, format, args...) }
