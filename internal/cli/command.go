package cli

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

// session is the environment of one call of the program.
type session struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	network        network.Network // network on which gateways are

	all *set // commands of the program; execute sets it
}

// program is one call of a command. Its fields are its flags.
type program interface {
	flags(*flagSet)
	accept(args []string) error // refuses flags and arguments that exclude each other
	run(ctx context.Context, s *session, args []string) error
}

// command describes a command: its help, its completion, and its program.
type command struct {
	name     string // one word; two for a subcommand
	short    string // another name of one word; empty if there is none
	daily    bool   // whether the overview explains the command
	args     string // names of the arguments, as help shows them
	aliases  []string
	summary  string // one line
	about    string // the part of the help text that only `help NAME` shows
	examples []example
	make     func() program
	lists    bool                         // whether `NAME list` and `NAME ls` do the same
	watched  bool                         // whether --watch keeps showing it
	values   func(args []string) []string // values of the next argument; nil completes by the argument's name
}

// example is a command line and its purpose. A test parses each line.
type example [2]string

// noun is a group of commands in the overview.
type noun struct {
	id, title string
	commands  []command
}

// set is all commands of a program.
type set struct {
	summary string
	nouns   []noun
	flags   func(*flagSet)      // flags that may precede the command
	values  map[string][]string // values of arguments, by their name in the help text
}

func (all *set) commands() (commands []command) {
	for _, n := range all.nouns {
		commands = append(commands, n.commands...)
	}
	return commands
}

func (all *set) names() []string {
	var names []string
	for _, c := range all.commands() {
		if names = append(names, c.name); c.short != "" {
			names = append(names, c.short)
		}
	}
	return names
}

// groupOf lists the subcommands of a word.
func (all *set) groupOf(word string) []string {
	return slices.DeleteFunc(all.names(), func(name string) bool { return !strings.HasPrefix(name, word+" ") })
}

// wants checks the number of arguments.
func wants(args []string, names ...string) error {
	switch {
	case len(args) < len(names):
		return usagef("%s is missing", names[len(args)])
	case len(args) > len(names):
		return usagef("%q is one argument too many; put text with spaces in quotes", args[len(names)])
	}
	return nil
}

// wantsVersions is wants for models with versions.
func wantsVersions(args []string, names ...string) error {
	if len(args) > len(names) {
		if n := args[len(names)]; n != "" && strings.Trim(n, "0123456789") == "" {
			return usagef("%q is one argument too many; a version is part of the model's name: %s@%s", n, args[0], n)
		}
	}
	return wants(args, names...)
}

// usageError is a mistake in the call itself.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// errReported is returned if the command has already printed its errors.
var errReported = errors.New("failed; the reasons have been printed")

// didYouMean suggests the known word that is nearest; empty if none is near.
func didYouMean(word string, known []string) string {
	if n, ok := nearest(word, known); ok {
		return " did you mean " + n + "?"
	}
	return ""
}

// nearest returns the known word that was probably meant: one that begins with the word, or one of
// which at most a third of the letters differ.
func nearest(word string, known []string) (string, bool) {
	if i := slices.IndexFunc(known, func(k string) bool { return len(word) > 1 && strings.HasPrefix(k, word) }); i >= 0 {
		return known[i], true
	}
	return spelling.Nearest(word, known)
}

func checkOutput(output string) error {
	if output != "text" && output != "json" {
		return usagef("-o %q: give text or json", output)
	}
	return nil
}
