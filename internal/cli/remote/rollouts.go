package remote

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"tidemill.dev/api"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/connect"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/gateway/client"
)

func rolloutsCommand() command.Command {
	return command.Command{
		Name:    "rollouts",
		Lists:   true,
		Watched: true,
		Summary: "list the rollouts: changes of recipes that reach their keys step by step",
		About: `WORSE is the lower bound of how much worse the new versions are than those before, in
points of accuracy. It is negative as long as the new versions may be as good. KEYS counts
the keys with a judged version.

` + connect.AtTheGate,
		Examples: []command.Example{{"tidemill rollouts", "a table"}, {"tidemill rollouts -o json", "for a script"}},
		Make:     func() command.Program { return &standingList{list: listRollouts} },
	}
}

func listRollouts(ctx context.Context, g *client.Gateway) (any, [][]string, string, error) {
	all, err := g.Rollouts(ctx)
	rows := [][]string{{"RECIPE", "ROLLOUT", "STATE", "SHARE", "KEYS", "WORSE", "FAILED", "SINCE"}}
	for i := range all.Rollouts {
		r := &all.Rollouts[i]
		name, since := "-", "-"
		if r.Rollout != "" {
			name = r.Rollout
		}
		if r.Since != nil {
			since = ago(*r.Since) + " ago"
		}
		rows = append(rows, []string{show.Harmless(r.Recipe), show.Harmless(name), rolloutState(r), percentOf(r.Share), fleetFigure(r, "keys", ""), leadPoints(r, "worse"), fleetShare(r, "failed"), since})
	}
	return all.Rollouts, rows, "No recipe of the config has rollouts; docs/rollouts.md shows how to write one.", err
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
		About:    connect.AtTheGate,
		Examples: []command.Example{{"tidemill rollouts show intent", "the newest rollout"}, {"tidemill rollouts show intent -o json", "for a script"}},
		Make:     func() command.Program { return &rolloutShow{} },
	}
}

type rolloutShow struct {
	connect.Gate
	output string
}

func (s *rolloutShow) Flags(f *command.FlagSet) {
	f.Format(&s.output, "text or json")
	s.Gate.Flags(f)
}

func (s *rolloutShow) Accept(positional []string) error { return command.Wants(positional, "RECIPE") }

func (s *rolloutShow) Run(ctx context.Context, to *command.Session, positional []string) error {
	g, done, err := s.Enter(ctx, to)
	if err != nil {
		return err
	}
	defer done()
	r, err := g.Rollout(ctx, positional[0])
	switch {
	case err != nil:
		return err
	case s.output == "json":
		return writeIndented(to.Stdout, r)
	}
	return writeRollout(to.Stdout, &r)
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
clause becomes true. It needs the role approve, for all keys.

` + connect.AtTheGate,
		Examples: []command.Example{{"tidemill rollouts pause intent --reason 'a holiday'", "from now on"}},
		Make: func() command.Program {
			return &rolloutAct{do: (*client.Gateway).PauseRollout, done: "paused the rollout of", already: "has no rollout that advances"}
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
needs the role approve, for all keys.

` + connect.AtTheGate,
		Examples: []command.Example{{"tidemill rollouts resume intent", "it may advance again"}},
		Make: func() command.Program {
			return &rolloutAct{do: (*client.Gateway).ResumeRollout, done: "resumed the rollout of", already: "has no rollout that waits"}
		},
	}
}

func rolloutsAbortCommand() command.Command {
	return command.Command{
		Name:    "rollouts abort",
		Args:    "RECIPE",
		Summary: "abort a rollout: its keys are rolled back",
		About: `New runs of all keys take the way before, until the config has another one. It needs the
role approve, for all keys.

` + connect.AtTheGate,
		Examples: []command.Example{{"tidemill rollouts abort intent --reason 'complaints of users'", "its keys go back"}},
		Make: func() command.Program {
			return &rolloutAct{do: (*client.Gateway).AbortRollout, done: "aborting the rollout of", already: "has no open rollout"}
		},
	}
}

// rolloutAct is a call that changes a rollout.
type rolloutAct struct {
	connect.Gate
	ask           api.RolloutAsked
	do            func(*client.Gateway, context.Context, string, api.RolloutAsked) (api.Rested, error)
	done, already string
}

func (a *rolloutAct) Flags(f *command.FlagSet) {
	f.Text(&a.ask.Reason, "reason", "", "TEXT", "reason, shown later with the change")
	a.Gate.Flags(f)
}

func (a *rolloutAct) Accept(positional []string) error { return command.Wants(positional, "RECIPE") }

func (a *rolloutAct) Run(ctx context.Context, s *command.Session, positional []string) error {
	g, done, err := a.Enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	got, err := a.do(g, ctx, positional[0], a.ask)
	if err != nil {
		return err
	}
	text := a.done + " " + show.Harmless(got.Name)
	if !got.Changed {
		text = show.Harmless(got.Name) + " " + a.already
	}
	_, err = fmt.Fprintln(s.Stdout, text)
	return err
}
