package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tidemill.dev/api"
	"tidemill.dev/config"
	"tidemill.dev/internal/gateway/client"
	"tidemill.dev/internal/platform"
)

// flagSet is a command's flags: pflag's, with a name for each value and the variable that replaces
// the flag.
type flagSet struct{ *pflag.FlagSet }

// The annotations of a flag.
const (
	valueNote    = "tidemill value"    // name of the value, as help shows it
	variableNote = "tidemill variable" // variable that replaces the flag
)

// text adds a flag with a value. *p is its default.
func (f *flagSet) text(p *string, long, short, value, usage string) {
	f.StringVarP(p, long, shortOf(long, short), *p, usage)
	f.note(long, valueNote, value)
}

func (f *flagSet) number(p *int, long, short, value, usage string) {
	f.IntVarP(p, long, shortOf(long, short), *p, usage)
	f.note(long, valueNote, value)
}

func (f *flagSet) span(p *time.Duration, long, value, usage string) {
	f.DurationVar(p, long, *p, usage)
	f.note(long, valueNote, value)
}

func (f *flagSet) yes(p *bool, long, usage string) { f.BoolVar(p, long, *p, usage) }

// yesOr is yes with a short name.
func (f *flagSet) yesOr(p *bool, long, short, usage string) { f.BoolVarP(p, long, short, *p, usage) }

// afterFlag adds the flag that continues a list that was cut.
func afterFlag(f *flagSet, p *string) {
	f.text(p, "after", "", "NEXT", "continue a list that was cut: the next that it printed, or the cursor of dead letters")
}

// each adds a flag that may be repeated.
func (f *flagSet) each(long, value, usage string, take func(string) error) {
	f.FuncP(long, shortOf(long, ""), usage, take)
	f.note(long, valueNote, value)
}

// several adds a flag with values separated by commas. It may be repeated.
func (f *flagSet) several(p *[]string, long, value, usage string) {
	f.each(long, value, usage, func(text string) error {
		for item := range strings.SplitSeq(text, ",") {
			*p = append(*p, strings.TrimSpace(item))
		}
		return nil
	})
}

// optional adds a flag with an optional value: --stale, --stale=7d.
func (f *flagSet) optional(p *string, long, value, alone, usage string) {
	f.StringVar(p, long, *p, usage)
	f.Lookup(long).NoOptDefVal = alone
	f.note(long, valueNote, value)
}

// shortOf returns the short name of a flag. A long name of one letter is also the short name.
func shortOf(long, short string) string {
	if len(long) == 1 {
		return long
	}
	return short
}

func (f *flagSet) note(long, kind, text string) {
	_ = f.SetAnnotation(long, kind, []string{text}) // fails only for a flag that does not exist
}

func annotation(f *pflag.Flag, kind string) string {
	if note := f.Annotations[kind]; len(note) > 0 {
		return note[0]
	}
	return ""
}

// fromEnv names the variable that is used if the flag is missing.
func (f *flagSet) fromEnv(long, variable string) { f.note(long, variableNote, variable) }

// readEnv sets each missing flag whose variable is set.
func (f *flagSet) readEnv(getenv func(string) string) (err error) {
	f.VisitAll(func(flag *pflag.Flag) {
		variable := annotation(flag, variableNote)
		if variable == "" || flag.Changed || err != nil {
			return
		}
		value := strings.TrimSpace(getenv(variable))
		if value == "" {
			return
		}
		if bad := flag.Value.Set(value); bad != nil {
			err = usagef("the variable %s %q: %v", variable, value, plain(flag, bad))
		}
	})
	return err
}

// twoDashes turns a long flag with one dash, such as -from, into one with two. Both were valid
// before the program used pflag.
func twoDashes(root *cobra.Command, args []string) []string {
	args = append([]string{}, args...)
	long := func(c *cobra.Command) {
		for i, arg := range args {
			name, _, _ := strings.Cut(strings.TrimPrefix(arg, "-"), "=")
			switch {
			case arg == "--":
				return
			case strings.HasPrefix(arg, "-") && len(name) > 1 && c.Flags().Lookup(name) != nil:
				args[i] = "-" + arg
			}
		}
	}
	long(root)
	if c, _, err := root.Find(args); err == nil && c != root {
		long(c)
	}
	return args
}

