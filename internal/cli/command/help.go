package command

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// HelpCommand explains the commands.
func HelpCommand() Command {
	return Command{
		Name:     "help",
		Args:     commandWords,
		Summary:  "explain a command",
		Examples: []Example{{"tidemill help tail", "show the flags and examples of tail"}},
		Make:     func() Program { return &help{} },
	}
}

// commandWords is the name of the argument that is a command of one or two words.
const commandWords = "[COMMAND…]"

type help struct{}

func (*help) Flags(*FlagSet) {}

func (*help) Run(_ context.Context, s *Session, args []string) error {
	root := s.all.Root(s, nil, nil)
	root.InitDefaultHelpCmd()
	c, rest, err := root.Find(args)
	switch {
	case err != nil:
		return err
	case c == root && len(args) == 1:
		return s.all.unknown(args[0])
	case len(rest) > 0 && c.DisableFlagParsing && c != root:
		return s.all.unknown(path(c, rest[0]))
	case len(rest) > 1 || len(rest) == 1 && c.Parent() != root: // one word may be the command's argument, as in serve gateway
		return Usagef("%q is one argument too many; put text with spaces in quotes", rest[len(rest)-1])
	}
	return c.Help()
}

// explain prints the help text of a command.
func (all *Set) explain(c *cobra.Command, w io.Writer) {
	switch {
	case !c.HasParent():
		all.overview(w)
		return
	case c.DisableFlagParsing:
		fmt.Fprintf(w, "Usage: tidemill %s COMMAND [flags]\n\n", c.Name())
		all.listCommands(w, c.Name()+" ")
		return
	}
	name := fullName(c)
	usage := "tidemill " + strings.TrimSpace(name+strings.TrimPrefix(c.Use, c.Name()))
	flags := flagLines(c.Flags())
	if len(flags) > 0 {
		usage += " [flags]"
	}
	fmt.Fprintf(w, "%s: %s\n\nUsage: %s\n", name, c.Short, usage)
	if others := all.otherNames(c); len(others) > 0 {
		fmt.Fprintf(w, "Also: %s\n", strings.Join(others, ", "))
	}
	if c.Long != "" {
		fmt.Fprintf(w, "\n%s\n", c.Long)
	}
	fmt.Fprintf(w, "\nExamples:\n%s\n", c.Example)
	if len(all.groupOf(name)) > 0 {
		fmt.Fprint(w, "\nCommands:\n")
		all.listCommands(w, name+" ")
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
func (all *Set) otherNames(c *cobra.Command) []string {
	others, name := slices.Clone(c.Aliases), fullName(c)
	for _, one := range all.Commands() {
		switch {
		case one.Short == "":
		case name == one.Short:
			others = append(others, one.Name)
		case name == one.Name:
			others = append(others, one.Short)
		}
	}
	return others
}

// fullName returns a command's name without the program's.
func fullName(c *cobra.Command) string {
	return strings.TrimPrefix(strings.TrimPrefix(c.CommandPath(), "tidemill"), " ")
}

func (all *Set) overview(w io.Writer) {
	fmt.Fprintf(w, "%s\n\nUsage: tidemill COMMAND [flags]\n\nEvery day:\n", all.Summary)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range all.Commands() {
		if c.Daily {
			fmt.Fprintf(t, "  %s\t%s\n", cmp.Or(c.Short, c.Name), c.Summary)
		}
	}
	fmt.Fprintln(t, "\nAll commands; tidemill help WORD lists those of a word, with examples:")
	var alone []string
	for _, c := range all.Commands() {
		switch first, _, below := strings.Cut(c.Name, " "); {
		case below && all.groupOf(first)[0] == c.Name:
			fmt.Fprintf(t, "  %s\t%s\n", first, strings.ReplaceAll(strings.Join(all.groupOf(first), ", "), first+" ", ""))
		case !below && len(all.groupOf(first)) == 0:
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
func (all *Set) listCommands(w io.Writer, prefix string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range all.Commands() {
		if strings.HasPrefix(c.Name, prefix) {
			fmt.Fprintf(t, "  %s\t%s\n  \t  %s\n", c.Name, c.Summary, c.Examples[0][0])
		}
	}
	_ = t.Flush() // an error of a help text cannot be reported
}

// exampleText formats the examples of a help text.
func exampleText(all []Example) string {
	var lines []string
	for _, e := range all {
		lines = append(lines, "  # "+e[1], "  "+e[0])
	}
	return strings.Join(lines, "\n")
}

// flagLines describes each flag with its default and its variable.
func flagLines(flags *pflag.FlagSet) (lines []string) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" {
			return
		}
		name := "    " + Dashed(f.Name)
		switch {
		case len(f.Name) == 1:
			name = Dashed(f.Name)
		case f.Shorthand != "":
			name = "-" + f.Shorthand + ", --" + f.Name
		}
		value, text := annotation(f, valueNote), f.Usage
		if strings.HasPrefix(value, "[=") {
			name += value
		} else if value != "" {
			name += " " + value
		}
		if f.DefValue != "" && f.DefValue != "0" && value != "" {
			text += " (default " + f.DefValue + ")"
		}
		if variable := variableOf(f); variable != "" {
			text += " [" + variable + "]"
		}
		lines = append(lines, fmt.Sprintf("  %s\t%s", name, text))
	})
	return lines
}

// variableOf returns the variable that a flag's help names.
func variableOf(f *pflag.Flag) string {
	return cmp.Or(annotation(f, variableNote), annotation(f, readElsewhere))
}

// VersionCommand shows the build.
func VersionCommand() Command {
	return Command{
		Name:    "version",
		Summary: "show the version of this program",
		Examples: []Example{
			{"tidemill version", "a line"},
			{"tidemill version -o json", "for a script"},
		},
		Make: func() Program { return &version{} },
	}
}

type version struct{ output string }

func (v *version) Flags(f *FlagSet) {
	f.Format(&v.output, "text or json")
}

// Build is the build information of this binary.
type Build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// ThisBuild returns the build information of this binary.
func ThisBuild() Build {
	b := Build{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

func (v *version) Run(_ context.Context, s *Session, _ []string) error {
	b := ThisBuild()
	if v.output == "json" {
		return json.NewEncoder(s.Stdout).Encode(b)
	}
	changed := ""
	if b.Modified {
		changed = ", with local changes"
	}
	revision := ""
	if b.Revision != "" {
		revision = " (" + b.Revision[:min(12, len(b.Revision))] + changed + ")"
	}
	_, err := fmt.Fprintf(s.Stdout, "tidemill %s%s, %s, %s\n", b.Version, revision, b.Go, b.Platform)
	return err
}
