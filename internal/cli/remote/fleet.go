package remote

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/data/ledger/fold"
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

func driftCommand() command.Command {
	return command.Command{
		Name:    "drift",
		Lists:   true,
		Watched: true,
		Summary: "list the figures of models that have drifted",
		About: `A figure has drifted if the champion's last answers differ from its first ones by more than chance, in a scorer with drift.
BEFORE and NOW are the shares of VALUE in the first and in the last answers.`,
		Examples: []command.Example{
			{"tidemill drift", "all"},
			{"tidemill drift --recipe intent", "models of one recipe"},
			{"tidemill drift -o json", "for a script"},
		},
		Make: func() command.Program {
			l := &driftList{q: client.ModelQuery{Drifting: true}}
			return listing(l.ask, l.table).with(l.Flags, l.accept)
		},
	}
}

type driftList struct {
	q client.ModelQuery
	pages
}

func (l *driftList) Flags(f *command.FlagSet) {
	modelFlags(f, &l.q.Recipe, &l.q.Key, &l.q.Prefix)
	l.pages.add(f)
}

func (l *driftList) accept([]string) error { return l.check() }

func (l *driftList) ask(ctx context.Context, g *client.Gateway) (api.Models, error) {
	return gatherModels(ctx, g, l.q, &l.pages)
}

func (l *driftList) table(page *api.Models) table {
	t := table{none: "No model has drifted. Scorers with drift in the config are watched.",
		rows: [][]string{{"MODEL", "FIGURE", "VALUE", "BEFORE", "NOW", "SINCE", "EVIDENCE", "REPORTED"}}}
	for _, m := range page.Models {
		for _, d := range m.Drifts {
			t.rows = append(t.rows, []string{show.Cut(show.Harmless(m.Name), 60) + "@" + strconv.Itoa(d.Version), show.Harmless(d.Figure), show.Cut(show.Harmless(d.Value), 30),
				figure(d.Before), figure(d.Now), show.Harmless(d.Since), evidenceText(d.Evidence), ago(d.At)})
		}
	}
	t.advice = func(w io.Writer) {
		sayCut(w, len(page.Models), &page.Total, "model", page.Next)
		first := &page.Models[0]
		fmt.Fprintf(w, "Next: tidemill runs start %s --key %s trains the first one on the data of today.\n", show.Harmless(first.Recipe), show.Harmless(first.Key))
	}
	return t
}

// evidenceText writes an e-value with two digits.
func evidenceText(e float64) string { return strconv.FormatFloat(e, 'g', 2, 64) }

// driftText says how a figure has changed, such as labels: refund 0.100 → 0.412.
func driftText(d *fold.Drift) string { return DriftText(&d.ModelDrifted) }

// DriftText says how a figure has changed, and since which position.
func DriftText(d *tidemill.ModelDrifted) string {
	return fmt.Sprintf("%s: %s %s → %s since %s", d.Figure, d.Value, figure(d.Before), figure(d.Now), d.Since)
}