// flagError explains an error of pflag and suggests a correction.
func flagError(c *cobra.Command, call []string, err error) error {
	var unknown *pflag.NotExistError
	var missing *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	f := &flagSet{c.Flags()}
	switch {
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() != "":
		return unknownFlag(f, fullName(c), "-"+unknown.GetSpecifiedShortnames())
	case errors.As(err, &unknown):
		return unknownFlag(f, fullName(c), "--"+unknown.GetSpecifiedName())
	case errors.As(err, &missing):
		return usagef("%s needs a value: %s", dashed(missing.GetSpecifiedName()), missing.GetFlag().Usage)
	case errors.As(err, &invalid):
		flag := invalid.GetFlag()
		return usagef("%s %q: %v", asCalled(flag, call), invalid.GetValue(), plain(flag, invalid.Unwrap()))
	}
	return usagef("%v", err)
}

// asCalled returns the flag as the call wrote it: short or long.
func asCalled(flag *pflag.Flag, call []string) string {
	for _, arg := range call {
		if flag.Shorthand != "" && strings.HasPrefix(arg, "-"+flag.Shorthand) && !strings.HasPrefix(arg, "--") {
			return "-" + flag.Shorthand
		}
	}
	return dashed(flag.Name)
}

func unknownFlag(f *flagSet, command, arg string) error {
	name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
	two := strings.HasPrefix(arg, "--")
	var known []string
	f.VisitAll(func(flag *pflag.Flag) {
		if !two || len(flag.Name) > 1 { // two dashes do not belong to a short flag
			known = append(known, flag.Name)
		}
	})
	shown, near := dashed(name), ""
	if two {
		shown = "--" + name
	}
	if n, ok := nearest(name, known); ok {
		near = " did you mean " + dashed(n) + "?"
	}
	return usagef("there is no flag %s:%s %s lists the flags", shown, near, strings.TrimSpace("tidemill help "+command))
}

func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// plain explains the error of a value that does not parse.
func plain(f *pflag.Flag, err error) error {
	kind := f.Value.Type()
	switch {
	case errors.Is(err, strconv.ErrRange):
		return errors.New("is too large")
	case kind == "bool":
		return errors.New("give true or false")
	case kind == "duration":
		return errors.New("give a duration such as 500ms or 5s")
	case kind == "int":
		return errors.New("give a number")
	}
	return err
}

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

func completionCommand() command {
	return command{
		name:    "completion",
		args:    "SHELL",
		summary: "print the completion script of a shell",
		about: `The shells are bash, zsh and fish. The script completes commands, flags, and the names
of streams, triggers, recipes, keys, models, scorers and runs. It asks the gateway that
the command would ask, for at most 300 ms; without an answer it completes no names.
In bash it needs the package bash-completion.`,
		examples: []example{
			{"tidemill completion bash", "in bash: source <(tidemill completion bash)"},
			{"tidemill completion zsh", "in zsh, into a folder of $fpath: tidemill completion zsh > ~/.zfunc/_tidemill"},
			{"tidemill completion fish", "in fish: tidemill completion fish > ~/.config/fish/completions/tidemill.fish"},
		},
		make: func() program { return &completion{} },
	}
}

type completion struct{}

func shells() []string { return []string{"bash", "zsh", "fish"} }

func (*completion) flags(*flagSet) {}

func (*completion) accept(args []string) error {
	if err := wants(args, "SHELL"); err != nil {
		return err
	}
	if !slices.Contains(shells(), args[0]) {
		return usagef("there is no completion for %q:%s give one of %s", args[0], didYouMean(args[0], shells()), strings.Join(shells(), ", "))
	}
	return nil
}

func (*completion) run(_ context.Context, s *session, args []string) error {
	root := newRoot(s, nil, nil)
	switch args[0] {
	case "bash":
		return root.GenBashCompletionV2(s.stdout, true)
	case "zsh":
		return root.GenZshCompletion(s.stdout)
	}
	return root.GenFishCompletion(s.stdout, true)
}

