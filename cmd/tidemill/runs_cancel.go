package main

import (
	"context"

	"tidemill.dev/internal/api"
	"tidemill.dev/internal/remote"
)

func runsCancelCommand() command {
	return command{
		name:    "runs cancel",
		args:    "[RUN…]",
		summary: "have runs end",
		about: `One that waits ends at once. The command of one that is under way is asked to save
and leave (SIGTERM), and ended if it does not. Where no --state is given, all that
have not ended are meant.

` + atTheGate,
		examples: []example{
			{"tidemill runs cancel 3k7mzq --reason 'wrong data'", "one, by the beginning of its id"},
			{"tidemill runs cancel --recipe intent --state waiting --dry-run", "how many wait"},
			{"tidemill runs cancel --where \"subject LIKE 'test-%'\"", "by a condition"},
		},
		make: func() program { return &runCancel{} },
	}
}

type runCancel struct {
	runAsk
	reason string
}

func (p *runCancel) flags(f *flagSet) {
	f.text(&p.reason, "reason", "", "TEXT", "why, for whoever looks at it later")
	p.runAsk.flags(f, "have not ended")
}

func (p *runCancel) run(ctx context.Context, s *session, positional []string) error {
	g, done, err := p.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	return p.do(ctx, s, positional, func(ctx context.Context, ask api.RunsSelected) (api.RunsDone, error) {
		ask.Reason = p.reason
		return g.CancelRuns(ctx, ask)
	})
}

func runsRetryCommand() command {
	return command{
		name:    "runs retry",
		args:    "[RUN…]",
		summary: "ask anew for runs that have ended, with the events that had asked for them",
		about: `It asks for a new run, which sees the newest data when it starts. Where no --state is
given, those that failed or were cancelled are meant. One that is selected, and not
named, is left alone where its key has a newer one.

` + atTheGate,
		examples: []example{
			{"tidemill runs retry 3k7mzq", "one, by the beginning of its id"},
			{"tidemill runs retry --recipe intent --since -1d --dry-run", "what failed in a day"},
			{"tidemill runs retry --where \"reason LIKE '%out of memory%'\" --rate 1/s", "by a condition, gently"},
		},
		make: func() program { return &runRetry{} },
	}
}

type runRetry struct {
	runAsk
	rate string

	perSecond float64
}

func (p *runRetry) flags(f *flagSet) {
	f.text(&p.rate, "rate", "", "RATE", "no faster than this, such as 50/s")
	p.runAsk.flags(f, "failed or were cancelled")
}

func (p *runRetry) accept(positional []string) (err error) {
	if p.perSecond, err = parseRate(p.rate); err != nil {
		return err
	}
	return p.runAsk.accept(positional)
}

func (p *runRetry) run(ctx context.Context, s *session, positional []string) error {
	g, done, err := p.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	named := remote.NewAsking()
	return p.do(ctx, s, positional, func(ctx context.Context, ask api.RunsSelected) (api.RunsDone, error) {
		ask.Rate = p.perSecond
		return g.RetryRuns(ctx, named, ask)
	})
}
