package cli

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// program is one call of a command. Its fields are its flags.
type program interface {
	flags(*flagSet)
	accept(args []string) error // refuses flags and arguments that exclude each other
	run(ctx context.Context, s *session, args []string) error
}

// command describes a command: its help, its completion, and its program.
type command struct {
	name     string // one word; two for a subcommand
	args     string // names of the arguments, as help shows them
	aliases  []string
	summary  string // one line
	about    string // the part of the help text that only `help NAME` shows
	examples []example
	make     func() program
	lists    bool // whether `NAME list` and `NAME ls` do the same
}

// example is a command line and its purpose. A test parses each line.
type example struct{ line, does string }

// noun is a group of commands in the overview.
type noun struct {
	id, title string
	commands  []command
}

func nouns() []noun {
	return []noun{
		{"operate", "Start and operate", []command{
			upCommand(), initCommand(), demoCommand(), serveCommand(), validateCommand(),
			tokenNewCommand(), tokenListCommand(), tokenRemoveCommand(), completionCommand(), versionCommand(), helpCommand()}},
		{"streams", "Streams", []command{publishCommand(), tailCommand(), streamsCommand()}},
		{"triggers", "Triggers, schedules and dead letters", []command{
			triggersCommand(), triggersShowCommand(), triggersPauseCommand(), triggersResumeCommand(), triggersReplayCommand(),
			schedulesCommand(), schedulesPauseCommand(), schedulesResumeCommand(),
			lettersCommand(), lettersShowCommand(), lettersReplayCommand(), lettersDropCommand()}},
		{"data", "Data", []command{
			dataPutCommand(), dataGetCommand(), dataListCommand(), dataLogCommand(), dataDiffCommand(), dataBranchCommand(), dataCollectCommand(), forgetCommand()}},
		{"runs", "Runs, recipes and pools", []command{
			runsCommand(), runsShowCommand(), runsStartCommand(), runsCancelCommand(), runsRetryCommand(), logsCommand(), whyCommand(), tryCommand(),
			recipesCommand(), recipesPauseCommand(), recipesResumeCommand(), poolsCommand(), poolsPauseCommand(), poolsResumeCommand()}},
		{"models", "Models", []command{
			modelsCommand(), modelsShowCommand(), modelsRollbackCommand(), compareCommand(), promoteCommand(), rollbackCommand(), pinCommand(), unpinCommand(),
			promotionsCommand(), promotionsFreezeCommand(), promotionsThawCommand()}},
		{"scorers", "Scorers", []command{scorersCommand(), scoreCommand(), rescoreCommand()}},
	}
}

func commands() (all []command) {
	for _, n := range nouns() {
		all = append(all, n.commands...)
	}
	return all
}

func commandNames() []string {
	var names []string
	for _, c := range commands() {
		names = append(names, c.name)
	}
	return names
}

// groupOf lists the subcommands of a word.
func groupOf(word string) []string {
	return slices.DeleteFunc(commandNames(), func(name string) bool { return !strings.HasPrefix(name, word+" ") })
}

// performer executes a call that is parsed and checked.
type performer func(ctx context.Context, c *command, p program, args []string) error

// execute parses a command line and passes it to perform.
func execute(ctx context.Context, s *session, args []string, perform performer) error {
	root := newRoot(s, args, perform)
	root.SetArgs(twoDashes(root, args))
	return root.ExecuteContext(ctx)
}

// newRoot makes cobra's tree of commands for one call.
func newRoot(s *session, call []string, perform performer) *cobra.Command {
	root := &cobra.Command{Use: "tidemill", Short: summary, Args: cobra.ArbitraryArgs, SilenceErrors: true, SilenceUsage: true, DisableFlagParsing: true}
	root.RunE = func(c *cobra.Command, args []string) error { return noCommand(c, s, args) }
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetOut(s.stdout)
	root.SetErr(s.stderr)
	root.SetIn(s.stdin)
	root.SetHelpFunc(func(c *cobra.Command, _ []string) { explain(c, s.stdout) })
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return flagError(c, call, err) })
	new(reach).flags(&flagSet{root.Flags()}) // flags may precede the command: cobra has to know which of them have a value
	for _, n := range nouns() {
		root.AddGroup(&cobra.Group{ID: n.id, Title: n.title})
		for i := range n.commands {
			grow(root, &n.commands[i], n.id, s, perform)
		}
	}
	return root
}

