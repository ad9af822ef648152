package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/broker/follow"
	"tidemill.dev/internal/gateway/client"
)

func runsStartCommand() command {
	return command{
		name:    "runs start",
		daily:   true,
		args:    "RECIPE",
		summary: "start runs of a recipe, for some keys or all",
		about: `If a run of a key waits already, the request is merged into it: at most one run of a
key is live, and at most one waits. With --rate the runs become due one after the
other; the command does not wait for them. --all selects every key that the recipe has
had a request for. --where selects some of them, in CloudEvents SQL over subject (the
key). A recipe without keys is started without --key.

` + atTheGate,
		examples: []example{
			{"tidemill runs start intent --key bot-42", "one"},
			{"tidemill runs start intent --key bot-1,bot-2 --dry-run", "two keys; only show what would be done"},
			{"tidemill runs start intent --all --where \"subject LIKE 'bot-%'\" --rate 50/s", "all keys that match, slowly"},
		},
		make: func() program { return &runStart{} },
	}
}

type runStart struct {
	gate
	keys        []string
	all, dryRun bool
	where, rate string
	priority    int
	ask         api.RunsAsked
}

func (p *runStart) flags(f *flagSet) {
	f.each("key", "KEY[,KEY…]", "for this key; may be given several times", p.takeKeys)
	f.yes(&p.all, "all", "for every key that the recipe has had a request for")
	f.text(&p.where, "where", "", "CONDITION", "with --all: only keys for which this is true")
	f.text(&p.rate, "rate", "", "RATE", "no faster than this, such as 50/s")
	f.number(&p.priority, "priority", "", "NUMBER", "a higher number starts first if slots are short")
	f.yes(&p.dryRun, "dry-run", "only show what would be done")
	p.gate.flags(f)
}

func (p *runStart) takeKeys(text string) error {
	for key := range strings.SplitSeq(text, ",") {
		if key == "" {
			return fmt.Errorf("a key is empty")
		}
		p.keys = append(p.keys, key)
	}
	return nil
}

func (p *runStart) accept(positional []string) (err error) {
	if err := wants(positional, "RECIPE"); err != nil {
		return err
	}
	switch {
	case p.all && len(p.keys) > 0:
		return usagef("--all selects all keys: leave out --key or --all")
	case p.where != "" && !p.all:
		return usagef("--where selects some of all keys: give --all too")
	}
	if _, err := parseFilter(p.where); err != nil {
		return err
	}
	p.ask = api.RunsAsked{Recipe: positional[0], Keys: p.keys, All: p.all, Where: p.where, Priority: p.priority, DryRun: p.dryRun}
	p.ask.Rate, err = parseRate(p.rate)
	return err
}

func (p *runStart) run(ctx context.Context, s *session, _ []string) error {
	g, done, err := p.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	sum := newRunSum(s.stdout)
	named := client.NewAsking()
	for {
		got, err := g.StartRuns(ctx, named, p.ask)
		if err != nil {
			return err
		}
		sum.add(got.Runs)
		if p.ask.After = got.Next; got.Next == "" {
			return p.tell(s, sum)
		}
		fmt.Fprintf(s.stderr, "%s so far.\n", count(sum.total, "key"))
	}
}

func (p *runStart) tell(s *session, sum *runSum) error {
	if sum.total == 0 {
		fmt.Fprintf(s.stderr, "No key matches: recipe %s has had no request yet, or --where selects none of its keys. Give --key.\n", harmless(p.ask.Recipe))
		return nil
	}
	sum.end(s.stdout, p.dryRun)
	if id := sum.last; !p.dryRun && id != "" {
		fmt.Fprintf(s.stderr, "Next: tidemill runs show %s, tidemill runs --recipe %s --watch\n", shortID(id), harmless(p.ask.Recipe))
	}
	return sum.failure()
}

const listedRuns = 20 // number of results that are printed one by one

// runSum prints the first results, and counts all.
type runSum struct {
	out            io.Writer
	total, refused int
	counts         map[string]int
	order          []string
	last           string
}

func newRunSum(out io.Writer) *runSum { return &runSum{out: out, counts: map[string]int{}} }

