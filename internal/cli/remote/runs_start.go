package remote

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/broker/follow"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/gateway/client"
)

func runsStartCommand() command.Command {
	return command.Command{
		Name:    "runs start",
		Daily:   true,
		Args:    "RECIPE",
		Summary: "start runs of a recipe, for some keys or all",
		About: `If a run of a key waits already, the request is merged into it: at most one run of a
key is live, and at most one waits. With --rate the runs become due one after the
other; the command does not wait for them. --all selects every key that the recipe has
had a request for. --where selects some of them, in CloudEvents SQL over subject (the
key). A recipe without keys is started without --key.`,
		Examples: []command.Example{
			{"tidemill runs start intent --key bot-42", "one"},
			{"tidemill runs start intent --key bot-1,bot-2 --dry-run", "two keys; only show what would be done"},
			{"tidemill runs start intent --key bot-42 -o json", "for scripts: with the whole id of the run"},
			{"tidemill runs start intent --all --where \"subject LIKE 'bot-%'\" --rate 50/s", "all keys that match, slowly"},
		},
		Make: func() command.Program {
			p := &runStart{}
			return &request{json: true, flags: p.flags, accept: p.accept, do: p.do}
		},
	}
}

type runStart struct {
	keys        []string
	all, dryRun bool
	where, rate string
	priority    int
	ask         api.RunsAsked
}

func (p *runStart) flags(f *command.FlagSet) {
	f.Each("key", "KEY[,KEY…]", "for this key; may be given several times; \\, is a comma of a key", p.takeKeys)
	f.Yes(&p.all, "all", "for every key that the recipe has had a request for")
	f.Text(&p.where, "where", "", "CONDITION", "with --all: only keys for which this is true")
	f.Text(&p.rate, "rate", "", "RATE", "no faster than this, such as 50/s")
	f.Number(&p.priority, "priority", "", "NUMBER", "a higher number starts first if slots are short")
	f.Yes(&p.dryRun, "dry-run", "only show what would be done")
}

// takeKeys splits a text at its commas. A comma after a backslash belongs to a key.
func (p *runStart) takeKeys(text string) error {
	for key := range strings.SplitSeq(strings.ReplaceAll(text, `\,`, "\x00"), ",") {
		if key = strings.ReplaceAll(key, "\x00", ","); key == "" {
			return fmt.Errorf("a key is empty")
		}
		p.keys = append(p.keys, key)
	}
	return nil
}

func (p *runStart) accept(positional []string) (err error) {
	switch {
	case p.all && len(p.keys) > 0:
		return command.Usagef("--all selects all keys: leave out --key or --all")
	case p.where != "" && !p.all:
		return command.Usagef("--where selects some of all keys: give --all too")
	}
	if _, err := parseFilter(p.where); err != nil {
		return err
	}
	p.ask = api.RunsAsked{Recipe: positional[0], Keys: p.keys, All: p.all, Where: p.where, Priority: p.priority, DryRun: p.dryRun}
	p.ask.Rate, err = parseRate(p.rate)
	return err
}

func (p *runStart) do(ctx context.Context, c *call) error {
	sum := newRunSum(c)
	named := client.NewAsking()
	for {
		got, err := c.g.StartRuns(ctx, named, p.ask)
		if err != nil {
			return sum.soFar(inWordsOf(err, "keys: ", "--key: "))
		}
		sum.add(got.Runs)
		if p.ask.After = got.Next; got.Next == "" {
			return p.tell(c, sum)
		}
		fmt.Fprintf(c.Stderr, "%s so far.\n", show.Count(sum.total, "key"))
	}
}

