package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"tidemill.dev/internal/api"
	"tidemill.dev/internal/remote"
)

func runsStartCommand() command {
	return command{
		name:    "runs start",
		args:    "RECIPE",
		summary: "start runs of a recipe, for some keys or all",
		about: `Where a run of a key waits already, it absorbs the wish: there is never more than one
that runs and one that waits. With --rate the runs are due one after the other, and
wait until then; the command does not. --all means every key that the recipe was
ever asked for, and --where takes some of them, in CloudEvents SQL over subject (the
key). A recipe without keys is started without --key.

` + atTheGate,
		examples: []example{
			{"tidemill runs start intent --key bot-42", "one"},
			{"tidemill runs start intent --key bot-1,bot-2 --dry-run", "two, or rather what would be done"},
			{"tidemill runs start intent --all --where \"subject LIKE 'bot-%'\" --rate 50/s", "all of some kind, gently"},
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
	f.yes(&p.all, "all", "for every key that the recipe was ever asked for")
	f.text(&p.where, "where", "", "CONDITION", "with --all: only keys for which this is true")
	f.text(&p.rate, "rate", "", "RATE", "no faster than this, such as 50/s")
	f.number(&p.priority, "priority", "", "NUMBER", "higher begins first where there is no room for all")
	f.yes(&p.dryRun, "dry-run", "only say what would be done")
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
		return usagef("--all means all keys: leave out --key, or --all")
	case p.where != "" && !p.all:
		return usagef("--where takes some of all keys: give --all with it")
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
	named := remote.NewAsking()
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
		fmt.Fprintf(s.stderr, "No key is meant: recipe %s was asked for none yet, or --where takes none of them. Give --key.\n", harmless(p.ask.Recipe))
		return nil
	}
	sum.end(s.stdout, p.dryRun)
	if id := sum.last; !p.dryRun && id != "" {
		fmt.Fprintf(s.stderr, "Next: tidemill runs show %s, tidemill runs --recipe %s --watch\n", shortID(id), harmless(p.ask.Recipe))
	}
	return sum.failure()
}

const listedRuns = 20 // lines of what was done to many

// runSum prints what became of runs, the first of them, and counts all.
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
		what = "left alone"
	} else if d.Run != "" {
		m.last = d.Run
	}
	if m.counts[what] == 0 {
		m.order = append(m.order, what)
	}
	m.counts[what]++
}

// end prints the sum, where there is more than its lines tell.
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

// failure is none where anything was done.
func (m *runSum) failure() error {
	if m.total > 0 && m.refused == m.total {
		return errReported
	}
	return nil
}
