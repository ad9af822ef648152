package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"
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
	Run(ctx context.Context, s *Session, args []string) error
}

// accepter is a program that refuses flags and arguments that exclude each other. The number of
// arguments is right already.
type accepter interface{ Accept(args []string) error }

// placed is a program whose help text ends with the place that it calls.
type placed interface{ Where() string }

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

// count checks the number of arguments by their names in the help text, such as DATASET[@REF] [DIR].
func (c *Command) count(all *Set, flags *FlagSet, args []string) error {
	names := strings.Fields(c.Args)
	needed := slices.IndexFunc(names, func(name string) bool { return strings.HasPrefix(name, "[") })
	if needed < 0 {
		needed = len(names)
	}
	switch {
	case len(args) < needed:
		name, _, _ := strings.Cut(names[len(args)], "|")
		name, _, _ = strings.Cut(name, "[")
		if values := all.Values[name]; values != nil {
			return Usagef("%s is missing; the %ss: %s", name, strings.ToLower(name), strings.Join(values, ", "))
		}
		return Usagef("%s is missing", name)
	case len(args) > len(names) && !strings.Contains(c.Args, "…"):
		return Usagef("%q is one argument too many; %s", args[len(names)], c.instead(all, flags, args, args[len(names)]))
	}
	return nil
}

// instead suggests how to say what was probably meant by an argument too many.
func (c *Command) instead(all *Set, flags *FlagSet, args []string, extra string) string {
	show, one := c.Name+" show", strings.ReplaceAll(strings.TrimSuffix(c.Name, "s"), "-", " ")
	optional := ""
	flags.Visit(func(f *pflag.Flag) {
		if strings.HasPrefix(annotation(f, valueNote), "[=") {
			optional = f.Name
		}
	})
	switch {
	case kindOf(c.Args, c.Name) == "models" && extra != "" && strings.Trim(extra, "0123456789") == "":
		return fmt.Sprintf("a version is part of the model's name: %s@%s", args[0], extra)
	case optional != "":
		return fmt.Sprintf("write --%s=%s", optional, extra)
	case slices.Contains(all.names(), show):
		return fmt.Sprintf("tidemill %s %s shows one %s", show, extra, one)
	case c.Args == "" && flags.Lookup("recipe") != nil:
		return "give a recipe by --recipe " + extra
	}
	return "put text with spaces in quotes"
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