func (p *runStart) tell(c *call, sum *runSum) error {
	if sum.total == 0 {
		fmt.Fprintf(c.Stderr, "No key matches: recipe %s has had no request yet, or --where selects none of its keys. Give --key.\n", show.Harmless(p.ask.Recipe))
	}
	if err := sum.end(p.dryRun); err != nil {
		return err
	}
	if id := sum.last; !p.dryRun && !c.json && id != "" {
		fmt.Fprintf(c.Stderr, "Next: tidemill runs show %s, tidemill runs --recipe %s --watch\n", show.ShortID(id), show.Harmless(p.ask.Recipe))
	}
	return sum.failure()
}

const listedRuns = 20 // number of results that are printed one by one

// runSum prints the first results, and counts all. With -o json it keeps all, and prints them at the end.
type runSum struct {
	call           *call
	all            []api.RunDone
	total, refused int
	counts         map[string]int
	order          []string
	last           string
}

func newRunSum(c *call) *runSum {
	return &runSum{call: c, all: []api.RunDone{}, counts: map[string]int{}}
}

func (m *runSum) add(all []api.RunDone) {
	for i := range all {
		m.addOne(&all[i])
	}
}

func (m *runSum) addOne(d *api.RunDone) {
	what := show.Harmless(d.Done)
	if what == "merged" { // the API's word
		what = "merged into the waiting run"
	}
	switch m.total++; {
	case m.call.json:
		m.all = append(m.all, *d)
	case m.total <= listedRuns:
		fmt.Fprintf(m.call.Stdout, "%-*s  %s  %s  %s\n", show.ShownID, orDash(show.ShortID(d.Run)), orDash(show.Harmless(d.Recipe)), orDash(show.Harmless(d.Key)), what)
	}
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
func (m *runSum) end(dryRun bool) error {
	out := m.call.Stdout
	if m.call.json {
		return writeIndented(out, api.RunsDone{Runs: m.all})
	}
	if m.total > listedRuns {
		fmt.Fprintf(out, "… and %s more\n", show.Thousands(int64(m.total-listedRuns)))
	}
	if m.total > 1 {
		var parts []string
		for _, what := range m.order {
			parts = append(parts, show.Thousands(int64(m.counts[what]))+" "+what)
		}
		fmt.Fprintf(out, "%s: %s.\n", show.Count(m.total, "run"), strings.Join(parts, ", "))
	}
	if dryRun && m.refused < m.total {
		fmt.Fprintln(out, "Next: the same without --dry-run.")
	}
	return nil
}

// soFar prints the totals of the requests before one that has failed, and returns the failure.
func (m *runSum) soFar(failure error) error {
	if m.total > 0 {
		return cmp.Or(m.end(false), failure)
	}
	return failure
}

// failure returns an error if all were refused.
func (m *runSum) failure() error {
	if m.total > 0 && m.refused == m.total {
		return command.ErrReported
	}
	return nil
}

// runAsk has the flags of the commands that change runs.
type runAsk struct {
	runFlags
	where       string
	all, dryRun bool
}

func (a *runAsk) add(f *command.FlagSet, what string) {
	a.runFlags.add(f)
	f.Text(&a.where, "where", "", "CONDITION", "only runs for which this is true, in CloudEvents SQL over subject (the key), recipe, run, state, reason")
	f.Yes(&a.all, "all", "all runs that "+what)
	f.Yes(&a.dryRun, "dry-run", "only show what would be done")
}

func (a *runAsk) says() bool { return a.runFlags.says() || a.where != "" }

func (a *runAsk) accept(positional []string) error {
	switch {
	case a.all && (a.says() || len(positional) > 0):
		return command.Usagef("--all selects all: leave out the other flags and ids, or --all")
	case a.says() && len(positional) > 0:
		return command.Usagef("give either runs by their ids, or flags that select them")
	case !a.all && !a.says() && len(positional) == 0:
		return command.Usagef("say which runs: a RUN, a flag such as --recipe NAME, or --all")
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
			return ask, command.Usagef("--since %v", err)
		}
		ask.Since = &at
	}
	return ask, nil
}

const namedAtOnce = 1000

