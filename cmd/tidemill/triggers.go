package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"tidemill.dev/internal/api"
)

func triggersCommand() command {
	return command{
		name:    "triggers",
		summary: "list the triggers, and how their deliveries go",
		about: `DELIVERED and FAILED (attempts) count since the dispatchers were started; PARKED
are events that wait to be tried again. What is not known is shown as ?.

` + atTheGate,
		examples: []example{
			{"tidemill triggers", "a table"},
			{"tidemill triggers -o json", "for a script"},
		},
		make: func() program { return &triggerList{output: "text"} },
	}
}

type triggerList struct {
	gate
	output string
}

func (l *triggerList) flags(f *flagSet) {
	f.text(&l.output, "output", "o", "FORMAT", "text or json")
	l.gate.flags(f)
}

func (l *triggerList) accept(positional []string) error {
	if err := checkOutput(l.output); err != nil {
		return err
	}
	return wants(positional)
}

func (l *triggerList) run(ctx context.Context, s *session, _ []string) error {
	g, done, err := l.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	all, err := g.Triggers(ctx)
	switch {
	case err != nil:
		return err
	case l.output == "json":
		return writeIndented(s.stdout, all)
	case len(all.Triggers) == 0:
		fmt.Fprintln(s.stderr, "There are no triggers; write one under triggers: in the config.")
		return nil
	}
	if err := tabulateTriggers(s.stdout, all.Triggers); err != nil {
		return err
	}
	adviseOnTriggers(s.stderr, &all)
	return nil
}

// writeIndented prints JSON for people and scripts. Events stand in it, and
// people read it on a terminal.
func writeIndented(w io.Writer, v any) error {
	var line, pretty bytes.Buffer
	e := json.NewEncoder(&line)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	if err := json.Indent(&pretty, harmlessJSON(bytes.TrimSpace(line.Bytes())), "", "  "); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, &pretty)
	return err
}

func tabulateTriggers(w io.Writer, all []api.Trigger) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "TRIGGER\tSTATE\tDELIVERED\tFAILED\tPARKED\tDEAD LETTERS\tTO")
	for i := range all {
		one := &all[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", harmless(one.Name), harmless(string(one.State)), numberOf(one, func(n *api.TriggerNumbers) string { return thousands(int64(n.Delivered)) }),
			numberOf(one, func(n *api.TriggerNumbers) string { return thousands(int64(n.Failed)) }), numberOf(one, parkedOf), lettersOf(one), harmless(toWhom(one.To)))
	}
	return t.Flush()
}

const unknown = "?"

func numberOf(t *api.Trigger, say func(*api.TriggerNumbers) string) string {
	if t.Numbers == nil {
		return unknown
	}
	return say(t.Numbers)
}

func parkedOf(n *api.TriggerNumbers) string {
	text := thousands(n.Parked)
	if n.OldestParked != nil {
		text += " (oldest " + ago(*n.OldestParked) + ")"
	}
	return text
}

func lettersOf(t *api.Trigger) string {
	if t.DeadLetters == nil {
		return unknown
	}
	return thousands(int64(*t.DeadLetters))
}

func toWhom(t api.Target) string {
	switch {
	case t.Service != "":
		return "service " + t.Service
	case t.Function != "":
		return "function " + t.Function
	}
	return t.URL
}

// ago is how long it is since a time, about.
func ago(at time.Time) string {
	switch d := time.Since(at); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// adviseOnTriggers says what is remarkable, and what can be done about it.
func adviseOnTriggers(w io.Writer, all *api.Triggers) {
	switch {
	case all.Dispatchers == nil:
		fmt.Fprintln(w, "\nHow deliveries go is not known: the gateway has no Redis, or it is away. What the triggers do does not depend on it.")
	case *all.Dispatchers == 0:
		fmt.Fprintln(w, "\nNothing delivers now: no dispatcher runs. Events wait on their streams; tidemill up or tidemill serve dispatcher starts one.")
	}
	var paused, failed []string
	for i := range all.Triggers {
		t := &all.Triggers[i]
		if t.State == api.TriggerPaused {
			paused = append(paused, harmless(t.Name))
		}
		if t.DeadLetters != nil && *t.DeadLetters > 0 {
			failed = append(failed, harmless(t.Name))
		}
	}
	if len(paused)+len(failed) > 0 {
		fmt.Fprintln(w)
	}
	if len(paused) > 0 {
		fmt.Fprintf(w, "Paused: tidemill triggers resume %s\n", paused[0])
	}
	if len(failed) > 0 {
		fmt.Fprintf(w, "Dead letters: tidemill dl --trigger %s\n", failed[0])
	}
}