// completeWithin limits how long completion waits for the gateway, because the user waits at the
// prompt.
const completeWithin = 300 * time.Millisecond

// completed limits the number of names that completion asks for.
const completed = 500

// lister lists names that the gateway knows.
type lister func(ctx context.Context, g *client.Gateway, prefix string) ([]string, error)

// listers returns the lister of each kind of argument.
func listers() map[string]lister {
	return map[string]lister{
		"streams": streamNames, "triggers": triggerNames, "schedules": scheduleNames, "recipes": recipeNames, "pools": poolNames,
		"scorers": scorerNames, "datasets": datasetNames, "models": modelNames, "keys": keyNames, "runs": runNames,
	}
}

// namesOf returns the name of each item.
func namesOf[T any](all []T, name func(*T) string) []string {
	names := make([]string, len(all))
	for i := range all {
		names[i] = name(&all[i])
	}
	return names
}

func streamNames(ctx context.Context, g *client.Gateway, _ string) ([]string, error) {
	all, err := g.Streams(ctx)
	return namesOf(all, func(s *api.Stream) string { return s.Name }), err
}

func triggerNames(ctx context.Context, g *client.Gateway, _ string) ([]string, error) {
	all, err := g.Triggers(ctx)
	return namesOf(all.Triggers, func(t *api.Trigger) string { return t.Name }), err
}

func scheduleNames(ctx context.Context, g *client.Gateway, _ string) ([]string, error) {
	all, err := g.Schedules(ctx)
	return namesOf(all.Schedules, func(s *api.Schedule) string { return s.Name }), err
}

func recipeNames(ctx context.Context, g *client.Gateway, _ string) ([]string, error) {
	all, err := g.Recipes(ctx)
	return namesOf(all.Recipes, func(r *api.Recipe) string { return r.Name }), err
}

func poolNames(ctx context.Context, g *client.Gateway, _ string) ([]string, error) {
	all, err := g.Pools(ctx)
	return namesOf(all.Pools, func(p *api.Pool) string { return p.Name }), err
}

func scorerNames(ctx context.Context, g *client.Gateway, _ string) ([]string, error) {
	all, err := g.Scorers(ctx)
	return namesOf(all.Scorers, func(s *api.Scorer) string { return s.Name }), err
}

func datasetNames(ctx context.Context, g *client.Gateway, prefix string) ([]string, error) {
	all, err := g.Datasets(ctx, prefix)
	return namesOf(all.Datasets, func(d *api.Dataset) string { return d.Name }), err
}

func modelNames(ctx context.Context, g *client.Gateway, prefix string) ([]string, error) {
	all, err := g.Models(ctx, client.ModelQuery{Prefix: prefix, Limit: completed})
	return namesOf(all.Models, func(m *api.ModelShown) string { return m.Name }), err
}

func runNames(ctx context.Context, g *client.Gateway, _ string) ([]string, error) {
	page, err := g.Runs(ctx, client.RunQuery{Limit: completed})
	return namesOf(page.Runs, func(r *api.RunShown) string { return r.ID }), err
}

// keyNames returns the keys of models, and those that have only runs. If the runs cannot be listed,
// the keys of models are enough.
func keyNames(ctx context.Context, g *client.Gateway, _ string) ([]string, error) {
	models, err := g.Models(ctx, client.ModelQuery{Limit: completed})
	runs, _ := g.Runs(ctx, client.RunQuery{Limit: completed})
	return append(namesOf(models.Models, func(m *api.ModelShown) string { return m.Key }), namesOf(runs.Runs, func(r *api.RunShown) string { return r.Key })...), err
}

// asker is a command that talks to a gateway.
type asker interface{ reached() *reach }

// completer completes one argument or flag value.
type completer struct {
	p program
	f *flagSet
	s *session
}

