package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"tidemill.dev/internal/api"
	"tidemill.dev/internal/remote"
	"tidemill.dev/internal/tail"
)

func modelsRollbackCommand() command {
	return command{
		name:    "models rollback",
		summary: "take back all promotions since a time: each champion goes back to what it was before",
		about: `Models whose champion has not changed since are left alone, and called twice it does
nothing more. Freeze promotions before (tidemill promotions freeze), or the next version
that passes takes its place. It needs the role approve; of keys that you may not approve
for nothing is done.

` + atTheGate,
		examples: []example{
			{"tidemill models rollback --recipe intent --since -2h --dry-run", "which they are"},
			{"tidemill models rollback --recipe intent --since -2h --reason 'a bad image'", "those of two hours"},
			{"tidemill models rollback --since '2026-11-22 02:00' --where \"subject LIKE 'bot-%'\" --dry-run", "by a condition"},
		},
		make: func() program { return &modelsRollback{} },
	}
}

type modelsRollback struct {
	gate
	ask   api.RollbackAsked
	since string
}

func (p *modelsRollback) flags(f *flagSet) {
	f.text(&p.since, "since", "", "TIME", "those since then: -1h or a time")
	f.text(&p.ask.Recipe, "recipe", "r", "NAME", "of models of this recipe")
	f.text(&p.ask.Key, "key", "", "KEY", "of this key")
	f.text(&p.ask.Prefix, "prefix", "", "NAME", "whose names begin so")
	f.text(&p.ask.Where, "where", "", "CONDITION", "for which this is true, in CloudEvents SQL over subject (the key), recipe, model")
	f.yes(&p.ask.All, "all", "of all models")
	f.text(&p.ask.Reason, "reason", "", "TEXT", "why, for whoever looks at it later")
	f.yes(&p.ask.DryRun, "dry-run", "only say what would be done")
	p.gate.flags(f)
}

func (p *modelsRollback) accept(positional []string) (err error) {
	selects := p.ask.Recipe+p.ask.Key+p.ask.Prefix+p.ask.Where != ""
	switch {
	case len(positional) > 0:
		return usagef("%q is one argument too many; tidemill rollback %s takes back one model's", positional[0], positional[0])
	case p.since == "":
		return usagef("say since when the promotions are to be taken back: --since -2h, or a time")
	case p.ask.All == selects:
		return usagef("say which: a flag such as --recipe NAME, or --all and nothing else")
	}
	if _, err := parseFilter(p.ask.Where); err != nil {
		return err
	}
	if p.ask.Since, err = tail.ParseTime(p.since, time.Now()); err != nil {
		return usagef("--since %v", err)
	}
	return nil
}

func (p *modelsRollback) run(ctx context.Context, s *session, _ []string) error {
	g, done, err := p.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	named, sum := remote.NewAsking(), promotionSum{out: s.stdout}
	for again := true; again; again = p.ask.After != "" {
		got, err := g.RollbackModels(ctx, named, p.ask)
		if err != nil {
			return err
		}
		for i := range got.Models {
			sum.add(&got.Models[i])
		}
		p.ask.After = got.Next
	}
	if sum.total == 0 {
		fmt.Fprintf(s.stderr, "No champion of those has changed since %s; tidemill models, with --recipe, --key or --prefix, lists which are meant.\n", clock(p.ask.Since))
		return nil
	}
	sum.end(p.ask.DryRun)
	if p.ask.DryRun {
		return nil // it has said what it was asked
	}
	return sum.failure()
}

// promotionSum prints what became of models, the first of them, and counts all.
type promotionSum struct {
	out            io.Writer
	total, refused int
}

func (m *promotionSum) add(d *api.PromotionDone) {
	if m.total++; m.total <= listedRuns {
		done := harmless(d.Done)
		if d.Refused {
			done = "left alone: " + done
		}
		fmt.Fprintf(m.out, "%s  %s\n", harmless(d.Model), done)
	}
	if d.Refused {
		m.refused++
	}
}

// end prints the sum, where there is more than its lines tell.
func (m *promotionSum) end(dryRun bool) {
	if m.total > listedRuns {
		fmt.Fprintf(m.out, "… and %s more\n", thousands(int64(m.total-listedRuns)))
	}
	what := "rolled back"
	if dryRun {
		what = "would be rolled back"
	}
	if m.total > 1 {
		fmt.Fprintf(m.out, "%s: %s %s, %s left alone.\n", count(m.total, "model"), thousands(int64(m.total-m.refused)), what, thousands(int64(m.refused)))
	}
	if dryRun && m.refused < m.total {
		fmt.Fprintln(m.out, "Next: the same without --dry-run, after tidemill promotions freeze.")
	}
}

// failure is none where anything was done.
func (m *promotionSum) failure() error {
	if m.total > 0 && m.refused == m.total {
		return errReported
	}
	return nil
}
