package remote

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker/follow"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/gateway/client"
	"tidemill.dev/internal/models/evaluate"
)

func runsCommand() command.Command {
	return command.Command{
		Name:    "runs",
		Daily:   true,
		Lists:   true,
		Summary: "list runs: progress, reason for waiting, result",
		About: `It lists the newest runs first. A run is waiting, running (retrying between two attempts),
or commits its output. At its end it is succeeded, failed or cancelled. Of ended runs the
list has the newest of each recipe and key.

--watch shows live runs, waiting runs and ended runs until Ctrl-C. If the output is not a
terminal, it prints one line per change.`,
		Examples: []command.Example{
			{"tidemill runs", "the newest"},
			{"tidemill runs --watch", "with live progress, until Ctrl-C"},
			{"tidemill runs --recipe intent --state failed,cancelled --since -1d", "runs without success in the last day"},
			{"tidemill runs --key bot-42 -o json", "for a script"},
		},
		Make: func() command.Program {
			l := &runList{}
			l.request = listing(l.ask, l.table).with(l.own, l.accept)
			return l
		},
	}
}

// runFlags select runs.
type runFlags struct {
	recipe, key, state, since string

	states []tidemill.RunState
}

func (l *runFlags) add(f *command.FlagSet) {
	f.Text(&l.recipe, "recipe", "r", "NAME", "only runs of this recipe")
	f.Text(&l.key, "key", "", "KEY", "only runs of this key")
	f.Text(&l.state, "state", "s", "STATE", "only runs in this state; several with commas")
	f.Text(&l.since, "since", "", "TIME", "only runs requested since then: -1h or a time")
}

func (l *runFlags) check() (err error) {
	if l.states, err = parseStates(l.state); err != nil {
		return err
	}
	if l.since == "" {
		return nil
	}
	if _, err := follow.ParseTime(l.since, time.Now()); err != nil {
		return command.Usagef("--since %v", err)
	}
	return nil
}

// RunStates returns all states, in their order.
func RunStates() []string {
	return []string{string(tidemill.RunWaiting), string(tidemill.RunRunning), string(tidemill.RunRetrying), string(tidemill.RunCommitting),
		string(tidemill.RunSucceeded), string(tidemill.RunFailed), string(tidemill.RunCancelled)}
}

func parseStates(text string) (states []tidemill.RunState, err error) {
	if text == "" {
		return nil, nil
	}
	for name := range strings.SplitSeq(text, ",") {
		if !slices.Contains(RunStates(), name) {
			return nil, command.Usagef("--state %q:%s there are %s", name, command.DidYouMean(name, RunStates()), strings.Join(RunStates(), ", "))
		}
		states = append(states, tidemill.RunState(name))
	}
	return states, nil
}

// says reports whether a flag limits the selection.
func (l *runFlags) says() bool { return l.recipe+l.key+l.state+l.since != "" }

func (l *runFlags) query() client.RunQuery {
	return client.RunQuery{States: l.states, Recipe: l.recipe, Key: l.key, Since: l.since}
}

type runList struct {
	*request // lists the runs once
	runFlags
	pages
	watch bool
}

func (l *runList) own(f *command.FlagSet) {
	l.runFlags.add(f)
	l.pages.add(f)
	f.Yes(&l.watch, "watch", "keep showing, with live progress, until Ctrl-C")
}

func (l *runList) accept([]string) error {
	switch {
	case l.watch && l.after != "":
		return command.Usagef("--watch shows the newest runs: leave out --after or --watch")
	case l.watch && l.output == "json":
		return command.Usagef("--watch prints text: leave out -o json or --watch")
	}
	return cmp.Or(l.pages.check(), l.runFlags.check())
}

func (l *runList) Run(ctx context.Context, s *command.Session, positional []string) error {
	if l.watch {
		return l.runWatch(ctx, s)
	}
	return l.request.Run(ctx, s, positional)
}

func (l *runList) ask(ctx context.Context, g *client.Gateway) (api.Runs, error) {
	return gatherRuns(ctx, g, l.query(), &l.pages)
}

func (l *runList) table(page *api.Runs) table {
	return table{rows: runRows(page.Runs, time.Now()), advice: func(w io.Writer) { adviseOnRuns(w, page) },
		none: nothing(l.says() || l.after != "", "run", "There are no runs yet; an event that a recipe waits for starts one, and so does tidemill runs start.")}
}

