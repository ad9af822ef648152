package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker/follow"
	"tidemill.dev/internal/gateway/client"
)

func runsCommand() command {
	return command{
		name:    "runs",
		lists:   true,
		summary: "list runs: progress, reason for waiting, result",
		about: `Newest first. A run is waiting, then running (resting between attempts), then commits its
output, then is succeeded, failed or cancelled. The list has the newest ended runs of
each recipe and key.

--watch shows those that are live, then those that wait, then those that have ended,
and goes on until Ctrl-C; where the output is no terminal it prints a line a change.

` + atTheGate,
		examples: []example{
			{"tidemill runs", "the newest"},
			{"tidemill runs --watch", "with live progress, until Ctrl-C"},
			{"tidemill runs --recipe intent --state failed,cancelled --since -1d", "what went wrong in a day"},
			{"tidemill runs --key bot-42 -o json", "for a script"},
		},
		make: func() program { return &runList{output: "text", limit: 50} },
	}
}

// runFlags select runs.
type runFlags struct {
	recipe, key, state, since string

	states []tidemill.RunState
}

func (l *runFlags) flags(f *flagSet) {
	f.text(&l.recipe, "recipe", "r", "NAME", "of this recipe")
	f.text(&l.key, "key", "", "KEY", "of this key")
	f.text(&l.state, "state", "s", "STATE", "in this state, or in one of several with commas between them")
	f.text(&l.since, "since", "", "TIME", "asked for then or later: -1h or a time")
}

func (l *runFlags) check() (err error) {
	if l.states, err = parseStates(l.state); err != nil {
		return err
	}
	if l.since == "" {
		return nil
	}
	if _, err := follow.ParseTime(l.since, time.Now()); err != nil {
		return usagef("--since %v", err)
	}
	return nil
}

// runStates returns all states, in their order.
func runStates() []tidemill.RunState {
	return []tidemill.RunState{tidemill.RunWaiting, tidemill.RunRunning, tidemill.RunResting, tidemill.RunSettling,
		tidemill.RunSucceeded, tidemill.RunFailed, tidemill.RunCancelled}
}

func parseStates(text string) (states []tidemill.RunState, err error) {
	if text == "" {
		return nil, nil
	}
	var known []string
	for _, s := range runStates() {
		known = append(known, string(s))
	}
	for name := range strings.SplitSeq(text, ",") {
		if !slices.Contains(known, name) {
			return nil, usagef("--state %q:%s there are %s", name, didYouMean(name, known), strings.Join(known, ", "))
		}
		states = append(states, tidemill.RunState(name))
	}
	return states, nil
}

// says reports whether a flag limits the selection.
func (l *runFlags) says() bool { return l.recipe+l.key+l.state+l.since != "" }

func (l *runFlags) query(limit int) client.RunQuery {
	return client.RunQuery{States: l.states, Recipe: l.recipe, Key: l.key, Since: l.since, Limit: limit}
}

type runList struct {
	gate
	runFlags
	output string
	limit  int
	watch  bool
}

func (l *runList) flags(f *flagSet) {
	l.runFlags.flags(f)
	f.number(&l.limit, "limit", "n", "COUNT", "show no more than so many")
	f.yes(&l.watch, "watch", "go on showing, with live progress, until Ctrl-C")
	f.text(&l.output, "output", "o", "FORMAT", "text or json")
	l.gate.flags(f)
}

func (l *runList) accept(positional []string) error {
	if err := checkOutput(l.output); err != nil {
		return err
	}
	switch {
	case l.limit < 1:
		return usagef("--limit %d: give 1 or more", l.limit)
	case l.watch && l.output == "json":
		return usagef("--watch is for people: leave -o json out, or --watch")
	case len(positional) == 1:
		return usagef("%q is one argument too many; tidemill runs show %s shows one run", positional[0], positional[0])
	}
	if err := l.check(); err != nil {
		return err
	}
	return wants(positional)
}

