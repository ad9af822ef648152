package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"tidemill.dev/broker/network"
	"tidemill.dev/config/spelling"
)

// Session is the environment of one call of the program.
type Session struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	Network        network.Network // network on which gateways are

	all *Set // commands of the program; execute sets it
}

// Program is one call of a command. Its fields are its flags.
type Program interface {
	Flags(*FlagSet)
	Accept(args []string) error // refuses flags and arguments that exclude each other
	Run(ctx context.Context, s *Session, args []string) error
}

// Command describes a command: its help, its completion, and its program.
type Command struct {
	Name     string // one word; two for a subcommand
	Short    string // another name of one word; empty if there is none
	Daily    bool   // whether the overview explains the command
	Args     string // names of the arguments, as help shows them
	Aliases  []string
	Summary  string // one line
	About    string // the part of the help text that only `help NAME` shows
	Examples []Example
	Make     func() Program
	Lists    bool                         // whether `NAME list` and `NAME ls` do the same
	Watched  bool                         // whether --watch keeps showing it
	Values   func(args []string) []string // values of the next argument; nil completes by the argument's name
}

// Example is a command line and its purpose. A test parses each line.
type Example [2]string

// Noun is a group of commands in the overview.
type Noun struct {
	ID, Title string
	Commands  []Command
}

// Set is all commands of a program.
type Set struct {
	Summary string
	Nouns   []Noun
	Flags   func(*FlagSet)      // flags that may precede the command
	Values  map[string][]string // values of arguments, by their name in the help text
}

// Commands returns the commands of all nouns.
func (all *Set) Commands() (commands []Command) {
	for _, n := range all.Nouns {
		commands = append(commands, n.Commands...)
	}
	return commands
}

func (all *Set) names() []string {
	var names []string
	for _, c := range all.Commands() {
		if names = append(names, c.Name); c.Short != "" {
			names = append(names, c.Short)
		}
	}
	return names
}

// groupOf lists the subcommands of a word.
func (all *Set) groupOf(word string) []string {
	return slices.DeleteFunc(all.names(), func(name string) bool { return !strings.HasPrefix(name, word+" ") })
}

// Wants checks the number of arguments.
func Wants(args []string, names ...string) error {
	switch {
	case len(args) < len(names):
		return Usagef("%s is missing", names[len(args)])
	case len(args) > len(names):
		return Usagef("%q is one argument too many; put text with spaces in quotes", args[len(names)])
	}
	return nil
}

// WantsVersions is wants for models with versions.
func WantsVersions(args []string, names ...string) error {
	if len(args) > len(names) {
		if n := args[len(names)]; n != "" && strings.Trim(n, "0123456789") == "" {
			return Usagef("%q is one argument too many; a version is part of the model's name: %s@%s", n, args[0], n)
		}
	}
	return Wants(args, names...)
}

// UsageError is a mistake in the call itself.
type UsageError struct{ text string }

func (e *UsageError) Error() string { return e.text }

// Usagef returns a UsageError.
func Usagef(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }

// ErrReported is returned if the command has already printed its errors.
var ErrReported = errors.New("failed; the reasons have been printed")

// DidYouMean suggests the known word that is nearest; empty if none is near.
func DidYouMean(word string, known []string) string {
	if n, ok := Nearest(word, known); ok {
		return " did you mean " + n + "?"
	}
	return ""
}

// Nearest returns the known word that was probably meant: one that begins with the word, or one of
// which at most a third of the letters differ.
func Nearest(word string, known []string) (string, bool) {
	if i := slices.IndexFunc(known, func(k string) bool { return len(word) > 1 && strings.HasPrefix(k, word) }); i >= 0 {
		return known[i], true
	}
	return spelling.Nearest(word, known)
}