// do sends requests until all selected runs are done.
func (a *runAsk) each(c *call, one func(api.RunsSelected) (api.RunsDone, error)) error {
	ask, err := a.selection()
	if err != nil {
		return err
	}
	ids, sum := c.positional, newRunSum(c)
	part := func() error {
		got, err := one(ask)
		sum.add(got.Runs)
		ask.After, ask.First = got.Next, ask.First+len(got.Runs)
		return err
	}
	for chunk := range slices.Chunk(ids, namedAtOnce) {
		ask.Runs = chunk
		if err := part(); err != nil {
			return sum.soFar(err)
		}
	}
	for again := len(ids) == 0; again; again = ask.After != "" {
		if err := part(); err != nil {
			return sum.soFar(err)
		}
	}
	if sum.total == 0 {
		fmt.Fprintln(c.Stderr, "No run matches; tidemill runs lists them.")
	}
	if err := sum.end(a.dryRun); err != nil {
		return err
	}
	return sum.failure()
}

func runsCancelCommand() command.Command {
	return command.Command{
		Name:    "runs cancel",
		Args:    "[RUN…]",
		Summary: "cancel runs",
		About: `A waiting run ends at once. The command of a running one gets SIGTERM, so that it can
save its state, and is killed if it does not exit. Without --state all runs that have
not ended are selected.`,
		Examples: []command.Example{
			{"tidemill runs cancel 3k7mzq --reason 'wrong data'", "one, by the beginning of its id"},
			{"tidemill runs cancel --recipe intent --state waiting --dry-run", "only count the waiting runs"},
			{"tidemill runs cancel --where \"subject LIKE 'test-%'\"", "by a condition"},
		},
		Make: func() command.Program {
			p := &runCancel{}
			return &request{json: true, flags: p.flags, accept: p.accept, do: p.do}
		},
	}
}

type runCancel struct {
	runAsk
	reason string
}

func (p *runCancel) flags(f *command.FlagSet) {
	reasonFlag(f, &p.reason)
	p.runAsk.add(f, "have not ended")
}

func (p *runCancel) do(ctx context.Context, c *call) error {
	return p.each(c, func(ask api.RunsSelected) (api.RunsDone, error) {
		ask.Reason = p.reason
		return c.g.CancelRuns(ctx, ask)
	})
}

func runsRetryCommand() command.Command {
	return command.Command{
		Name:    "runs retry",
		Args:    "[RUN…]",
		Summary: "retry runs that have ended, for the events of the old runs",
		About: `It requests a new run, which gets the newest data when it starts. Without --state it
selects runs that failed or were cancelled. It skips a run that is selected by flags if
its key has a newer one.`,
		Examples: []command.Example{
			{"tidemill runs retry 3k7mzq", "one, by the beginning of its id"},
			{"tidemill runs retry --recipe intent --since -1d --dry-run", "runs that failed within a day"},
			{"tidemill runs retry --where \"reason LIKE '%out of memory%'\" --rate 1/s", "by a condition, slowly"},
		},
		Make: func() command.Program {
			p := &runRetry{}
			return &request{json: true, flags: p.flags, accept: p.accept, do: p.do}
		},
	}
}

type runRetry struct {
	runAsk
	rate string

	perSecond float64
}

func (p *runRetry) flags(f *command.FlagSet) {
	f.Text(&p.rate, "rate", "", "RATE", "no faster than this, such as 50/s")
	p.runAsk.add(f, "failed or were cancelled")
}

func (p *runRetry) accept(positional []string) (err error) {
	if p.perSecond, err = parseRate(p.rate); err != nil {
		return err
	}
	return p.runAsk.accept(positional)
}

func (p *runRetry) do(ctx context.Context, c *call) error {
	named := client.NewAsking()
	return p.each(c, func(ask api.RunsSelected) (api.RunsDone, error) {
		ask.Rate = p.perSecond
		return c.g.RetryRuns(ctx, named, ask)
	})
}
