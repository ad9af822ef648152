package remote

import (
	"context"

	"tidemill.dev/api"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/gateway/client"
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
A key of a recipe that makes no models is fresh, failing or none, as its last run has ended.`,
		Examples: []command.Example{
			{"tidemill fleet", "all recipes"},
			{"tidemill fleet --recipe intent --stale 1d", "one recipe, whose champions are stale after a day"},
			{"tidemill fleet -o json", "for a script; with the ages of the champions"},
		},
		Make: func() command.Program {
			c := &fleetCount{stale: usualStale}
			return listing(c.ask, fleetTable).with(c.Flags, c.accept)
		},
	}
}

type fleetCount struct{ recipe, stale string }

func (c *fleetCount) Flags(f *command.FlagSet) {
	f.Text(&c.recipe, "recipe", "r", "NAME", "only this recipe")
	f.Text(&c.stale, "stale", "", "AGE", "age from which a champion is stale")
}

func (c *fleetCount) accept([]string) error { return checkAge("--stale ", c.stale) }

func (c *fleetCount) ask(ctx context.Context, g *client.Gateway) (api.Fleet, error) {
	return g.Fleet(ctx, c.recipe, c.stale)
}

func fleetTable(all *api.Fleet) table {
	states := []api.KeyState{api.KeyFresh, api.KeyStale, api.KeyDrifting, api.KeyNone, api.KeyUnserved, api.KeyFailing, api.KeyRefused, api.KeyAwaiting}
	return table{none: "No recipe matches; tidemill recipes lists them.", rows: rowsOf(all.Recipes, func(r *api.FleetRecipe) []string {
		row := []string{show.Harmless(r.Recipe), show.Thousands(int64(r.Total))}
		for _, state := range states {
			row = append(row, show.Thousands(int64(r.States[state])))
		}
		return append(row, show.Thousands(int64(r.Pinned)), show.Thousands(int64(r.Running)))
	}, "RECIPE", "KEYS", "FRESH", "STALE", "DRIFTING", "NONE", "UNSERVED", "FAILING", "REFUSED", "AWAITING", "PINNED", "RUNNING")}
}
