package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"tidemill.dev/config"
)

func validateCommand() command {
	return command{
		name:    "validate",
		args:    "[FILE]",
		summary: "say everything that is wrong with a config",
		about: `It needs no Kafka. Each problem is one line, file:line: path: what is wrong and
what to write instead; the exit status is then 1.`,
		examples: []example{
			{"tidemill validate -f tidemill.yaml", "a file"},
			{"tidemill validate -f conf.d -o json", "a folder, for a script"},
		},
		make: func() program { return &validate{file: configFile, output: "text"} },
	}
}

type validate struct{ file, output string }

func (v *validate) flags(f *flagSet) {
	f.text(&v.file, "config", "f", "FILE", "the config, a file or a folder")
	f.fromEnv("config", "TIDEMILL_CONFIG")
	f.text(&v.output, "output", "o", "FORMAT", "text or json")
}

func (v *validate) accept(positional []string) error {
	if len(positional) == 1 {
		v.file = positional[0]
		positional = nil
	}
	if err := checkOutput(v.output); err != nil {
		return err
	}
	return wants(positional)
}

func (v *validate) run(_ context.Context, s *session, _ []string) error {
	c, err := config.Load(v.file)
	var wrong *config.Error
	switch {
	case errors.As(err, &wrong):
		if err := v.printProblems(s.stdout, wrong.Problems); err != nil {
			return err
		}
		return errReported
	case err != nil:
		return fmt.Errorf("validate: %w", err)
	case v.output == "json":
		return v.printProblems(s.stdout, nil)
	}
	own := 0
	for _, stream := range c.Streams {
		if !stream.Builtin {
			own++
		}
	}
	fmt.Fprintf(s.stdout, "%s is valid: install %s, %s of yours, %d built in\n", v.file, c.Name, count(own, "stream"), len(c.Streams)-own)
	return nil
}

// problemJSON is what -o json prints of a problem.
type problemJSON struct {
	File    string `json:"file"`
	Line    int    `json:"line"` // 0 if the whole file is meant
	Path    string `json:"path"`
	Message string `json:"message"`
}

func (v *validate) printProblems(w io.Writer, problems []config.Problem) error {
	if v.output == "json" {
		all := make([]problemJSON, 0, len(problems))
		for _, p := range problems {
			all = append(all, problemJSON(p))
		}
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(all)
	}
	for _, p := range problems {
		fmt.Fprintln(w, p.Error())
	}
	return nil
}
