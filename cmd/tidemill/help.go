package main

import (
	"context"
	"fmt"
	"io"
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
	return wants(positional, "COMMAND")
}

func (*help) run(_ context.Context, s *session, positional []string) error {
	if len(positional) == 0 {
		return overview(s.stdout)
	}
	c, err := findCommand(positional[0])
	if err != nil {
		return err
	}
	return c.explain(s.stdout)
}

func overview(w io.Writer) error {
	fmt.Fprint(w, "Tidemill: events come in on Kafka streams, and models are made of them.\n\nUsage: tidemill COMMAND [flags]\n\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range commands() {
		fmt.Fprintf(t, "  %s\t%s\n", c.name, c.summary)
		fmt.Fprintf(t, "  \t  %s\n", c.examples[0].line)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprint(w, `
Commands find the Kafka of a tidemill up that was started in the same folder; for
another, give --kafka HOST:PORT or set TIDEMILL_KAFKA.
tidemill help COMMAND explains a command, its flags and their variables.
`)
	return err
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
// addresses' itself.
func (f *flagSet) variable(long string) string {
	switch long {
	case "kafka":
		return "TIDEMILL_KAFKA"
	case "redis":
		return "TIDEMILL_REDIS"
	}
	return f.env[long]
}
