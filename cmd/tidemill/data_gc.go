package main

import (
	"context"
	"fmt"
	"time"

	"tidemill.dev/internal/api"
)

func dataCollectCommand() command {
	return command{
		name:    "data gc",
		summary: "remove from the store what nothing reaches",
		about: `What a commit of any branch holds stays, what a run uses that has not ended, and
what known runs have made. What is younger than --older stays too: it may be on its
way into a commit.

` + atTheGate,
		examples: []example{
			{"tidemill data gc --dry-run", "what would be removed"},
			{"tidemill data gc --older 48h", "what nothing has reached for two days"},
		},
		make: func() program { return &dataCollect{output: "text", older: 24 * time.Hour} },
	}
}

type dataCollect struct {
	gate
	output string
	older  time.Duration
	dryRun bool
}

func (p *dataCollect) flags(f *flagSet) {
	f.span(&p.older, "older", "DURATION", "what is younger stays; at least 24h")
	f.yes(&p.dryRun, "dry-run", "only say what would be removed")
	f.text(&p.output, "output", "o", "FORMAT", "text or json")
	p.gate.flags(f)
}

func (p *dataCollect) accept(positional []string) error {
	if err := checkOutput(p.output); err != nil {
		return err
	}
	if p.older <= 0 {
		return usagef("--older %s: give at least 24h; what is younger may be on its way into a commit", p.older)
	}
	return wants(positional)
}

func (p *dataCollect) run(ctx context.Context, s *session, _ []string) error {
	g, done, err := p.enterQuietly(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	found, err := g.Collect(ctx, api.CollectAsked{OlderSeconds: p.older.Seconds(), DryRun: p.dryRun})
	switch {
	case err != nil:
		return err
	case p.output == "json":
		return writeIndented(s.stdout, found)
	}
	verb := "removed"
	if found.DryRun {
		verb = "would remove"
	}
	fmt.Fprintf(s.stdout, "%s %s of %s, %s of %s; %s stay\n", verb, thousands(int64(found.Removed)), count(found.Objects, "object"),
		size(found.Freed), size(found.Bytes), thousands(int64(found.Kept)))
	return nil
}
