package main

import (
	"context"
	"fmt"
	"io"

	"tidemill.dev/internal/api"
)

func dataLogCommand() command {
	return command{
		name:    "data log",
		args:    "DATASET[@BRANCH]",
		summary: "list the commits of a dataset's branch, newest first",
		about:   atTheGate,
		examples: []example{
			{"tidemill data log bots/bot-42", "the newest of main"},
			{"tidemill data log bots/bot-42@next -n 1 -o json", "the newest of another branch, for a script"},
		},
		make: func() program { return &dataLog{output: "text", limit: 20} },
	}
}

type dataLog struct {
	gate
	output string
	limit  int
}

const mostLogged = 1000

func (p *dataLog) flags(f *flagSet) {
	f.number(&p.limit, "n", "", "N", "list so many")
	f.text(&p.output, "output", "o", "FORMAT", "text or json")
	p.gate.flags(f)
}

func (p *dataLog) accept(positional []string) error {
	if err := checkOutput(p.output); err != nil {
		return err
	}
	if p.limit < 1 || p.limit > mostLogged {
		return usagef("-n %d: give 1 to %d", p.limit, mostLogged)
	}
	return wants(positional, "DATASET")
}

func (p *dataLog) run(ctx context.Context, s *session, positional []string) error {
	v, err := parseVersion(positional[0])
	if err != nil {
		return err
	}
	g, done, err := p.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	all, err := g.Commits(ctx, v.dataset, v.ref, p.limit)
	switch {
	case err != nil:
		return err
	case p.output == "json":
		return writeIndented(s.stdout, all.Commits)
	}
	if err := tabulateCommits(s.stdout, all.Commits); err != nil {
		return err
	}
	if all.Next != "" {
		fmt.Fprintf(s.stderr, "There are more; -n %d shows as many.\n", mostLogged)
	}
	return nil
}

func tabulateCommits(w io.Writer, all []api.Commit) error {
	rows := [][]string{{"COMMIT", "WHEN", "BY", "CHANGED", "HOLDS", "MESSAGE"}}
	for i := range all {
		c := &all[i]
		rows = append(rows, []string{shortCommit(c.ID), onDay(c.Time), authorOf(c), fmt.Sprintf("+%d ~%d -%d", c.Added, c.Changed, c.Removed), holding(c), orDash(harmless(c.Message))})
	}
	return columns(w, rows)
}

// authorOf is the run or the person that committed.
func authorOf(c *api.Commit) string {
	if c.Run != "" {
		return "run " + harmless(c.Run[:min(len(c.Run), shownCommit)])
	}
	return orDash(harmless(c.By))
}
