package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

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

// fullName returns a command's name without the program's.
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
	best, least := "", max(len(word)/3, 1)+1
	for _, k := range known {
		if d := spelling.Distance(word, k); d < least {
			best, least = k, d
		}
	}
	return best, best != ""
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