// completeArguments tells cobra how to complete a command's arguments and flag values.
func completeArguments(leaf *cobra.Command, c *command, p program, f *flagSet, s *session) {
	if w, is := p.(*watching); is {
		p = w.program
	}
	at := &completer{p, f, s}
	names := strings.Fields(c.args)
	leaf.ValidArgsFunction = func(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		i := len(args)
		if n := len(names); i >= n && n > 0 && strings.Contains(names[n-1], "…") {
			i = n - 1
		}
		if i >= len(names) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		if c.name == "serve" && i == 1 && args[0] == functionRole {
			return platform.Functions(), cobra.ShellCompDirectiveNoFileComp
		}
		return at.complete(cmd.Context(), kindOf(names[i], c.name), word)
	}
	f.VisitAll(func(flag *pflag.Flag) {
		kind := kindOfFlag(flag, c.name)
		_ = leaf.RegisterFlagCompletionFunc(flag.Name, func(cmd *cobra.Command, _ []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return at.complete(cmd.Context(), kind, word)
		}) // fails only for a flag that does not exist
	})
}

var placeholder = regexp.MustCompile(`[A-Z]+`)

// kindOf returns the kind of names of an argument, by its name in the help text.
func kindOf(argument, command string) string {
	first, _, _ := strings.Cut(command, " ")
	switch name := placeholder.FindString(argument); name {
	case "NAME":
		return first // triggers, schedules, recipes, pools or scorers
	case "A", "B":
		return "models"
	case "STREAM", "RECIPE", "MODEL", "SCORER", "KEY", "RUN", "DATASET":
		return strings.ToLower(name) + "s"
	default:
		return name
	}
}

// kindOfFlag returns the kind of names of a flag's value, by the name of the flag or of its value.
func kindOfFlag(flag *pflag.Flag, command string) string {
	value := annotation(flag, valueNote)
	switch {
	case flag.Name == "recipe" || flag.Name == "trigger" || flag.Name == "scorer":
		return flag.Name + "s"
	case flag.Name == "role":
		return "ROLES"
	case value == "NAME" || flag.Name == "graph":
		return ""
	}
	return kindOf(value, command)
}

func (c *completer) complete(ctx context.Context, kind, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	switch kind {
	case "FILE", "DIR", "FOLDER", "INPUT":
		return nil, cobra.ShellCompDirectiveDefault // file names, completed by the shell
	case "FORMAT":
		return []string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp
	case "LEVEL":
		return []string{"debug", "info", "warn", "error"}, cobra.ShellCompDirectiveNoFileComp
	case "SHELL":
		return shells(), cobra.ShellCompDirectiveNoFileComp
	case "ROLE":
		return roles(), cobra.ShellCompDirectiveNoFileComp
	case "ROLES":
		return config.AccessRoles(), cobra.ShellCompDirectiveNoFileComp
	case "STATE":
		var all []string
		for _, state := range runStates() {
			all = append(all, string(state))
		}
		return all, cobra.ShellCompDirectiveNoFileComp
	case "COMMAND":
		return commandNames(), cobra.ShellCompDirectiveNoFileComp
	}
	return c.ask(ctx, kind, word), cobra.ShellCompDirectiveNoFileComp
}

// ask asks the gateway for names. It prints no error, because that would disturb the prompt.
func (c *completer) ask(ctx context.Context, kind, prefix string) []string {
	list, known := listers()[kind]
	a, talks := c.p.(asker)
	if !known || !talks || c.f.readEnv(c.s.getenv) != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, completeWithin)
	defer cancel()
	found := make(chan []string, 1)
	go func() { found <- listNames(ctx, a.reached(), c.s, list, prefix) }()
	select {
	case names := <-found:
		return names
	case <-ctx.Done():
		return nil
	}
}

func listNames(ctx context.Context, r *reach, s *session, list lister, prefix string) []string {
	w, err := r.choose(s.getenv)
	if err != nil || w.url == "" {
		return nil
	}
	g, err := r.dial(ctx, s, w, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil
	}
	defer g.Close()
	names, err := list(ctx, g, prefix)
	if err != nil {
		return nil
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, prefix) })
	slices.Sort(names)
	return slices.Compact(names)
}
