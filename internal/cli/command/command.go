package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
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

// next lists the words that begin with a prefix and may follow the first words of a command.
func (all *Set) next(words []string, prefix string) []string {
	var found []string
	for _, name := range all.names() {
		parts := strings.Fields(name)
		if n := len(words); len(parts) > n && slices.Equal(parts[:n], words) && strings.HasPrefix(parts[n], prefix) && !slices.Contains(found, parts[n]) {
			found = append(found, parts[n])
		}
	}
	return found
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
	case len(all.groupOf(c.Name)) > 0:
		return "tidemill help " + c.Name + " lists its commands"
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

// performer executes a call that is parsed and checked.
type performer func(ctx context.Context, c *Command, p Program, args []string) error

// Execute parses a command line and passes it to perform. If perform is nil, the command runs.
func (all *Set) Execute(ctx context.Context, s *Session, args []string, perform performer) error {
	if perform == nil {
		perform = func(ctx context.Context, _ *Command, p Program, args []string) error { return p.Run(ctx, s, args) }
	}
	root := all.Root(s, args, perform)
	root.SetArgs(withList(root, twoDashes(root, args)))
	return root.ExecuteContext(ctx)
}

// Tree returns all commands, for documentation. They cannot be run.
func (all *Set) Tree() *cobra.Command {
	return all.Root(&Session{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard, Getenv: func(string) string { return "" }}, nil, nil)
}

// withList adds the word list to a group's name that stands alone: data lists the datasets, as models
// lists the models.
func withList(root *cobra.Command, args []string) []string {
	c, rest, err := root.Find(args)
	if err != nil || c == root || !c.DisableFlagParsing || len(rest) > 0 && (rest[0] == "-h" || !strings.HasPrefix(rest[0], "-") || strings.HasSuffix(rest[0], "-help")) {
		return args
	}
	if list, _, err := c.Find([]string{"list"}); err != nil || list == c {
		return args
	}
	return append([]string{c.Name(), "list"}, rest...)
}

// Root makes cobra's tree of commands for one call.
func (all *Set) Root(s *Session, call []string, perform performer) *cobra.Command {
	s.all = all
	root := &cobra.Command{Use: "tidemill", Short: all.Summary, Args: cobra.ArbitraryArgs, SilenceErrors: true, SilenceUsage: true, DisableFlagParsing: true}
	root.RunE = func(c *cobra.Command, args []string) error { return noCommand(c, s, args) }
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetOut(s.Stdout)
	root.SetErr(s.Stderr)
	root.SetIn(s.Stdin)
	root.SetHelpFunc(func(c *cobra.Command, _ []string) { all.explain(c, s.Stdout) })
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return flagError(c, call, err) })
	all.Flags(&FlagSet{root.Flags()}) // flags may precede the command: cobra has to know which of them have a value
	for _, n := range all.Nouns {
		root.AddGroup(&cobra.Group{ID: n.ID, Title: n.Title})
		for i := range n.Commands {
			grow(root, &n.Commands[i], n.ID, s, perform)
		}
	}
	for _, c := range root.Commands() {
		if singular, plural := strings.CutSuffix(c.Name(), "s"); plural && c.HasSubCommands() {
			c.Aliases = append(c.Aliases, singular) // tidemill run show is tidemill runs show
		}
	}
	return root
}

// grow adds a command to the tree; a subcommand is added below its first word.
func grow(root *cobra.Command, c *Command, noun string, s *Session, perform performer) {
	leaf := leafOf(c, c.Name[strings.LastIndex(c.Name, " ")+1:], s, perform)
	if c.Name == "help" {
		leaf.GroupID = noun
		root.SetHelpCommand(leaf)
		return
	}
	first, _, below := strings.Cut(c.Name, " ")
	if !below {
		leaf.GroupID = noun
		root.AddCommand(leaf)
	} else {
		parentOf(root, first, noun, s).AddCommand(leaf)
	}
	if c.Short != "" {
		short := leafOf(c, c.Short, s, perform)
		short.Hidden = true
		root.AddCommand(short)
	}
	if c.Lists {
		list := leafOf(c, "list", s, perform)
		list.Aliases, list.Hidden = []string{"ls"}, true
		leaf.AddCommand(list)
	}
}

// parentOf finds the command of a first word. A word such as data is not a command itself: it gets
// one that lists its subcommands.
func parentOf(root *cobra.Command, word, noun string, s *Session) *cobra.Command {
	for _, c := range root.Commands() {
		if c.Name() == word {
			return c
		}
	}
	parent := &cobra.Command{Use: word, Short: strings.Join(s.all.groupOf(word), ", "), GroupID: noun, Args: cobra.ArbitraryArgs, DisableFlagParsing: true}
	parent.RunE = func(c *cobra.Command, args []string) error { return noCommand(c, s, args) }
	root.AddCommand(parent)
	return parent
}

func leafOf(c *Command, word string, s *Session, perform performer) *cobra.Command {
	one := c.Make()
	p := one
	if c.Watched {
		p = &Watching{Program: p}
	}
	leaf := &cobra.Command{Use: strings.TrimSpace(word + " " + c.Args), Aliases: c.Aliases, Short: c.Summary, Long: c.long(one), Example: exampleText(c.Examples), Args: cobra.ArbitraryArgs}
	leaf.Flags().SortFlags = false
	f := &FlagSet{leaf.Flags()}
	p.Flags(f)
	leaf.RunE = func(at *cobra.Command, args []string) error {
		if err := f.readEnv(s.Getenv); err != nil {
			return err
		}
		if err := c.count(s.all, f, args); err != nil {
			return err
		}
		if a, accepts := one.(accepter); accepts {
			if err := a.Accept(args); err != nil {
				return err
			}
		}
		return perform(at.Context(), c, p, args)
	}
	completeArguments(leaf, c, one, f, s)
	return leaf
}

// long returns the part of the help text that only `help NAME` shows.
func (c *Command) long(p Program) string {
	if at, is := p.(placed); is {
		return strings.TrimPrefix(c.About+"\n\n"+at.Where(), "\n\n")
	}
	return c.About
}

// noCommand returns the error of a call that names no command.
func noCommand(c *cobra.Command, s *Session, args []string) error {
	known := c.Root().Flags()
	for i := 0; i < len(args); i++ {
		word := args[i]
		switch {
		case word == "-h" || word == "--help" || word == "-help":
			return c.Help()
		case word == "--version" && !c.HasParent():
			return runVersion(c)
		case !strings.HasPrefix(word, "-"):
			return s.all.unknown(path(c, word))
		}
		name, _, valued := strings.Cut(strings.TrimLeft(word, "-"), "=")
		f := known.Lookup(name)
		if f == nil {
			return unknownFlag(&FlagSet{known}, "", word)
		}
		if !valued && f.NoOptDefVal == "" {
			i++
		}
	}
	return c.Help()
}

// runVersion does what the command version does.
func runVersion(root *cobra.Command) error {
	version, _, err := root.Find([]string{"version"})
	if err != nil {
		return err
	}
	version.SetContext(root.Context())
	return version.RunE(version, nil)
}

func (all *Set) unknown(name string) error {
	return Usagef("there is no command %q:%s tidemill help lists all commands", name, DidYouMean(name, all.names()))
}

// path returns the full name of a subcommand.
func path(c *cobra.Command, word string) string {
	if !c.HasParent() {
		return word
	}
	return c.Name() + " " + word
}
