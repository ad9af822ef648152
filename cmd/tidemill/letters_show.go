package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"tidemill.dev/internal/api"
)

func lettersShowCommand() command {
	return command{
		name:    "dead-letters show",
		args:    "ID",
		summary: "show a dead letter: the event, and each attempt to deliver it",
		about: `Of an open letter the beginning of its id will do, if no other begins so. One that
was replayed or dropped is shown with its receipt, by its whole id.

` + atTheGate,
		examples: []example{
			{"tidemill dl show 3k7mzq", "by the beginning of its id"},
			{"tidemill dl show 3k7mzq -o json", "for a script"},
		},
		make: func() program { return &letterShow{output: "text"} },
	}
}

type letterShow struct {
	gate
	output string
}

func (p *letterShow) flags(f *flagSet) {
	f.text(&p.output, "output", "o", "FORMAT", "text or json")
	p.gate.flags(f)
}

func (p *letterShow) accept(positional []string) error {
	if err := checkOutput(p.output); err != nil {
		return err
	}
	return wants(positional, "ID")
}

func (p *letterShow) run(ctx context.Context, s *session, positional []string) error {
	g, done, err := p.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	whole, err := g.DeadLetter(ctx, positional[0])
	switch {
	case err != nil:
		return err
	case p.output == "json":
		return writeIndented(s.stdout, whole)
	}
	return showLetter(s.stdout, &whole)
}

func showLetter(w io.Writer, whole *api.WholeLetter) error {
	l := &whole.Letter
	p := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	say := func(what, text string) { fmt.Fprintf(p, "%s\t%s\n", what, harmless(text)) }
	say("dead letter", l.ID+", "+string(l.State))
	if l.Trigger != "" {
		say("trigger", l.Trigger)
	} else if who := whose(l); who != "" {
		say("of", who)
	}
	say("reason", l.Reason)
	say("written", clock(l.Written))
	if l.Type != "" {
		say("event", l.Type+" of "+orDash(l.Key))
	} else if l.Key != "" {
		say("key", l.Key)
	}
	say("read from", placeOf(l))
	if l.Group != "" {
		say("read by", l.Group)
	}
	if l.Replay != "" {
		say("replay", "asked for as act "+l.Replay)
	}
	if r := whole.Receipt; r != nil {
		say("receipt", receiptText(r))
	}
	if err := p.Flush(); err != nil {
		return err
	}
	showAttempts(w, whole)
	showEventOf(w, whole)
	_, err := fmt.Fprint(w, nextForLetter(l))
	return err
}

func placeOf(l *api.DeadLetter) string {
	if l.LastOffset > l.Source.Offset {
		return fmt.Sprintf("%s, partition %d, offsets %d to %d", l.Source.Stream, l.Source.Partition, l.Source.Offset, l.LastOffset)
	}
	return place(l.Source.Stream, l.Source.Partition, l.Source.Offset)
}

func receiptText(r *api.Receipt) string {
	text := fmt.Sprintf("%s %s by %s: %s", r.Action, clock(r.At), orSomebody(r.By), r.Outcome)
	if r.Reason != "" {
		text += ", " + r.Reason
	}
	if r.NewLetter != "" {
		text += ", as dead letter " + r.NewLetter
	}
	return text
}

func showAttempts(w io.Writer, whole *api.WholeLetter) {
	if len(whole.Attempts) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s:\n", count(max(whole.Letter.Tried, len(whole.Attempts)), "attempt"))
	left := whole.Letter.Tried - len(whole.Attempts)
	for i, a := range whole.Attempts {
		if left > 0 && i == len(whole.Attempts)/2 {
			fmt.Fprintf(w, "  … %s more\n", thousands(int64(left)))
		}
		status := "no answer"
		if a.Status != 0 {
			status = fmt.Sprint(a.Status)
		}
		fmt.Fprintf(w, "  %s  %-9s %s  %s\n", clock(a.At), status, time.Duration(a.TookSeconds*float64(time.Second)).Round(time.Millisecond), harmless(a.Error))
	}
	if last := whole.Attempts[len(whole.Attempts)-1]; last.Answer != "" {
		fmt.Fprintf(w, "\nThe last answer began:\n%s", indented(last.Answer))
	}
}

// indented is a text of several lines, each without what a terminal would obey.
func indented(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		fmt.Fprintf(&b, "  %s\n", strings.TrimRight(harmless(line), " "))
	}
	return b.String()
}

func showEventOf(w io.Writer, whole *api.WholeLetter) {
	switch {
	case whole.Event != nil:
		var pretty bytes.Buffer
		if json.Indent(&pretty, harmlessJSON(whole.Event), "  ", "  ") == nil {
			fmt.Fprintf(w, "\nThe event:\n  %s\n", &pretty)
		}
	case whole.Record != nil:
		fmt.Fprintf(w, "\nThe record, which is no event:\n  key %q, %s: %s\n", cut(string(whole.Record.Key), 40), size(int64(len(whole.Record.Value))), oneLine(whole.Record.Value))
		for _, h := range whole.Record.Headers {
			fmt.Fprintf(w, "  %s: %s\n", harmless(h.Key), oneLine(h.Value))
		}
	}
}

// nextForLetter is what one may want to do with it now.
func nextForLetter(l *api.DeadLetter) string {
	switch {
	case l.State == api.LetterResolved:
		return ""
	case l.State == api.LetterReplaying:
		return "\nIt is being replayed; tidemill triggers show " + harmless(l.Trigger) + " tells how that goes.\n"
	case whose(l) != l.Trigger:
		return "\nNext: see that its key has a model that takes it, publish it again, then tidemill dl drop " + shortID(l.ID) + " --reason TEXT\n"
	case l.Trigger == "":
		return "\nNext: have its publisher mend it and publish it again, then tidemill dl drop " + shortID(l.ID) + " --reason TEXT\n"
	}
	return "\nNext: tidemill dl replay " + shortID(l.ID) + "\n      tidemill dl drop " + shortID(l.ID) + " --reason TEXT\n"
}