func (m *runSum) add(all []api.RunDone) {
	for i := range all {
		m.addOne(&all[i])
	}
}

func (m *runSum) addOne(d *api.RunDone) {
	if m.total++; m.total <= listedRuns {
		fmt.Fprintf(m.out, "%-*s  %s  %s  %s\n", shownID, orDash(shortID(d.Run)), orDash(harmless(d.Recipe)), orDash(harmless(d.Key)), harmless(d.Done))
	}
	what := harmless(d.Done)
	if d.Refused {
		m.refused++
		what = "skipped"
	} else if d.Run != "" {
		m.last = d.Run
	}
	if m.counts[what] == 0 {
		m.order = append(m.order, what)
	}
	m.counts[what]++
}

// end prints the totals, if there is more than one result.
func (m *runSum) end(out io.Writer, dryRun bool) {
	if m.total > listedRuns {
		fmt.Fprintf(out, "… and %s more\n", thousands(int64(m.total-listedRuns)))
	}
	if m.total > 1 {
		var parts []string
		for _, what := range m.order {
			parts = append(parts, thousands(int64(m.counts[what]))+" "+what)
		}
		fmt.Fprintf(out, "%s: %s.\n", count(m.total, "run"), strings.Join(parts, ", "))
	}
	if dryRun && m.refused < m.total {
		fmt.Fprintln(out, "Next: the same without --dry-run.")
	}
}

// failure returns an error if all were refused.
func (m *runSum) failure() error {
	if m.total > 0 && m.refused == m.total {
		return errReported
	}
	return nil
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
	f.text(&a.where, "where", "", "CONDITION", "only runs for which this is true, in CloudEvents SQL over subject (the key), recipe, run, state, reason")
	f.yes(&a.all, "all", "all runs that "+what)
	f.yes(&a.dryRun, "dry-run", "only show what would be done")
	a.gate.flags(f)
}

func (a *runAsk) says() bool { return a.runFlags.says() || a.where != "" }

func (a *runAsk) accept(positional []string) error {
	switch {
	case a.all && (a.says() || len(positional) > 0):
		return usagef("--all selects all: leave out the other flags and ids, or --all")
	case a.says() && len(positional) > 0:
		return usagef("give either runs by their ids, or flags that select them")
	case !a.all && !a.says() && len(positional) == 0:
		return usagef("say which runs: a RUN, a flag such as --recipe NAME, or --all")
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
		fmt.Fprintln(s.stderr, "No run matches; tidemill runs lists them.")
		return nil
	}
	sum.end(s.stdout, a.dryRun)
	return sum.failure()
}

func runsCancelCommand() command {
	return command{
		name:    "runs cancel",
		args:    "[RUN…]",
		summary: "cancel runs",
		about: `A waiting run ends at once. The command of a running one gets SIGTERM, so that it can
save its state, and is killed if it does not exit. Without --state all runs that have
not ended are selected.

` + atTheGate,
		examples: []example{
			{"tidemill runs cancel 3k7mzq --reason 'wrong data'", "one, by the beginning of its id"},
			{"tidemill runs cancel --recipe intent --state waiting --dry-run", "only count the waiting runs"},
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
	f.text(&p.reason, "reason", "", "TEXT", "reason, shown later with the change")
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
		summary: "retry runs that have ended, for the events of the old runs",
		about: `It requests a new run, which gets the newest data when it starts. Without --state it
selects runs that failed or were cancelled. It skips a run that is selected by flags if
its key has a newer one.

` + atTheGate,
		examples: []example{
			{"tidemill runs retry 3k7mzq", "one, by the beginning of its id"},
			{"tidemill runs retry --recipe intent --since -1d --dry-run", "runs that failed within a day"},
			{"tidemill runs retry --where \"reason LIKE '%out of memory%'\" --rate 1/s", "by a condition, slowly"},
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
	named := client.NewAsking()
	return p.do(ctx, s, positional, func(ctx context.Context, ask api.RunsSelected) (api.RunsDone, error) {
		ask.Rate = p.perSecond
		return g.RetryRuns(ctx, named, ask)
	})
}
