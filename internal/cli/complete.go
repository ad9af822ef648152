package cli

import (
	"context"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tidemill.dev/config"
	"tidemill.dev/internal/gateway/client"
	"tidemill.dev/internal/platform"
)

func completionCommand() command {
	return command{
		name:    "completion",
		args:    "SHELL",
		summary: "print the completion script of a shell",
		about: `The shells are bash, zsh and fish. The script completes commands, flags, and the names
of streams, triggers, recipes, keys, models, scorers and runs. It asks the gateway that
the command would ask, for at most 300 ms; without an answer it completes no names.`,
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
		"streams": func(ctx context.Context, g *client.Gateway, _ string) (names []string, err error) {
			all, err := g.Streams(ctx)
			for i := range all {
				names = append(names, all[i].Name)
			}
			return names, err
		},
		"triggers": func(ctx context.Context, g *client.Gateway, _ string) (names []string, err error) {
			all, err := g.Triggers(ctx)
			for i := range all.Triggers {
				names = append(names, all.Triggers[i].Name)
			}
			return names, err
		},
		"schedules": func(ctx context.Context, g *client.Gateway, _ string) (names []string, err error) {
			all, err := g.Schedules(ctx)
			for i := range all.Schedules {
				names = append(names, all.Schedules[i].Name)
			}
			return names, err
		},
		"recipes": func(ctx context.Context, g *client.Gateway, _ string) (names []string, err error) {
			all, err := g.Recipes(ctx)
			for i := range all.Recipes {
				names = append(names, all.Recipes[i].Name)
			}
			return names, err
		},
		"pools": func(ctx context.Context, g *client.Gateway, _ string) (names []string, err error) {
			all, err := g.Pools(ctx)
			for i := range all.Pools {
				names = append(names, all.Pools[i].Name)
			}
			return names, err
		},
		"scorers": func(ctx context.Context, g *client.Gateway, _ string) (names []string, err error) {
			all, err := g.Scorers(ctx)
			for i := range all.Scorers {
				names = append(names, all.Scorers[i].Name)
			}
			return names, err
		},
		"datasets": func(ctx context.Context, g *client.Gateway, prefix string) (names []string, err error) {
			all, err := g.Datasets(ctx, prefix)
			for i := range all.Datasets {
				names = append(names, all.Datasets[i].Name)
			}
			return names, err
		},
		"models": func(ctx context.Context, g *client.Gateway, prefix string) (names []string, err error) {
			page, err := g.Models(ctx, client.ModelQuery{Prefix: prefix, Limit: completed})
			for i := range page.Models {
				names = append(names, page.Models[i].Name)
			}
			return names, err
		},
		"keys": func(ctx context.Context, g *client.Gateway, _ string) (names []string, err error) {
			page, err := g.Models(ctx, client.ModelQuery{Limit: completed})
			for i := range page.Models {
				names = append(names, page.Models[i].Key)
			}
			runs, _ := g.Runs(ctx, client.RunQuery{Limit: completed}) // keys that have only runs; if this fails, the keys of models are enough
			for i := range runs.Runs {
				names = append(names, runs.Runs[i].Key)
			}
			return names, err
		},
		"runs": func(ctx context.Context, g *client.Gateway, _ string) (names []string, err error) {
			page, err := g.Runs(ctx, client.RunQuery{Limit: completed})
			for i := range page.Runs {
				names = append(names, page.Runs[i].ID)
			}
			return names, err
		},
	}
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
	case flag.Name == "recipe" || flag.Name == "trigger":
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
