package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tidemill.dev/config/spelling"
)

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
	if len(c.Aliases) > 0 {
		fmt.Fprintf(w, "Alias: %s\n", strings.Join(c.Aliases, ", "))
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

// fullName is a command's name without the program's.
func fullName(c *cobra.Command) string {
	return strings.TrimPrefix(strings.TrimPrefix(c.CommandPath(), "tidemill"), " ")
}

func overview(w io.Writer) {
	fmt.Fprintf(w, "%s\n\nUsage: tidemill COMMAND [flags]\n", summary)
	for _, n := range nouns() {
		fmt.Fprintf(w, "\n%s:\n", n.title)
		listCommands(w, n.commands, "")
	}
	fmt.Fprint(w, `
Commands find a tidemill up that was started in the same folder. For another gateway,
give --url or set TIDEMILL_URL. With --kafka HOST:PORT they connect straight to Kafka.
A list also has the names list and ls: tidemill runs ls. dl is dead-letters.
tidemill help COMMAND explains a command, its flags and their variables.
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
	_ = t.Flush() // the writer of a help text has nobody to report to
}

// exampleText is the examples as help prints them.
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

// variableOf names the variable of a flag. config.ReadAddresses reads those of the two addresses, and reach reads those that it has to
// weigh against them.
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

// didYouMean asks whether a known word was meant; it is empty if none is near.
func didYouMean(word string, known []string) string {
	if n, ok := nearest(word, known); ok {
		return " did you mean " + n + "?"
	}
	return ""
}

// nearest is the known word that was probably meant: it has the word as its prefix, or at most a third of its letters differ.
func nearest(word string, known []string) (string, bool) {
	if i := slices.IndexFunc(known, func(k string) bool { return len(word) > 1 && strings.HasPrefix(k, word) }); i >= 0 {
		return known[i], true
	}
	best, least := "", max(len(word)/3, 1)+1
	for _, k := range known {
		if d := spelling.Distance(word, k); d < least {
			best, least = k, d
		}
	}
	return best, best != ""
}
