package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"tidemill.dev/internal/api"
)

func triggersShowCommand() command {
	return command{
		name:    "triggers show",
		args:    "NAME",
		summary: "show all that is known of one trigger",
		about:   atTheGate,
		examples: []example{
			{"tidemill triggers show tell-crm", "what it matches, whom it tells, how that goes"},
			{"tidemill triggers show tell-crm -o json", "for a script"},
		},
		make: func() program { return &triggerShow{output: "text"} },
	}
}

type triggerShow struct {
	gate
	output string
}

func (p *triggerShow) flags(f *flagSet) {
	f.text(&p.output, "output", "o", "FORMAT", "text or json")
	p.gate.flags(f)
}

func (p *triggerShow) accept(positional []string) error {
	if err := checkOutput(p.output); err != nil {
		return err
	}
	return wants(positional, "NAME")
}

func (p *triggerShow) run(ctx context.Context, s *session, positional []string) error {
	g, done, err := p.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	t, err := g.Trigger(ctx, positional[0])
	switch {
	case err != nil:
		return err
	case p.output == "json":
		return writeIndented(s.stdout, t)
	}
	return showTrigger(s.stdout, &t)
}

func showTrigger(w io.Writer, t *api.Trigger) error {
	p := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	say := func(what, format string, args ...any) {
		fmt.Fprintf(p, "%s\t%s\n", what, harmless(fmt.Sprintf(format, args...)))
	}
	say("trigger", "%s, %s", t.Name, stateOf(t))
	for _, when := range t.When {
		say("when", "%s", condition(when))
	}
	say("to", "%s", toWhom(t.To))
	say("streams", "%s", strings.Join(t.Streams, ", "))
	say("delivery", "%s", policy(&t.Delivery))
	if n := t.Numbers; n != nil {
		say("delivered", "%s, of which %s were answered with events", count(int(n.Delivered), "event"), thousands(int64(n.Replies)))
		say("failed", "%s, and %s became dead letters", count(int(n.Failed), "attempt"), count(int(n.DeadLettered), "event"))
		say("now", "%s under way, %s parked", count(int(n.InFlight), "attempt"), parkedOf(n))
	} else {
		say("delivered", "not known: no dispatcher has told lately")
	}
	say("dead letters", "%s open", lettersOf(t))
	if t.Waits != "" {
		say("waits", "%s", t.Waits)
	}
	if t.LastError != "" && t.LastErrorAt != nil {
		say("last error", "%s, %s ago", t.LastError, ago(*t.LastErrorAt))
	}
	for _, r := range t.Replays {
		say("replays", "from %s to %s, asked for by %s %s ago", r.From, r.To, orSomebody(r.By), ago(r.At))
	}
	if err := p.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprint(w, nextForTrigger(t))
	return err
}

func stateOf(t *api.Trigger) string {
	if t.State == api.TriggerPaused && t.PausedSince != nil {
		return fmt.Sprintf("paused by %s %s ago", orSomebody(t.PausedBy), ago(*t.PausedSince))
	}
	return string(t.State)
}

func orSomebody(name string) string {
	if name == "" {
		return "somebody"
	}
	return name
}

func condition(w api.When) string {
	text := "every event"
	if len(w.Types) > 0 {
		text = "type " + strings.Join(w.Types, " or ")
	}
	if w.Stream != "" {
		text += " on " + w.Stream
	}
	if w.Where != "" {
		text += " where " + w.Where
	}
	return text
}

func policy(d *api.Delivery) string {
	text := fmt.Sprintf("%s of %s at most, %s backoff, %d at once, ", count(d.Attempts, "attempt"), time.Duration(d.TimeoutSeconds*float64(time.Second)), d.Backoff, d.Concurrency)
	if d.Order == "key" {
		text += "in order of each key"
	} else {
		text += "in no order"
	}
	if d.Rate > 0 {
		text += fmt.Sprintf(", %g a second", d.Rate)
	}
	if d.Replies == "ignore" {
		text += ", replies ignored"
	}
	return text
}

// nextForTrigger is what one may want to do with it now.
func nextForTrigger(t *api.Trigger) string {
	name := harmless(t.Name)
	switch {
	case t.State == api.TriggerPaused:
		return "\nNext: tidemill triggers resume " + name + "\n"
	case t.DeadLetters != nil && *t.DeadLetters > 0:
		return "\nNext: tidemill dead-letters --trigger " + name + "\n"
	}
	return ""
}
