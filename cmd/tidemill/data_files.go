package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"tidemill.dev/internal/api"
	"tidemill.dev/internal/remote"
)

// files lists the files of a version as they come: there may be millions.
func (l *dataList) files(ctx context.Context, s *session, g *remote.Gateway, positional []string) error {
	v, err := parseVersion(positional[0])
	if err != nil {
		return err
	}
	path := ""
	if len(positional) > 1 {
		path = positional[1]
	}
	out := bufio.NewWriter(s.stdout)
	show := lineShower(out, l.output, func(f api.File) string { return fmt.Sprintf("%10s  %s", size(f.Size), harmless(f.Path)) })
	files, bytes := 0, int64(0)
	c, err := g.Files(ctx, v.dataset, v.ref, path, func(f api.File) error {
		files, bytes = files+1, bytes+f.Size
		return show(f)
	})
	if err = errors.Join(err, out.Flush()); err != nil {
		return err
	}
	if l.output != "json" {
		fmt.Fprintf(s.stderr, "%s, %s, of commit %s on %s\n", count(files, "file"), size(bytes), shortCommit(c.ID), harmless(c.Branch))
	}
	return nil
}

// lineShower prints one thing a line, as JSON or as text.
func lineShower[T any](w io.Writer, output string, text func(T) string) func(T) error {
	if output == "json" {
		return func(v T) error {
			line, err := json.Marshal(v)
			if err == nil {
				_, err = w.Write(append(harmlessJSON(line), '\n'))
			}
			return err
		}
	}
	return func(v T) error {
		_, err := fmt.Fprintln(w, text(v))
		return err
	}
}

func dataDiffCommand() command {
	return command{
		name:    "data diff",
		args:    "DATASET FROM [TO]",
		summary: "list the files that differ between two versions of a dataset",
		about: `+ was added, - was removed, ~ is another. FROM and TO are branches, or commits by
the beginning of their ids; without TO it is the branch main.

` + atTheGate,
		examples: []example{
			{"tidemill data diff bots/bot-42 3f9ac2 main", "what came since that commit"},
			{"tidemill data diff bots/bot-42 main next -o json", "one file a line, as it was and as it is"},
		},
		make: func() program { return &dataDiff{output: "text"} },
	}
}

type dataDiff struct {
	gate
	output string
}

func (p *dataDiff) flags(f *flagSet) {
	f.text(&p.output, "output", "o", "FORMAT", "text or json")
	p.gate.flags(f)
}

func (p *dataDiff) accept(positional []string) error {
	if err := checkOutput(p.output); err != nil {
		return err
	}
	return between(positional, 2, "DATASET", "FROM", "TO")
}

func (p *dataDiff) run(ctx context.Context, s *session, positional []string) error {
	g, done, err := p.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	out, differ := bufio.NewWriter(s.stdout), 0
	show := lineShower(out, p.output, differenceText)
	to := ""
	if len(positional) > 2 {
		to = positional[2]
	}
	err = g.Diff(ctx, positional[0], positional[1], to, func(d api.Difference) error { differ++; return show(d) })
	if err = errors.Join(err, out.Flush()); err != nil {
		return err
	}
	if p.output != "json" {
		fmt.Fprintf(s.stderr, "%s differ\n", count(differ, "file"))
	}
	return nil
}

func differenceText(d api.Difference) string {
	switch {
	case d.Was == nil:
		return fmt.Sprintf("+ %s  %s", harmless(d.Path), size(d.Is.Size))
	case d.Is == nil:
		return "- " + harmless(d.Path)
	}
	return fmt.Sprintf("~ %s  %s, was %s", harmless(d.Path), size(d.Is.Size), size(d.Was.Size))
}