// grow adds a command to the tree; a subcommand is added below its first word.
func grow(root *cobra.Command, c *command, noun string, s *session, perform performer) {
	leaf := leafOf(c, c.name[strings.LastIndex(c.name, " ")+1:], s, perform)
	if c.name == "help" {
		leaf.GroupID = noun
		root.SetHelpCommand(leaf)
		return
	}
	first, _, below := strings.Cut(c.name, " ")
	if !below {
		leaf.GroupID = noun
		root.AddCommand(leaf)
	} else {
		parentOf(root, first, noun, s).AddCommand(leaf)
	}
	if c.lists {
		list := leafOf(c, "list", s, perform)
		list.Aliases, list.Hidden = []string{"ls"}, true
		leaf.AddCommand(list)
	}
}

// parentOf finds the command of a first word. A word such as data is not a command itself: it gets
// one that lists its subcommands.
func parentOf(root *cobra.Command, word, noun string, s *session) *cobra.Command {
	for _, c := range root.Commands() {
		if c.Name() == word {
			return c
		}
	}
	parent := &cobra.Command{Use: word, Short: strings.Join(groupOf(word), ", "), GroupID: noun, Args: cobra.ArbitraryArgs, DisableFlagParsing: true}
	parent.RunE = func(c *cobra.Command, args []string) error { return noCommand(c, s, args) }
	root.AddCommand(parent)
	return parent
}

func leafOf(c *command, word string, s *session, perform performer) *cobra.Command {
	p := c.make()
	leaf := &cobra.Command{Use: strings.TrimSpace(word + " " + c.args), Aliases: c.aliases, Short: c.summary, Long: c.about, Example: exampleText(c.examples), Args: cobra.ArbitraryArgs}
	leaf.Flags().SortFlags = false
	f := &flagSet{leaf.Flags()}
	p.flags(f)
	leaf.RunE = func(at *cobra.Command, args []string) error {
		if err := f.readEnv(s.getenv); err != nil {
			return err
		}
		if err := p.accept(args); err != nil {
			return err
		}
		return perform(at.Context(), c, p, args)
	}
	completeArguments(leaf, c, p, f, s)
	return leaf
}

// noCommand returns the error of a call that names no command.
func noCommand(c *cobra.Command, s *session, args []string) error {
	known := c.Root().Flags()
	for i := 0; i < len(args); i++ {
		word := args[i]
		switch {
		case word == "-h" || word == "--help" || word == "-help":
			return c.Help()
		case word == "--version" && !c.HasParent():
			return new(version).run(c.Context(), s, nil)
		case !strings.HasPrefix(word, "-"):
			return unknownCommand(path(c, word))
		}
		name, _, valued := strings.Cut(strings.TrimLeft(word, "-"), "=")
		f := known.Lookup(name)
		if f == nil {
			return unknownFlag(&flagSet{known}, "", word)
		}
		if !valued && f.NoOptDefVal == "" {
			i++
		}
	}
	if !c.HasParent() {
		return c.Help()
	}
	return usagef("%s is several commands: %s; tidemill help %s lists them", c.Name(), strings.Join(groupOf(c.Name()), ", "), c.Name())
}

func unknownCommand(name string) error {
	return usagef("there is no command %q:%s tidemill help lists those there are", name, didYouMean(name, commandNames()))
}

// path returns the full name of a subcommand.
func path(c *cobra.Command, word string) string {
	if !c.HasParent() {
		return word
	}
	return c.Name() + " " + word
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

// usageError is a mistake in the call itself.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }
