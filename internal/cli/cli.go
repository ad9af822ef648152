package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"tidemill.dev/broker/network"
	"tidemill.dev/examples/demo"
	"tidemill.dev/internal/runs/local"
	"tidemill.dev/internal/scoring/infer/sandbox"
)

// Main runs the program and exits.
func Main() {
	ctx, stop := untilInterrupted(context.Background(), os.Stderr)
	defer stop()
	os.Exit(report(os.Stderr, run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)))
}

// run executes the command line. Tests call it as Main does.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if len(args) == 2 && args[0] == sandbox.Argument {
		return sandbox.Child(args[1])
	}
	if len(args) == 1 { // only the program itself calls itself with these arguments
		switch args[0] {
		case local.GuardArgument:
			return local.Guard(ctx)
		case demo.Trainer:
			return demo.Train(ctx, os.Getenv, stdout)
		}
	}
	s := &session{stdin: stdin, stdout: stdout, stderr: stderr, getenv: os.Getenv}
	return execute(ctx, s, args, func(ctx context.Context, _ *command, p program, args []string) error { return p.run(ctx, s, args) })
}

// session is the environment of one call of the program.
type session struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	network        network.Network // network on which gateways are
}

const exitAborted = 130 // exit status of shells for an end by SIGINT

const sayAfter = time.Second

// untilInterrupted returns a context that the first Ctrl-C or SIGTERM cancels, so that the stop
// order runs. The second one ends the process at once.
func untilInterrupted(ctx context.Context, stderr io.Writer) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case <-signals:
		case <-ctx.Done():
			return
		}
		// Most stops take less than a second. If one takes longer, say why.
		time.AfterFunc(sayAfter, func() {
			fmt.Fprintln(stderr, "tidemill: still stopping gracefully; press Ctrl-C again to stop at once")
		})
		cancel()
		<-signals
		os.Exit(exitAborted)
	}()
	return ctx, cancel
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
	lists    bool // whether `NAME list` and `NAME ls` do the same, and --watch keeps showing it
	watched  bool // whether --watch keeps showing it
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
			upCommand(), initCommand(), statusCommand(), openCommand(), demoCommand(), serveCommand(), validateCommand(),
			tokenNewCommand(), tokenListCommand(), tokenRemoveCommand(), completionCommand(), versionCommand(), helpCommand()}},
		{"streams", "Streams", []command{streamsCommand(), publishCommand(), tailCommand(), kafkaConfigCommand()}},
		{"triggers", "Triggers, schedules and dead letters", []command{
			triggersCommand(), triggersShowCommand(), triggersPauseCommand(), triggersResumeCommand(), triggersReplayCommand(),
			schedulesCommand(), schedulesPauseCommand(), schedulesResumeCommand(),
			lettersCommand(), lettersShowCommand(), lettersReplayCommand(), lettersDropCommand()}},
		{"data", "Data", []command{
			dataPutCommand(), dataGetCommand(), dataListCommand(), dataLogCommand(), dataDiffCommand(), dataBranchCommand(), dataCollectCommand(), forgetCommand()}},
		{"runs", "Runs, recipes and pools", []command{
			runsCommand(), runsShowCommand(), logsCommand(), runsGetCommand(), runsStartCommand(), runsCancelCommand(), runsRetryCommand(), whyCommand(), tryCommand(),
			recipesCommand(), recipesPauseCommand(), recipesResumeCommand(), poolsCommand(), poolsPauseCommand(), poolsResumeCommand()}},
		{"models", "Models", []command{
			fleetCommand(), modelsCommand(), modelsShowCommand(), modelsGetCommand(), compareCommand(), promoteCommand(), rollbackCommand(), pinCommand(), unpinCommand(),
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
		if names = append(names, c.name); c.short != "" {
			names = append(names, c.short)
		}
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
	root.SetArgs(withList(root, twoDashes(root, args)))
	return root.ExecuteContext(ctx)
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
	for _, c := range root.Commands() {
		if singular, plural := strings.CutSuffix(c.Name(), "s"); plural && c.HasSubCommands() {
			c.Aliases = append(c.Aliases, singular) // tidemill run show is tidemill runs show
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
	if c.short != "" {
		short := leafOf(c, c.short, s, perform)
		short.Hidden = true
		root.AddCommand(short)
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
	if _, own := p.(*runList); (c.lists || c.watched) && !own {
		p = &watching{program: p}
	}
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
	return c.Help()
}

func unknownCommand(name string) error {
	return usagef("there is no command %q:%s tidemill help lists all commands", name, didYouMean(name, commandNames()))
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

const summary = "Tidemill trains and serves models from events on Kafka streams."

func helpCommand() command {
	return command{
		name:     "help",
		args:     "[COMMAND]",
		summary:  "explain a command",
		examples: []example{{"tidemill help tail", "show the flags and examples of tail"}},
		make:     func() program { return &help{} },
	}
}

type help struct{}

func (*help) flags(*flagSet) {}

func (*help) accept([]string) error { return nil }

func (*help) run(_ context.Context, s *session, args []string) error {
	root := newRoot(s, nil, nil)
	root.InitDefaultHelpCmd()
	c, rest, err := root.Find(args)
	switch {
	case err != nil:
		return err
	case c == root && len(args) == 1:
		return unknownCommand(args[0])
	case len(rest) > 0 && c.DisableFlagParsing && c != root:
		return unknownCommand(path(c, rest[0]))
	case len(rest) > 1 || len(rest) == 1 && c.Parent() != root: // one word may be the command's argument, as in serve gateway
		return usagef("%q is one argument too many; put text with spaces in quotes", rest[len(rest)-1])
	}
	return c.Help()
}

// explain prints the help text of a command.
func explain(c *cobra.Command, w io.Writer) {
	switch {
	case !c.HasParent():
		overview(w)
		return
	case c.DisableFlagParsing:
		fmt.Fprintf(w, "Usage: tidemill %s COMMAND [flags]\n\n", c.Name())
		listCommands(w, commands(), c.Name()+" ")
		return
	}
	name := fullName(c)
	usage := "tidemill " + strings.TrimSpace(name+strings.TrimPrefix(c.Use, c.Name()))
	flags := flagLines(c.Flags())
	if len(flags) > 0 {
		usage += " [flags]"
	}
	fmt.Fprintf(w, "%s: %s\n\nUsage: %s\n", name, c.Short, usage)
	if others := otherNames(c); len(others) > 0 {
		fmt.Fprintf(w, "Also: %s\n", strings.Join(others, ", "))
	}
	if c.Long != "" {
		fmt.Fprintf(w, "\n%s\n", c.Long)
	}
	fmt.Fprintf(w, "\nExamples:\n%s\n", c.Example)
	if len(groupOf(name)) > 0 {
		fmt.Fprint(w, "\nCommands:\n")
		listCommands(w, commands(), name+" ")
	}
	if len(flags) == 0 {
		return
	}
	fmt.Fprint(w, "\nFlags:\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, line := range flags {
		fmt.Fprintln(t, line)
	}
	_ = t.Flush()
}

// otherNames returns the aliases of a command, and its short or long name.
func otherNames(c *cobra.Command) []string {
	others, name := slices.Clone(c.Aliases), fullName(c)
	for _, one := range commands() {
		switch {
		case one.short == "":
		case name == one.short:
			others = append(others, one.name)
		case name == one.name:
			others = append(others, one.short)
		}
	}
	return others
}

// fullName returns a command's name without the program's.
func fullName(c *cobra.Command) string {
	return strings.TrimPrefix(strings.TrimPrefix(c.CommandPath(), "tidemill"), " ")
}

func overview(w io.Writer) {
	fmt.Fprintf(w, "%s\n\nUsage: tidemill COMMAND [flags]\n\nEvery day:\n", summary)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range commands() {
		if c.daily {
			fmt.Fprintf(t, "  %s\t%s\n", cmp.Or(c.short, c.name), c.summary)
		}
	}
	fmt.Fprintln(t, "\nAll commands; tidemill help WORD lists those of a word, with examples:")
	var alone []string
	for _, c := range commands() {
		switch first, _, below := strings.Cut(c.name, " "); {
		case below && groupOf(first)[0] == c.name:
			fmt.Fprintf(t, "  %s\t%s\n", first, strings.ReplaceAll(strings.Join(groupOf(first), ", "), first+" ", ""))
		case !below && len(groupOf(first)) == 0:
			alone = append(alone, first)
		}
	}
	fmt.Fprintf(t, "  others\t%s\n", strings.Join(alone, ", "))
	_ = t.Flush() // an error of a help text cannot be reported
	fmt.Fprint(w, `
Many have a short name: tidemill promote is tidemill models promote. A word alone lists: tidemill
runs. dl is dead-letters. Commands find a tidemill up that was started in the same folder. For
another gateway, give --url or set TIDEMILL_URL. With --kafka HOST:PORT they connect directly to
Kafka. tidemill help COMMAND explains a command, its flags and their variables.
`)
}

// listCommands prints the commands whose names have a prefix, each with an example.
func listCommands(w io.Writer, all []command, prefix string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range all {
		if strings.HasPrefix(c.name, prefix) {
			fmt.Fprintf(t, "  %s\t%s\n  \t  %s\n", c.name, c.summary, c.examples[0].line)
		}
	}
	_ = t.Flush() // an error of a help text cannot be reported
}

// exampleText formats the examples of a help text.
func exampleText(all []example) string {
	var lines []string
	for _, e := range all {
		lines = append(lines, "  # "+e.does, "  "+e.line)
	}
	return strings.Join(lines, "\n")
}

// flagLines describes each flag with its default and its variable.
func flagLines(flags *pflag.FlagSet) (lines []string) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" {
			return
		}
		name := "    " + dashed(f.Name)
		switch {
		case len(f.Name) == 1:
			name = dashed(f.Name)
		case f.Shorthand != "":
			name = "-" + f.Shorthand + ", --" + f.Name
		}
		value, text := annotation(f, valueNote), f.Usage
		if strings.HasPrefix(value, "[=") {
			name += value
		} else if value != "" {
			name += " " + value
		}
		if f.DefValue != "" && value != "" {
			text += " (default " + f.DefValue + ")"
		}
		if variable := variableOf(f); variable != "" {
			text += " [" + variable + "]"
		}
		lines = append(lines, fmt.Sprintf("  %s\t%s", name, text))
	})
	return lines
}

// variableOf returns the variable of a flag. config.ReadAddresses reads the variables of the two
// addresses; reach reads those whose priority depends on other flags.
func variableOf(f *pflag.Flag) string {
	switch f.Name {
	case "kafka":
		return "TIDEMILL_KAFKA"
	case "redis":
		return "TIDEMILL_REDIS"
	case "url":
		return envURL
	case "token-file":
		return envTokenFile
	}
	return annotation(f, variableNote)
}

// count formats a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return thousands(int64(n)) + " " + noun + "s"
}

// thousands groups the digits of a number.
func thousands(n int64) string {
	if n < 0 {
		return "-" + thousands(-n)
	}
	if n < 1000 {
		return strconv.FormatInt(n, 10)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// size formats a number of bytes with a unit. A negative number is unknown.
func size(n int64) string {
	const step = 1024
	switch {
	case n < 0:
		return "?"
	case n < step:
		return fmt.Sprintf("%d B", n)
	}
	v, units := float64(n)/step, "KMGTP"
	for v >= step && len(units) > 1 {
		v, units = v/step, units[1:]
	}
	return fmt.Sprintf("%.1f %ciB", v, units[0])
}

// span formats a duration in the units of the config.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d == 0:
		return "forever"
	case d%day == 0:
		return fmt.Sprintf("%dd", d/day)
	case d%time.Hour == 0:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d%time.Minute == 0:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return d.String()
}

// milliseconds formats a short time with one decimal.
func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}

// table prints rows in columns. Numbers are aligned to the right: all columns but the first and the
// last.
func table(w io.Writer, rows [][]string) error {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			width := widths[i]
			if i == 0 || i == len(row)-1 {
				width = -width
			}
			fmt.Fprintf(&line, "%*s  ", width, cell)
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

// columns prints rows of text in columns.
func columns(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return t.Flush()
}

// screen is the width for a drawing, and whether it may have colours.
type screen struct {
	width   int
	colours bool
}

// screenOf returns the screen of an output. There are no colours if it is not a terminal or if
// NO_COLOR is set.
func screenOf(w io.Writer, getenv func(string) string) screen {
	s := screen{width: usualWidth}
	f, ok := w.(*os.File)
	if !ok || !isTerminal(f) {
		return s
	}
	if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
		s.width = width
	}
	s.colours = getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
	return s
}

// Tree returns all commands, for documentation. They cannot be run.
func Tree() *cobra.Command {
	return newRoot(&session{stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard, getenv: func(string) string { return "" }}, nil, nil)
}
