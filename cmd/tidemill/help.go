package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

func helpCommand() command {
	return command{
		name:     "help",
		args:     "[COMMAND]",
		summary:  "explain a command",
		examples: []example{{"tidemill help tail", "what tail can do"}},
		make:     func() program { return &help{} },
	}
}

type help struct{}

func (*help) flags(*flagSet) {}

func (*help) accept(positional []string) error {
	if len(positional) == 0 {
		return nil
	}
	words := helped(positional)
	if len(words) == 2 && len(groupOf(words[0])) > 0 {
		return nil
	}
	return wants(words, "COMMAND")
}

// helped is what is to be explained: a command of two words, or its first word
// where the second is its argument, as in serve gateway.
func helped(positional []string) []string {
	words := strings.Fields(spelledOut(strings.Join(positional, " ")))
	if len(words) == 2 && isCommand(words[0]) && !isCommand(strings.Join(words, " ")) {
		return words[:1]
	}
	return words
}

func (*help) run(_ context.Context, s *session, positional []string) error {
	if len(positional) == 0 {
		return overview(s.stdout)
	}
	name := strings.Join(helped(positional), " ")
	if len(groupOf(name)) > 0 && !isCommand(name) {
		fmt.Fprintf(s.stdout, "Usage: tidemill %s COMMAND [flags]\n\n", name)
		return listCommands(s.stdout, name+" ")
	}
	c, err := findCommand(name)
	if err != nil {
		return err
	}
	return c.explain(s.stdout)
}

func overview(w io.Writer) error {
	fmt.Fprint(w, "Tidemill: events come in on Kafka streams, and models are made of them.\n\nUsage: tidemill COMMAND [flags]\n\n")
	if err := listCommands(w, ""); err != nil {
		return err
	}
	_, err := fmt.Fprint(w, `
Commands find a tidemill up that was started in the same folder; for another gateway,
give --url or set TIDEMILL_URL. With --kafka HOST:PORT they go past it, straight to Kafka.
tidemill help COMMAND explains a command, its flags and their variables.
`)
	return err
}

// listCommands prints the commands whose names begin so, each with an example.
func listCommands(w io.Writer, begin string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range commands() {
		if strings.HasPrefix(c.name, begin) {
			fmt.Fprintf(t, "  %s\t%s\n", c.name, c.summary)
			fmt.Fprintf(t, "  \t  %s\n", c.examples[0].line)
		}
	}
	return t.Flush()
}

// explain prints all there is to know of a command.
func (c command) explain(w io.Writer) error {
	f := newFlagSet(c.name)
	c.make().flags(f)
	usage := "tidemill " + c.name
	if c.args != "" {
		usage += " " + c.args
	}
	if len(f.order) > 0 {
		usage += " [flags]"
	}
	fmt.Fprintf(w, "%s: %s\n\nUsage: %s\n", c.name, c.summary, usage)
	if c.about != "" {
		fmt.Fprintf(w, "\n%s\n", c.about)
	}
	fmt.Fprint(w, "\nExamples:\n")
	for _, e := range c.examples {
		fmt.Fprintf(w, "  # %s\n  %s\n", e.does, e.line)
	}
	if len(groupOf(c.name)) > 0 {
		fmt.Fprint(w, "\nCommands:\n")
		if err := listCommands(w, c.name+" "); err != nil {
			return err
		}
	}
	return f.list(w)
}

// list prints the flags with their defaults and variables.
func (f *flagSet) list(w io.Writer) error {
	if len(f.order) == 0 {
		return nil
	}
	fmt.Fprint(w, "\nFlags:\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, long := range f.order {
		name := "    " + dashed(long)
		if len(long) == 1 {
			name = dashed(long)
		}
		if short := f.short[long]; short != "" {
			name = "-" + short + ", --" + long
		}
		if v := f.values[long]; v != "" {
			name += " " + v
		}
		def := f.set.Lookup(long)
		text := def.Usage
		if v := def.DefValue; v != "" && v != "false" && f.values[long] != "" {
			text += " (default " + v + ")"
		}
		if variable := f.variable(long); variable != "" {
			text += " [" + variable + "]"
		}
		fmt.Fprintf(t, "  %s\t%s\n", name, text)
	}
	return t.Flush()
}

// variable names what stands for a flag. config.ReadAddresses reads the two
// addresses' itself, and reach those that it has to weigh against them.
func (f *flagSet) variable(long string) string {
	switch long {
	case "kafka":
		return "TIDEMILL_KAFKA"
	case "redis":
		return "TIDEMILL_REDIS"
	case "url":
		return envURL
	case "token-file":
		return envTokenFile
	}
	return f.env[long]
}