// runWatch polls for ever, so it uses no warning about missing answers.
func (l *runList) runWatch(ctx context.Context, s *command.Session) error {
	g, done, err := l.EnterQuietly(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	return newRunWatch(l, g, s).run(ctx)
}

func gatherRuns(ctx context.Context, g *client.Gateway, q client.RunQuery, p *pages) (all api.Runs, err error) {
	all.Runs, all.Next, err = gather(p.limit, p.after, func(limit int, after string) ([]api.RunShown, string, error) {
		q.Limit, q.After = limit, after
		page, err := g.Runs(ctx, q)
		all.Total = page.Total
		return page.Runs, page.Next, err
	})
	return all, err
}

func runRows(all []api.RunShown, now time.Time) [][]string {
	return rowsOf(all, func(r *api.RunShown) []string { return runRow(r, now) }, "RUN", "RECIPE", "KEY", "STATE", "REQUESTED", "TOOK", "")
}

func runRow(r *api.RunShown, now time.Time) []string {
	return []string{show.ShortID(r.ID), show.Harmless(r.Recipe), orDash(show.Cut(show.Harmless(r.Key), 40)), stateOfRun(r), ago(r.Asking), tookOf(r, now), show.Cut(show.Harmless(noteOf(r)), 100)}
}

// stateOfRun returns the state of a run. A run whose attempt waits for GPUs or for a node is pending.
func stateOfRun(r *api.RunShown) string {
	if a := r.Attempt(); a != nil && a.Pending != "" && r.State == tidemill.RunRunning {
		return "pending"
	}
	if n := len(r.Attempts); n > 1 && !r.State.Ended() {
		return fmt.Sprintf("%s (attempt %d)", r.State, n)
	}
	return show.Harmless(string(r.State))
}

// tookOf returns how long a run took, from its first attempt on.
func tookOf(r *api.RunShown, now time.Time) string {
	if len(r.Attempts) == 0 {
		return "-"
	}
	end := r.End
	if end.IsZero() {
		end = now
	}
	return roughSpan(end.Sub(r.Attempts[0].Started))
}

// roughSpan formats a duration with a useful precision.
func roughSpan(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// noteOf returns the most important note on a run, and the reason of the attempt before, if another
// attempt waits or runs.
func noteOf(r *api.RunShown) string {
	note := mainNote(r)
	if failed := failedBefore(r); failed != "" {
		return strings.TrimPrefix(note+"; "+failed, "; ")
	}
	return note
}

// failedBefore returns why the attempt before the present or next one has ended; empty if there is
// none, or if the run has ended.
func failedBefore(r *api.RunShown) string {
	for _, a := range slices.Backward(r.Attempts) {
		switch {
		case r.State.Ended():
			return ""
		case !a.Ended.IsZero() && a.Reason != "":
			return fmt.Sprintf("attempt %d: %s", a.Number, a.Reason)
		}
	}
	return ""
}

func mainNote(r *api.RunShown) string {
	switch a := r.Attempt(); {
	case a != nil && a.Pending != "":
		return a.Pending
	case strings.HasPrefix(r.Waits, "for "), strings.HasPrefix(r.Waits, "to "):
		return "waits " + r.Waits
	case r.Waits != "":
		return r.Waits
	case r.Reason != "":
		return r.Reason
	case r.State.Ended() && r.Result != nil:
		return Headline(r.Result.Metrics, r.GateMetrics...)
	case r.Progress != nil && a != nil && r.Progress.Attempt == a.Number:
		return progressText(r.Progress, r.GateMetrics...)
	}
	return ""
}

func adviseOnRuns(w io.Writer, page *api.Runs) {
	all := page.Runs
	sayCut(w, len(all), page.Total, "run", page.Next)
	fmt.Fprintf(w, "Next: tidemill runs show %s shows one in detail.\n", show.ShortID(all[0].ID))
	failed := slices.IndexFunc(all, func(r api.RunShown) bool { return r.State == tidemill.RunFailed })
	if failed >= 0 {
		fmt.Fprintf(w, "      %s shows why a run has failed\n", whyFailed(&all[failed]))
	}
}

// whyFailed returns the command that shows why a run has failed. The command of a run whose inputs are
// missing never began, so there is no log.
func whyFailed(r *api.RunShown) string {
	if r.Result == nil || r.Result.LogBytes == 0 {
		return "tidemill runs show " + show.ShortID(r.ID)
	}
	return "tidemill logs " + show.ShortID(r.ID)
}

// progressText formats the progress of a run in one line. The parameter gate are the metrics of its
// gate.
func progressText(p *api.Progress, gate ...string) string {
	var parts []string
	if p.Total > 0 {
		share := min(max(p.Step/p.Total, 0), 1)
		parts = append(parts, fmt.Sprintf("[%s] %3.0f%%", bar(share, runBar), share*100), number(p.Step)+"/"+number(p.Total))
	} else if p.Step > 0 {
		parts = append(parts, "step "+number(p.Step))
	}
	if text := Headline(p.Metrics, gate...); text != "" {
		parts = append(parts, text)
	}
	return strings.Join(parts, "  ")
}

func bar(share float64, width int) string {
	full := int(share * float64(width))
	return strings.Repeat("=", full) + strings.Repeat(" ", width-full)
}

// Headline formats the most important metrics: those that the gate names, and at least two.
func Headline(metrics map[string]float64, gate ...string) string {
	var parts []string
	named := 0
	for _, name := range telling(metrics, gate...) {
		parts = append(parts, name+" "+number(metrics[name]))
		if slices.Contains(gate, name) {
			named++
		}
	}
	return strings.Join(parts[:min(len(parts), max(headlinedCount, min(named, headlinedMost)))], ", ")
}

// telling returns the names of metrics: those that the gate names in its order, then those of quality,
// then the others by the alphabet.
func telling(metrics map[string]float64, gate ...string) []string {
	first := append(slices.Clone(gate), evaluate.MetricAccuracy, evaluate.MetricMacroF1, "f1", "loss")
	rank := func(name string) int {
		if i := slices.Index(first, name); i >= 0 {
			return i
		}
		return len(first)
	}
	return slices.SortedFunc(maps.Keys(metrics), func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(a, b))
	})
}

// number formats a number with four digits.
func number(v float64) string {
	if v == float64(int64(v)) {
		return strconv.FormatInt(int64(v), 10)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}
