package remote

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
	"tidemill.dev/config"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/gateway/client"
)

func triggersCommand() command.Command {
	return command.Command{
		Name:    "triggers",
		Lists:   true,
		Watched: true,
		Summary: "list the triggers: state, deliveries, dead letters",
		About: `DELIVERED (events) and FAILED ATTEMPTS count since the start of the dispatchers. WAITING is the
number of events that wait for another attempt. Unknown values are shown as ?.`,
		Examples: []command.Example{
			{"tidemill triggers", "a table"},
			{"tidemill triggers -o json", "for a script"},
		},
		Make: func() command.Program {
			return listing(func(ctx context.Context, g *client.Gateway) (api.Triggers, error) { return g.Triggers(ctx) }, triggerTable)
		},
	}
}

func triggerTable(all *api.Triggers) table {
	return table{none: "There are no triggers; write one under triggers: in the config.", advice: func(w io.Writer) { adviseOnTriggers(w, all) },
		rows: rowsOf(all.Triggers, func(t *api.Trigger) []string {
			return []string{show.Harmless(t.Name), show.Harmless(string(t.State)), numberOf(t, func(n *api.TriggerNumbers) string { return show.Thousands(int64(n.Delivered)) }),
				numberOf(t, func(n *api.TriggerNumbers) string { return show.Thousands(int64(n.Failed)) }), numberOf(t, parkedOf), lettersOf(t), show.Harmless(toWhom(t.To))}
		}, "TRIGGER", "STATE", "DELIVERED", "FAILED ATTEMPTS", "WAITING", "DEAD LETTERS", "TO")}
}

const unknown = "?"

func numberOf(t *api.Trigger, say func(*api.TriggerNumbers) string) string {
	if t.Numbers == nil {
		return unknown
	}
	return say(t.Numbers)
}

func parkedOf(n *api.TriggerNumbers) string {
	text := show.Thousands(n.Parked)
	if n.OldestParked != nil {
		text += " (oldest " + ago(*n.OldestParked) + ")"
	}
	return text
}

