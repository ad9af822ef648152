package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"tidemill.dev/internal/api"
	"tidemill.dev/internal/tail"
)

// runAsk is the flags of what is done with runs.
type runAsk struct {
	gate
	runFlags
	where       string
	all, dryRun bool
}

func (a *runAsk) flags(f *flagSet, what string) {
	a.runFlags.flags(f)
	f.text(&a.where, "where", "", "CONDITION", "for which this is true, in CloudEvents SQL over subject (the key), recipe, run, state, reason")
	f.yes(&a.all, "all", "all that "+what)
	f.yes(&a.dryRun, "dry-run", "only say what would be done")
	a.gate.flags(f)
}

func (a *runAsk) says() bool { return a.runFlags.says() || a.where != "" }

func (a *runAsk) accept(positional []string) error {
	switch {
	case a.all && (a.says() || len(positional) > 0):
		return usagef("--all means all: leave out the others, or --all")
	case a.says() && len(positional) > 0:
		return usagef("give runs by their ids, or flags that select them, and not both")
	case !a.all && !a.says() && len(positional) == 0:
		return usagef("say which: a RUN, a flag such as --recipe NAME, or --all")
	}
	if _, err := parseFilter(a.where); err != nil {
		return err
	}
	return a.check()
}

// selection is what is meant.
func (a *runAsk) selection() (ask api.RunsSelected, err error) {
	ask = api.RunsSelected{Recipe: a.recipe, Key: a.key, States: a.states, Where: a.where, All: a.all, DryRun: a.dryRun}
	if a.since != "" {
		at, err := tail.ParseTime(a.since, time.Now())
		if err != nil {
			return ask, usagef("--since %v", err)
		}
		ask.Since = &at
	}
	return ask, nil
}

const namedAtOnce = 1000

// do asks as often as it takes to come to the end.
func (a *runAsk) do(ctx context.Context, s *session, ids []string, one func(context.Context, api.RunsSelected) (api.RunsDone, error)) error {
	ask, err := a.selection()
	if err != nil {
		return err
	}
	sum := newRunSum(s.stdout)
	part := func() error {
		got, err := one(ctx, ask)
		sum.add(got.Runs)
		ask.After, ask.First = got.Next, ask.First+len(got.Runs)
		return err
	}
	for chunk := range slices.Chunk(ids, namedAtOnce) {
		ask.Runs = chunk
		if err := part(); err != nil {
			return err
		}
	}
	for again := len(ids) == 0; again; again = ask.After != "" {
		if err := part(); err != nil {
			return err
		}
	}
	if sum.total == 0 {
		fmt.Fprintln(s.stderr, "No run is meant; tidemill runs lists those there are.")
		return nil
	}
	sum.end(s.stdout, a.dryRun)
	return sum.failure()
}
