package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/remote"
	"tidemill.dev/internal/tail"
)

func lettersCommand() command {
	return command{
		name:    "dead-letters",
		summary: "list what could not be delivered (dl for short)",
		about: `Newest first, and only those that are open: each that was replayed or dropped has
a receipt, and has left the list. --reason finds a part of the reason.

` + atTheGate,
		examples: []example{
			{"tidemill dead-letters", "all that are open"},
			{"tidemill dl --trigger tell-crm --since -1h", "what one trigger could not deliver in the last hour"},
			{"tidemill dl --reason timeout -o json", "for a script"},
		},
		make: func() program { return &letterList{output: "text", limit: 50} },
	}
}

// letterFlags say which dead letters are meant.
type letterFlags struct{ api.LetterSelection }

func (l *letterFlags) flags(f *flagSet, reason string) {
	f.text(&l.Trigger, "trigger", "t", "NAME", "of this trigger")
	f.text(&l.Reason, reason, "", "TEXT", "whose reason contains this")
	f.text(&l.Type, "type", "", "TYPE", "of events of this type")
	f.text(&l.Key, "key", "", "KEY", "of events of this key")
	f.text(&l.Stream, "stream", "", "STREAM", "of events that were read from this stream")
	f.text(&l.Since, "since", "", "TIME", "written then or later: -1h or a time")
	f.text(&l.Until, "until", "", "TIME", "written before then")
}

func (l *letterFlags) check() error {
	for _, limit := range []struct{ flag, text string }{{"--since", l.Since}, {"--until", l.Until}} {
		if limit.text == "" {
			continue
		}
		if _, err := tail.ParseTime(limit.text, time.Now()); err != nil {
			return usagef("%s %v", limit.flag, err)
		}
	}
	return nil
}

// says reports whether a flag limits what is meant.
func (l *letterFlags) says() bool {
	return l.Trigger+l.Reason+l.Type+l.Key+l.Stream+l.Since+l.Until != ""
}

type letterList struct {
	gate
	letterFlags
	output string
	limit  int
}

func (l *letterList) flags(f *flagSet) {
	l.letterFlags.flags(f, "reason")
	f.number(&l.limit, "limit", "n", "COUNT", "show no more than so many")
	f.text(&l.output, "output", "o", "FORMAT", "text or json")
	l.gate.flags(f)
}

func (l *letterList) accept(positional []string) error {
	if err := checkOutput(l.output); err != nil {
		return err
	}
	if l.limit < 1 {
		return usagef("--limit %d: give 1 or more", l.limit)
	}
	if err := l.check(); err != nil {
		return err
	}
	return wants(positional)
}

func (l *letterList) run(ctx context.Context, s *session, _ []string) error {
	g, done, err := l.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	all, total, err := gatherLetters(ctx, g, l.LetterSelection, l.limit)
	switch {
	case err != nil:
		return err
	case l.output == "json":
		return writeIndented(s.stdout, all)
	case len(all) == 0 && l.says():
		fmt.Fprintln(s.stderr, "No open dead letter is meant; without flags all are listed.")
		return nil
	case len(all) == 0:
		fmt.Fprintln(s.stderr, "There are no open dead letters.")
		return nil
	}
	if err := tabulateLetters(s.stdout, all); err != nil {
		return err
	}
	l.advise(s.stderr, all, total)
	return nil
}

const letterPage = 1000

// gatherLetters turns pages until there are as many as are wanted.
func gatherLetters(ctx context.Context, g *remote.Gateway, of api.LetterSelection, limit int) (all []api.DeadLetter, total int, err error) {
	all = []api.DeadLetter{}
	for cursor := ""; ; {
		page, err := g.DeadLetters(ctx, of, min(limit-len(all), letterPage), cursor)
		if err != nil {
			return nil, 0, err
		}
		all = append(all, page.DeadLetters...)
		if total == 0 {
			total = page.Total
		}
		if cursor = page.Cursor; cursor == "" || len(all) >= limit {
			return all, total, nil
		}
	}
}

const shownID = 10 // letters of an id; its beginning will do

func shortID(id string) string { return harmless(id[:min(len(id), shownID)]) }

func tabulateLetters(w io.Writer, all []api.DeadLetter) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tWRITTEN\tTRIGGER\tTYPE\tKEY\tTRIED\tREASON")
	for i := range all {
		l := &all[i]
		reason := cut(harmless(l.Reason), 80)
		if l.State == api.LetterReplaying {
			reason = "(being replayed) " + reason
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%s\n", shortID(l.ID), clock(l.Written), orDash(harmless(whose(l))), orDash(harmless(l.Type)), orDash(cut(harmless(l.Key), 40)), l.Tried, reason)
	}
	return t.Flush()
}

// whose delivery failed: a trigger's, or a scorer's, which its group names.
func whose(l *api.DeadLetter) string {
	scorer, is := strings.CutPrefix(l.Group, tidemill.ScorerGroup(""))
	if l.Trigger == "" && is {
		return "scorer/" + scorer
	}
	return l.Trigger
}

// advise says how much is not shown, and what can be done.
func (l *letterList) advise(w io.Writer, all []api.DeadLetter, total int) {
	fmt.Fprintln(w)
	if total > len(all) {
		fmt.Fprintf(w, "These are the newest of %s; --limit %d shows all.\n", count(total, "open dead letter"), total)
	}
	first := all[0]
	fmt.Fprintf(w, "Next: tidemill dl show %s tells all of one.\n", shortID(first.ID))
	if first.Trigger != "" {
		fmt.Fprintf(w, "      tidemill dl replay --trigger %s --dry-run, once its subscriber is mended\n", harmless(first.Trigger))
		return
	}
	mended := "its publisher is mended"
	if whose(&first) != "" {
		mended = "its key has a model, or its publisher is mended, and it has been published again"
	}
	fmt.Fprintf(w, "      tidemill dl drop %s --reason TEXT, once %s\n", strings.TrimSpace(shortID(first.ID)), mended)
}