func lettersOf(t *api.Trigger) string {
	if t.DeadLetters == nil {
		return unknown
	}
	return show.Thousands(int64(*t.DeadLetters))
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

// ago formats about how long ago a time was.
func ago(at time.Time) string { return age(time.Since(at)) }

// adviseOnTriggers prints problems, and suggests the next command.
func adviseOnTriggers(w io.Writer, all *api.Triggers) {
	switch {
	case all.Dispatchers == nil:
		fmt.Fprintln(w, "\nThe state of deliveries is unknown: the gateway has no Redis, or Redis does not answer. Delivery itself does not need it.")
	case *all.Dispatchers == 0:
		fmt.Fprintln(w, "\nNo dispatcher runs. Events wait on their streams; tidemill up or tidemill serve dispatcher starts one.")
	}
	var paused, failed []string
	for i := range all.Triggers {
		t := &all.Triggers[i]
		if t.State == api.TriggerPaused {
			paused = append(paused, show.Harmless(t.Name))
		}
		if t.DeadLetters != nil && *t.DeadLetters > 0 {
			failed = append(failed, show.Harmless(t.Name))
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

func triggersShowCommand() command.Command {
	return command.Command{
		Name:    "triggers show",
		Args:    "NAME",
		Summary: "show a trigger: filters, subscriber, state of its deliveries",
		Examples: []command.Example{
			{"tidemill triggers show tell-crm", "as text"},
			{"tidemill triggers show tell-crm -o json", "for a script"},
		},
		Make: func() command.Program { return showing((*client.Gateway).Trigger, showTrigger) },
	}
}

func showTrigger(w io.Writer, t *api.Trigger) error {
	line, flush := labelledLines(w)
	say := func(what, format string, args ...any) { line(what, fmt.Sprintf(format, args...)) }
	say("trigger", "%s, %s", t.Name, stateOf(t))
	for _, when := range t.When {
		say("when", "%s", condition(when))
	}
	say("to", "%s", toWhom(t.To))
	say("streams", "%s", strings.Join(t.Streams, ", "))
	say("delivery", "%s", policy(&t.Delivery))
	if n := t.Numbers; n != nil {
		say("delivered", "%s since the start of the dispatchers, of which %s were answered with events", show.Count(int(n.Delivered), "event"), show.Thousands(int64(n.Replies)))
		if n.Ignored > 0 {
			say("ignored", "%s with events: the trigger says nothing about replies; name their types, such as delivery: {replies: {types: [invoice-sent]}}, or write replies: ignore", show.Count(int(n.Ignored), "answer"))
		}
		say("failed", "%s since then; %s given up", show.Count(int(n.Failed), "attempt"), show.Count(int(n.DeadLettered), "event"))
		say("now", "%s running, %s waiting", show.Count(int(n.InFlight), "attempt"), parkedOf(n))
	} else {
		say("delivered", "unknown: no dispatcher has reported recently")
	}
	say("dead letters", "%s open", lettersOf(t))
	if t.Waits != "" {
		say("waits", "%s", t.Waits)
	}
	if t.LastError != "" && t.LastErrorAt != nil {
		say("last error", "%s, %s ago", t.LastError, ago(*t.LastErrorAt))
	}
	for _, r := range t.Replays {
		say("replays", "from %s to %s, requested by %s %s ago", r.From, r.To, orSomebody(r.By), ago(r.At))
	}
	if err := flush(); err != nil {
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
		return "anonymous"
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
	text := fmt.Sprintf("%s of %s at most, %s backoff, %d at once, ", show.Count(d.Attempts, "attempt"), time.Duration(d.TimeoutSeconds*float64(time.Second)), d.Backoff, d.Concurrency)
	if d.Order == "key" {
		text += "in order of each key"
	} else {
		text += "in no order"
	}
	if d.Rate > 0 {
		text += fmt.Sprintf(", %g a second", d.Rate)
	}
	switch {
	case d.Replies == "ignore":
		text += ", replies ignored"
	case len(d.ReplyTypes) > 0:
		text += ", replies of type " + strings.Join(d.ReplyTypes, " or ")
	}
	if d.ReplyKeys == "any" {
		text += ", replies for any key"
	}
	return text
}

// nextForTrigger suggests the next command for a trigger.
func nextForTrigger(t *api.Trigger) string {
	name := show.Harmless(t.Name)
	switch {
	case t.State == api.TriggerPaused:
		return "\nNext: tidemill triggers resume " + name + "\n"
	case t.DeadLetters != nil && *t.DeadLetters > 0:
		return "\nNext: tidemill dead-letters --trigger " + name + "\n"
	}
	return ""
}

func triggersPauseCommand() command.Command {
	return command.Command{
		Name:    "triggers pause",
		Args:    "NAME",
		Summary: "pause a trigger: its events wait",
		About: `After it is resumed, the waiting events are delivered in order. Events that wait for
longer than half of their stream's retention become dead letters.`,
		Examples: []command.Example{{"tidemill triggers pause tell-crm", "while its subscriber is fixed"}},
		Make:     func() command.Program { return &request{do: pauseTrigger} },
	}
}

func triggersResumeCommand() command.Command {
	return command.Command{
		Name:     "triggers resume",
		Args:     "NAME",
		Summary:  "resume a trigger",
		About:    "Waiting events are delivered first.",
		Examples: []command.Example{{"tidemill triggers resume tell-crm", "after its subscriber is fixed"}},
		Make:     func() command.Program { return &request{do: resumeTrigger} },
	}
}

func pauseTrigger(ctx context.Context, c *call) error {
	now, err := c.g.PauseTrigger(ctx, c.positional[0])
	if err != nil {
		return err
	}
	name, how := show.Harmless(c.positional[0]), "is paused: its events wait"
	if !now.Changed {
		how = "was " + show.Harmless(stateOf(&now.Trigger)) + " already"
	}
	_, err = fmt.Fprintf(c.Stdout, "%s %s. Next: tidemill triggers resume %s\n", name, how, name)
	return err
}

func resumeTrigger(ctx context.Context, c *call) error {
	now, err := c.g.ResumeTrigger(ctx, c.positional[0])
	if err != nil {
		return err
	}
	name, how := show.Harmless(c.positional[0]), "was not paused."
	if now.Changed {
		how = fmt.Sprintf("is resumed: waiting events are delivered first. tidemill triggers show %s shows the progress.", name)
	}
	_, err = fmt.Fprintf(c.Stdout, "%s %s\n", name, how)
	return err
}

func triggersReplayCommand() command.Command {
	return command.Command{
		Name:    "triggers replay",
		Args:    "NAME",
		Summary: "send a past range of events to a trigger again",
		About: `Only this trigger gets them, in order of each key, and only events that match. Other
readers are not affected. --from and --to are beginning, end, an offset (of each
partition), a time ago such as -1h or -2d, or a time as in RFC 3339. --dry-run counts
the events that match and shows some of them.`,
		Examples: []command.Example{
			{"tidemill triggers replay tell-crm --from -1h --dry-run", "what would be sent"},
			{"tidemill triggers replay tell-crm --from 2026-01-31T15:00:00Z --to 2026-01-31T16:00:00Z --rate 50/s", "an hour of a day, slowly"},
		},
		Make: func() command.Program {
			p := &triggerReplay{to: "end"}
			return &request{flags: p.flags, accept: p.accept, do: p.do}
		},
	}
}

type triggerReplay struct {
	from, to, rate string
	dryRun         bool

	ask api.ReplayAsk
}

func (p *triggerReplay) flags(f *command.FlagSet) {
	f.Text(&p.from, "from", "", "WHERE", "beginning, OFFSET, -1h or a time")
	f.Text(&p.to, "to", "", "WHERE", "the same, or end")
	f.Text(&p.rate, "rate", "", "RATE", "no faster than this, such as 50/s")
	f.Yes(&p.dryRun, "dry-run", "only show what would be sent")
}

func (p *triggerReplay) accept(positional []string) (err error) {
	if p.from == "" {
		return command.Usagef("--from is missing: give the start, such as --from -1h")
	}
	now := time.Now()
	if _, err := parseFrom(p.from, now); err != nil {
		return err
	}
	if _, err := follow.ParseFrom(p.to, now); err != nil {
		return command.Usagef("--to %v", err)
	}
	p.ask = api.ReplayAsk{From: p.from, To: p.to, DryRun: p.dryRun}
	p.ask.Rate, err = parseRate(p.rate)
	return err
}

// parseRate parses --rate. Empty means no limit.
func parseRate(text string) (float64, error) {
	if text == "" {
		return 0, nil
	}
	rate, err := config.ParseRate(text)
	if err != nil {
		return 0, command.Usagef("--rate %v", err)
	}
	return rate, nil
}

func (p *triggerReplay) do(ctx context.Context, c *call) error {
	name := show.Harmless(c.positional[0])
	got, err := c.g.ReplayTrigger(ctx, c.positional[0], p.ask)
	switch {
	case err != nil:
		return fmt.Errorf("%w; tidemill triggers show %s shows whether it has begun", err, name)
	case got.Records == 0:
		fmt.Fprintf(c.Stdout, "There is nothing on the streams of %s from %s to %s.\n", name, p.from, p.to)
		return nil
	case got.DryRun:
		return p.preview(c.Stdout, name, &got)
	}
	fmt.Fprintf(c.Stdout, "%s gets the matching events of %s again, by command %s. Next: tidemill triggers show %s shows whether it has ended.\n",
		name, show.Count(int(got.Records), "record"), show.Harmless(got.ID), name)
	return nil
}

func (p *triggerReplay) preview(w io.Writer, name string, got *api.ReplayDone) error {
	seen := got.Preview
	if seen == nil {
		return fmt.Errorf("replay trigger %s: the gateway sent no preview", name)
	}
	of := fmt.Sprintf("of %s", show.Count(int(got.Records), "record"))
	if !seen.Complete {
		of = fmt.Sprintf("of the first %s of %s, because reading took too long", show.Thousands(seen.Read), show.Count(int(got.Records), "record"))
	}
	fmt.Fprintf(w, "%s would get %s %s.\n", name, show.Count(int(seen.Matched), "event"), of)
	for i := range seen.First {
		e := follow.Event{Partition: seen.First[i].Partition, Offset: seen.First[i].Offset, Received: seen.First[i].Received}
		if err := broker.UnmarshalStructured(seen.First[i].Event, &e.View); err != nil {
			return fmt.Errorf("read what the gateway shows: %w", err)
		}
		if err := showEvent(w, &e); err != nil {
			return err
		}
	}
	if seen.Matched > int64(len(seen.First)) {
		fmt.Fprintln(w, "…")
	}
	_, err := fmt.Fprintf(w, "Next: the same without --dry-run sends them.\n")
	return err
}