func (l *runList) run(ctx context.Context, s *session, _ []string) error {
	if l.watch {
		return l.runWatch(ctx, s)
	}
	g, done, err := l.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	all, more, err := gatherRuns(ctx, g, l.query(l.limit))
	switch {
	case err != nil:
		return err
	case l.output == "json":
		return writeIndented(s.stdout, all)
	case len(all) == 0 && l.says():
		fmt.Fprintln(s.stderr, "No run is meant; without flags all are listed.")
		return nil
	case len(all) == 0:
		fmt.Fprintln(s.stderr, "There are no runs yet; an event that a recipe waits for starts one, and so does tidemill runs start.")
		return nil
	}
	if err := tabulateRuns(s.stdout, all, time.Now()); err != nil {
		return err
	}
	adviseOnRuns(s.stderr, all, more)
	return nil
}

// runWatch polls for ever, so it uses no warning about missing answers.
func (l *runList) runWatch(ctx context.Context, s *session) error {
	g, done, err := l.enterQuietly(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	return newRunWatch(l, g, s).run(ctx)
}

const runPage = 1000

// gatherRuns reads pages until it has enough runs.
func gatherRuns(ctx context.Context, g *client.Gateway, q client.RunQuery) (all []api.RunShown, more bool, err error) {
	all = []api.RunShown{}
	limit := q.Limit
	for {
		q.Limit = min(limit-len(all), runPage)
		page, err := g.Runs(ctx, q)
		if err != nil {
			return nil, false, err
		}
		all = append(all, page.Runs...)
		if q.After = page.Next; q.After == "" || len(all) >= limit {
			return all, q.After != "", nil
		}
	}
}

func tabulateRuns(w io.Writer, all []api.RunShown, now time.Time) error {
	rows := [][]string{{"RUN", "RECIPE", "KEY", "STATE", "ASKED", "TOOK", ""}}
	for i := range all {
		rows = append(rows, runRow(&all[i], now))
	}
	return columns(w, rows)
}

func runRow(r *api.RunShown, now time.Time) []string {
	return []string{shortID(r.ID), harmless(r.Recipe), orDash(cut(harmless(r.Key), 40)), stateOfRun(r), ago(r.Asking), tookOf(r, now), cut(harmless(noteOf(r)), 100)}
}

func stateOfRun(r *api.RunShown) string {
	if n := len(r.Attempts); n > 1 && !r.State.Ended() {
		return fmt.Sprintf("%s (attempt %d)", r.State, n)
	}
	return harmless(string(r.State))
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

// noteOf returns the most important note on a run.
func noteOf(r *api.RunShown) string {
	switch a := r.Attempt(); {
	case a != nil && a.Pending != "":
		return "pending: " + a.Pending
	case strings.HasPrefix(r.Waits, "for "), strings.HasPrefix(r.Waits, "to "):
		return "waits " + r.Waits
	case r.Waits != "":
		return r.Waits
	case r.Reason != "":
		return r.Reason
	case r.State.Ended() && r.Result != nil:
		return headline(r.Result.Metrics)
	case r.Progress != nil && a != nil && r.Progress.Attempt == a.Number:
		return progressText(r.Progress)
	}
	return ""
}

func adviseOnRuns(w io.Writer, all []api.RunShown, more bool) {
	fmt.Fprintln(w)
	if more {
		fmt.Fprintf(w, "These are the newest %s; --limit shows more, and --recipe, --key, --state or --since others.\n", thousands(int64(len(all))))
	}
	fmt.Fprintf(w, "Next: tidemill runs show %s tells all of one.\n", shortID(all[0].ID))
	failed := slices.IndexFunc(all, func(r api.RunShown) bool { return r.State == tidemill.RunFailed })
	if failed >= 0 {
		fmt.Fprintf(w, "      tidemill logs %s prints the log of a failed run\n", shortID(all[failed].ID))
	}
}

// runAsk has the flags of the commands that change runs.
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

// selection returns the selected runs.
func (a *runAsk) selection() (ask api.RunsSelected, err error) {
	ask = api.RunsSelected{Recipe: a.recipe, Key: a.key, States: a.states, Where: a.where, All: a.all, DryRun: a.dryRun}
	if a.since != "" {
		at, err := follow.ParseTime(a.since, time.Now())
		if err != nil {
			return ask, usagef("--since %v", err)
		}
		ask.Since = &at
	}
	return ask, nil
}

const namedAtOnce = 1000

// do sends requests until all selected runs are done.
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
