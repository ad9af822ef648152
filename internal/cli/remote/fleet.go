package remote

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

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
		About: `A figure has drifted if the champion's last answers differ from its first ones by more
than chance, in a scorer with drift. BEFORE and NOW are the shares of VALUE in the first
and in the last answers.`,
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
		start := page.Models[0].Recipe
		if key := page.Models[0].Key; key != start { // a recipe without keys has its own name as the key
			start += " --key " + key
		}
		fmt.Fprintf(w, "Next: tidemill runs start %s trains the first one on the data of today.\n", show.Harmless(start))
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

func rolloutsCommand() command.Command {
	return command.Command{
		Name:    "rollouts",
		Lists:   true,
		Watched: true,
		Summary: "list the rollouts: changes of recipes that reach their keys step by step",
		About: `WORSE is the lower bound of how much worse the new versions are than those before, in
points of accuracy. It is negative as long as the new versions may be as good. KEYS counts
the keys with a judged version.`,
		Examples: []command.Example{{"tidemill rollouts", "a table"}, {"tidemill rollouts -o json", "for a script"}},
		Make: func() command.Program {
			return listing(func(ctx context.Context, g *client.Gateway) ([]api.Rollout, error) {
				all, err := g.Rollouts(ctx)
				return all.Rollouts, err
			}, rolloutTable)
		},
	}
}

func rolloutTable(all *[]api.Rollout) table {
	return table{none: "No recipe of the config has rollouts; docs/rollouts.md shows how to write one.", rows: rowsOf(*all, func(r *api.Rollout) []string {
		since := "-"
		if r.Since != nil {
			since = ago(*r.Since) + " ago"
		}
		return []string{show.Harmless(r.Recipe), show.Harmless(orDash(r.Rollout)), rolloutState(r), percentOf(r.Share), fleetFigure(r, "keys", ""), leadPoints(r, "worse"), fleetShare(r, "failed"), since}
	}, "RECIPE", "ROLLOUT", "STATE", "SHARE", "KEYS", "WORSE", "FAILED", "SINCE")}
}

// rolloutState returns the state, or the result of the last rollout if none is open.
func rolloutState(r *api.Rollout) string {
	if r.State == api.RolloutNone && r.Last != "" {
		return show.Harmless(r.Last)
	}
	return show.Harmless(string(r.State))
}

func percentOf(share float64) string {
	if share == 0 {
		return "-"
	}
	return strconv.FormatFloat(100*share, 'g', 4, 64) + "%"
}

func fleetFigure(r *api.Rollout, name, unit string) string {
	v, known := r.Figures[name]
	if !known {
		return "-"
	}
	return strconv.FormatFloat(v, 'g', 4, 64) + unit
}

// points returns a difference of shares in percentage points; a dash without evidence.
func leadPoints(r *api.Rollout, name string) string {
	v, known := r.Figures[name]
	if !known || v <= -1 {
		return "-"
	}
	return fmt.Sprintf("%+.1f", 100*v)
}

func fleetShare(r *api.Rollout, name string) string {
	v, known := r.Figures[name]
	if !known {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*v)
}

func rolloutsShowCommand() command.Command {
	return command.Command{
		Name:     "rollouts show",
		Args:     "RECIPE",
		Summary:  "show the rollout of a recipe with its evidence",
		Examples: []command.Example{{"tidemill rollouts show intent", "the newest rollout"}, {"tidemill rollouts show intent -o json", "for a script"}},
		Make:     func() command.Program { return showing((*client.Gateway).Rollout, writeRollout) },
	}
}

