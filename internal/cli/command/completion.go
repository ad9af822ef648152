package command

import (
	"context"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// CompletionCommand prints completion scripts.
func CompletionCommand() Command {
	return Command{
		Name:    "completion",
		Args:    "SHELL",
		Summary: "print the completion script of a shell",
		About: `The shells are bash, zsh and fish. The script completes commands, flags, and the names
of streams, triggers, recipes, keys, models, scorers and runs. It asks the gateway that
the command would ask, for at most 300 ms; without an answer it completes no names.`,
		Examples: []Example{
			{"tidemill completion bash", "in bash: source <(tidemill completion bash)"},
			{"tidemill completion zsh", "in zsh, into a folder of $fpath: tidemill completion zsh > ~/.zfunc/_tidemill"},
			{"tidemill completion fish", "in fish: tidemill completion fish > ~/.config/fish/completions/tidemill.fish"},
		},
		Make: func() Program { return &completion{} },
	}
}

type completion struct{}

func shells() []string { return []string{"bash", "zsh", "fish"} }

func (*completion) Flags(*FlagSet) {}

func (*completion) Accept(args []string) error {
	if !slices.Contains(shells(), args[0]) {
		return Usagef("there is no completion for %q:%s give one of %s", args[0], DidYouMean(args[0], shells()), strings.Join(shells(), ", "))
	}
	return nil
}

func (*completion) Run(_ context.Context, s *Session, args []string) error {
	root := s.all.Root(s, nil, nil)
	switch args[0] {
	case "bash":
		return bashCompletion(root, s.Stdout)
	case "zsh":
		return root.GenZshCompletion(s.Stdout)
	}
	return root.GenFishCompletion(s.Stdout, true)
}

// bashChanges are the changes of cobra's script. One of its lines needs a function of the package bash-completion.
// Many machines lack the package, and the Tab key then prints an error. The new lines do the same in bash alone.
// Bash begins a new word after an @, so the offered names begin after it, as after a colon.
var bashChanges = strings.NewReplacer(packagedWords, ownWords, colon, colon+strings.Replace(colon, ":", "@", 1))

const (
	packagedWords = `    _get_comp_words_by_ref "$@" cur prev words cword
`
	ownWords = `    local line=${COMP_LINE:0:COMP_POINT}
    read -ra words <<<"${line}"
    [[ ${line} != *[[:space:]] ]] || words+=('')
    cword=$((${#words[@]} - 1))
    cur=${words[cword]}
`
	colon = `    __tidemill_handle_special_char "$cur" :
`
)

func bashCompletion(root *cobra.Command, w io.Writer) error {
	var script strings.Builder
	if err := root.GenBashCompletionV2(&script, true); err != nil {
		return err
	}
	_, err := bashChanges.WriteString(w, script.String())
	return err
}

// completeWithin limits how long completion waits for the gateway, because the user waits at the
// prompt.
const completeWithin = 300 * time.Millisecond

// namer is a command that can ask a gateway for names of a kind, such as streams.
type namer interface {
	Names(ctx context.Context, s *Session, kind, prefix string) []string
}

// completer completes one argument or flag value.
type completer struct {
	p Program
	f *FlagSet
	s *Session
}

// completeArguments tells cobra how to complete a command's arguments and flag values.
func completeArguments(leaf *cobra.Command, c *Command, p Program, f *FlagSet, s *Session) {
	at := &completer{p, f, s}
	names := strings.Fields(c.Args)
	leaf.ValidArgsFunction = func(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		i := len(args)
		if n := len(names); i >= n && n > 0 && strings.Contains(names[n-1], "…") {
			i = n - 1
		}
		if i >= len(names) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		if c.Values != nil {
			if values := c.Values(args); values != nil {
				return values, cobra.ShellCompDirectiveNoFileComp
			}
		}
		if names[i] == commandWords {
			return s.all.next(args, word), cobra.ShellCompDirectiveNoFileComp
		}
		return at.complete(cmd.Context(), kindOf(names[i], c.Name), word)
	}
	f.VisitAll(func(flag *pflag.Flag) {
		kind := kindOfFlag(flag, c.Name)
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
	case "KIND":
		return "things"
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
	}
	if values, known := c.s.all.Values[kind]; known {
		return values, cobra.ShellCompDirectiveNoFileComp
	}
	names, directive := c.ask(ctx, kind, word), cobra.ShellCompDirectiveNoFileComp
	if slices.ContainsFunc(names, func(name string) bool { return strings.HasSuffix(name, "/") }) {
		directive |= cobra.ShellCompDirectiveNoSpace
	}
	return names, directive
}

// ask asks the gateway for names. It prints no error, because that would disturb the prompt.
func (c *completer) ask(ctx context.Context, kind, prefix string) []string {
	a, talks := c.p.(namer)
	if !talks || c.f.readEnv(c.s.Getenv) != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, completeWithin)
	defer cancel()
	found := make(chan []string, 1)
	go func() { found <- a.Names(ctx, c.s, kind, prefix) }()
	select {
	case names := <-found:
		return names
	case <-ctx.Done():
		return nil
	}
}
