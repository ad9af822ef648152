package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/broker/follow"
)

func fleetCommand() command {
	return command{
		name:    "fleet",
		watched: true,
		summary: "count the keys of each recipe by their state",
		about: `A key has the first state that applies:
  awaiting  its newest version waits for a person
  refused   its newest version was refused
  failing   a run has failed since its newest version
  unserved  a scorer cannot serve its champion
  none      it has no champion
  stale     its champion was trained longer ago than --stale says
  fresh     none of these
A key of a recipe that makes no models is fresh, failing or none, as its last run has ended.

` + atTheGate,
		examples: []example{
			{"tidemill fleet", "all recipes"},
			{"tidemill fleet --recipe intent --stale 1d", "one recipe, whose champions are stale after a day"},
			{"tidemill fleet -o json", "for a script; with the ages of the champions"},
		},
		make: func() program { return &fleetCount{output: "text", stale: usualStale} },
	}
}

type fleetCount struct {
	gate
	recipe, stale, output string
}

func (c *fleetCount) flags(f *flagSet) {
	f.text(&c.recipe, "recipe", "r", "NAME", "only this recipe")
	f.text(&c.stale, "stale", "", "AGE", "age from which a champion is stale")
	f.text(&c.output, "output", "o", "FORMAT", "text or json")
	c.gate.flags(f)
}

func (c *fleetCount) accept(positional []string) error {
	if err := checkOutput(c.output); err != nil {
		return err
	}
	if _, err := follow.ParseTime("-"+c.stale, time.Now()); err != nil {
		return usagef("--stale %s is not an age; write it like 12h or 7d", c.stale)
	}
	return wants(positional)
}

func (c *fleetCount) run(ctx context.Context, s *session, _ []string) error {
	g, done, err := c.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	all, err := g.Fleet(ctx, c.recipe, c.stale)
	switch {
	case err != nil:
		return err
	case c.output == "json":
		return writeIndented(s.stdout, all)
	case len(all.Recipes) == 0:
		fmt.Fprintln(s.stderr, "No recipe matches; tidemill recipes lists them.")
		return nil
	}
	return tabulateFleet(s.stdout, &all)
}

func tabulateFleet(w io.Writer, all *api.Fleet) error {
	rows := [][]string{{"RECIPE", "KEYS", "FRESH", "STALE", "NONE", "UNSERVED", "FAILING", "REFUSED", "AWAITING", "PINNED", "RUNNING"}}
	for i := range all.Recipes {
		r := &all.Recipes[i]
		row := []string{harmless(r.Recipe), thousands(int64(r.Total))}
		for _, state := range []api.KeyState{api.KeyFresh, api.KeyStale, api.KeyNone, api.KeyUnserved, api.KeyFailing, api.KeyRefused, api.KeyAwaiting} {
			row = append(row, thousands(int64(r.States[state])))
		}
		rows = append(rows, append(row, thousands(int64(r.Pinned)), thousands(int64(r.Running))))
	}
	return columns(w, rows)
}
