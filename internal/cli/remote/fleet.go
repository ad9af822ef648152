package remote

import (
	"context"
	"fmt"
	"io"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/broker/follow"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/connect"
	"tidemill.dev/internal/cli/show"
)

func fleetCommand() command.Command {
	return command.Command{
		Name:    "fleet",
		Watched: true,
		Summary: "count the keys of each recipe by their state",
		About: `A key has the first state that applies:
  awaiting  its newest version waits for a person
  refused   its newest version was refused
  failing   a run has failed since its newest version
  unserved  a scorer cannot serve its champion
  none      it has no champion
  stale     its champion was trained longer ago than --stale says
  fresh     none of these
A key of a recipe that makes no models is fresh, failing or none, as its last run has ended.

` + connect.AtTheGate,
		Examples: []command.Example{
			{"tidemill fleet", "all recipes"},
			{"tidemill fleet --recipe intent --stale 1d", "one recipe, whose champions are stale after a day"},
			{"tidemill fleet -o json", "for a script; with the ages of the champions"},
		},
		Make: func() command.Program { return &fleetCount{stale: usualStale} },
	}
}

type fleetCount struct {
	connect.Gate
	recipe, stale, output string
}

func (c *fleetCount) Flags(f *command.FlagSet) {
	f.Text(&c.recipe, "recipe", "r", "NAME", "only this recipe")
	f.Text(&c.stale, "stale", "", "AGE", "age from which a champion is stale")
	f.Format(&c.output, "text or json")
	c.Gate.Flags(f)
}

func (c *fleetCount) Accept(positional []string) error {
	if _, err := follow.ParseTime("-"+c.stale, time.Now()); err != nil {
		return command.Usagef("--stale %s is not an age; write it like 12h or 7d", c.stale)
	}
	return command.Wants(positional)
}

func (c *fleetCount) Run(ctx context.Context, s *command.Session, _ []string) error {
	g, done, err := c.Enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	all, err := g.Fleet(ctx, c.recipe, c.stale)
	switch {
	case err != nil:
		return err
	case c.output == "json":
		return writeIndented(s.Stdout, all)
	case len(all.Recipes) == 0:
		fmt.Fprintln(s.Stderr, "No recipe matches; tidemill recipes lists them.")
		return nil
	}
	return tabulateFleet(s.Stdout, &all)
}

func tabulateFleet(w io.Writer, all *api.Fleet) error {
	rows := [][]string{{"RECIPE", "KEYS", "FRESH", "STALE", "DRIFTING", "NONE", "UNSERVED", "FAILING", "REFUSED", "AWAITING", "PINNED", "RUNNING"}}
	for i := range all.Recipes {
		r := &all.Recipes[i]
		row := []string{show.Harmless(r.Recipe), show.Thousands(int64(r.Total))}
		for _, state := range []api.KeyState{api.KeyFresh, api.KeyStale, api.KeyDrifting, api.KeyNone, api.KeyUnserved, api.KeyFailing, api.KeyRefused, api.KeyAwaiting} {
			row = append(row, show.Thousands(int64(r.States[state])))
		}
		rows = append(rows, append(row, show.Thousands(int64(r.Pinned)), show.Thousands(int64(r.Running))))
	}
	return show.Columns(w, rows)
}
