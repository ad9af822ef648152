package main

import (
	"context"
	"fmt"

	"tidemill.dev/internal/api"
)

func dataBranchCommand() command {
	return command{
		name:    "data branch",
		args:    "DATASET NEW",
		summary: "make a branch of a dataset",
		about:   "A branch costs nothing: it is a name for a commit, and goes on from there.\n\n" + atTheGate,
		examples: []example{
			{"tidemill data branch bots/bot-42 next", "from where main is"},
			{"tidemill data branch bots/bot-42 before --from 3f9ac2", "from a commit of the past"},
		},
		make: func() program { return &dataBranch{} },
	}
}

type dataBranch struct {
	gate
	from string
}

func (p *dataBranch) flags(f *flagSet) {
	f.text(&p.from, "from", "", "REF", "a branch, or a commit by the beginning of its id (default main)")
	p.gate.flags(f)
}

func (p *dataBranch) accept(positional []string) error { return wants(positional, "DATASET", "NEW") }

func (p *dataBranch) run(ctx context.Context, s *session, positional []string) error {
	g, done, err := p.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	made, err := g.Branch(ctx, api.BranchAsked{Dataset: positional[0], Branch: positional[1], From: p.from})
	if err != nil {
		return err
	}
	verb := "made"
	if !made.Changed {
		verb = "was there already:"
	}
	fmt.Fprintf(s.stdout, "%s branch %s of %s at commit %s (%s)\n", verb, harmless(made.Branch), harmless(positional[0]), shortCommit(made.Commit.ID), holding(&made.Commit))
	return nil
}