func writeRollout(w io.Writer, r *api.Rollout) error {
	rows := [][]string{{"recipe", show.Harmless(r.Recipe)}, {"steps", stepsOf(r)}, {"stop", show.Harmless(strings.Join(r.Stop, "; "))}}
	add := func(name, text string) {
		if text != "" {
			rows = append(rows, []string{name, show.Harmless(text)})
		}
	}
	add("rollout", r.Rollout)
	state := rolloutState(r)
	if r.By != "" {
		state += " by " + r.By
	}
	add("state", state)
	add("reason", r.Reason)
	add("waits", r.Wait)
	if len(r.Figures) > 0 {
		add("keys", fmt.Sprintf("%s judged, %s promoted, %s compared by the gate, %s by outcomes", fleetFigure(r, "keys", ""), fleetFigure(r, "promoted", ""), fleetFigure(r, "measured", ""), fleetFigure(r, "labelled", "")))
		add("worse", fmt.Sprintf("by at least %s points (mean %s)", leadPoints(r, "worse"), leadPoints(r, "worse.mean")))
		add("runs", fmt.Sprintf("%s, of which at least %s fail", fleetFigure(r, "runs", ""), fleetShare(r, "failed")))
		add("refused", fmt.Sprintf("at least %s of the versions", fleetShare(r, "refused")))
	}
	if r.RolledBack+r.Remaining+r.Left > 0 {
		add("back", fmt.Sprintf("%s rolled back, %d to go, %d cannot", show.Count(r.RolledBack, "key"), r.Remaining, r.Left))
	}
	for _, model := range slices.Sorted(maps.Keys(r.Why)) {
		add("left", model+": "+r.Why[model])
	}
	return show.Columns(w, rows)
}

// stepsOf returns the shares of the config, with brackets around the present one.
func stepsOf(r *api.Rollout) string {
	var all []string
	for _, s := range r.Keys {
		text := percentOf(s)
		if s == r.Share && r.State != api.RolloutNone {
			text = "[" + text + "]"
		}
		all = append(all, text)
	}
	return strings.Join(all, " → ") + ", each for " + r.Hold
}

func rolloutsPauseCommand() command.Command {
	return command.Command{
		Name:    "rollouts pause",
		Args:    "RECIPE",
		Summary: "pause a rollout: no further keys take part",
		About: `The keys that take part keep doing so. The rollout still stops by itself if a stop
clause becomes true. It needs the role approve, for all keys.`,
		Examples: []command.Example{{"tidemill rollouts pause intent --reason 'a holiday'", "from now on"}},
		Make: func() command.Program {
			return changingRollout((*client.Gateway).PauseRollout, "paused the rollout of", "has no rollout that advances")
		},
	}
}

func rolloutsResumeCommand() command.Command {
	return command.Command{
		Name:    "rollouts resume",
		Args:    "RECIPE",
		Summary: "resume a rollout that is paused, has stopped or was aborted",
		About: `One that has stopped by itself continues with the share that it had; its earlier evidence
does not count any more. After an abort, another rollout of the same change begins. It
needs the role approve, for all keys.`,
		Examples: []command.Example{{"tidemill rollouts resume intent", "it may advance again"}},
		Make: func() command.Program {
			return changingRollout((*client.Gateway).ResumeRollout, "resumed the rollout of", "has no rollout that waits")
		},
	}
}

func rolloutsAbortCommand() command.Command {
	return command.Command{
		Name:    "rollouts abort",
		Args:    "RECIPE",
		Summary: "abort a rollout: its keys are rolled back",
		About: `New runs of all keys take the way before, until the config has another one. It needs the
role approve, for all keys.`,
		Examples: []command.Example{{"tidemill rollouts abort intent --reason 'complaints of users'", "its keys go back"}},
		Make: func() command.Program {
			return changingRollout((*client.Gateway).AbortRollout, "aborting the rollout of", "has no open rollout")
		},
	}
}

// changingRollout is a command that changes a rollout.
func changingRollout(do func(*client.Gateway, context.Context, string, api.RolloutAsked) (api.Rested, error), done, already string) command.Program {
	var ask api.RolloutAsked
	return switching(func(g *client.Gateway, ctx context.Context, recipe string) (api.Rested, error) {
		return do(g, ctx, recipe, ask)
	}, done, already).
		with(func(f *command.FlagSet) { reasonFlag(f, &ask.Reason) }, nil)
}
