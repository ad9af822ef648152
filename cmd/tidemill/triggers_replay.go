package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/tail"
)

func triggersReplayCommand() command {
	return command{
		name:    "triggers replay",
		args:    "NAME",
		summary: "send a past range of events to a trigger again",
		about: `Only this trigger gets them, those that match, in order of each key; what others
read does not move. --from and --to are beginning, end, an offset (of each
partition), a time ago such as -1h or -2d, or a time as in RFC 3339. --dry-run
counts what matches and shows some of it.

` + atTheGate,
		examples: []example{
			{"tidemill triggers replay tell-crm --from -1h --dry-run", "what would be sent"},
			{"tidemill triggers replay tell-crm --from 2026-01-31T15:00:00Z --to 2026-01-31T16:00:00Z --rate 50/s", "an hour of a day, gently"},
		},
		make: func() program { return &triggerReplay{to: "end"} },
	}
}

type triggerReplay struct {
	gate
	from, to, rate string
	dryRun         bool

	ask api.ReplayAsk
}

func (p *triggerReplay) flags(f *flagSet) {
	f.text(&p.from, "from", "", "WHERE", "beginning, OFFSET, -1h or a time")
	f.text(&p.to, "to", "", "WHERE", "the same, or end")
	f.text(&p.rate, "rate", "", "RATE", "no faster than this, such as 50/s")
	f.yes(&p.dryRun, "dry-run", "only say what would be sent")
	p.gate.flags(f)
}

func (p *triggerReplay) accept(positional []string) (err error) {
	if err := wants(positional, "NAME"); err != nil {
		return err
	}
	if p.from == "" {
		return usagef("--from is missing: say from where on, such as --from -1h")
	}
	now := time.Now()
	if _, err := parseFrom(p.from, now); err != nil {
		return err
	}
	if _, err := tail.ParseFrom(p.to, now); err != nil {
		return usagef("--to %v", err)
	}
	p.ask = api.ReplayAsk{From: p.from, To: p.to, DryRun: p.dryRun}
	p.ask.Rate, err = parseRate(p.rate)
	return err
}

// parseRate reads a --rate; none is none.
func parseRate(text string) (float64, error) {
	if text == "" {
		return 0, nil
	}
	rate, err := config.ParseRate(text)
	if err != nil {
		return 0, usagef("--rate %v", err)
	}
	return rate, nil
}

func (p *triggerReplay) run(ctx context.Context, s *session, positional []string) error {
	g, done, err := p.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	name := harmless(positional[0])
	got, err := g.ReplayTrigger(ctx, positional[0], p.ask)
	switch {
	case err != nil:
		return fmt.Errorf("%w; tidemill triggers show %s tells whether it has begun", err, name)
	case got.Records == 0:
		fmt.Fprintf(s.stdout, "There is nothing on the streams of %s from %s to %s.\n", name, p.from, p.to)
		return nil
	case got.DryRun:
		return p.preview(s.stdout, name, &got)
	}
	fmt.Fprintf(s.stdout, "%s gets what matches of %s again, as act %s. Next: tidemill triggers show %s tells whether it has ended.\n",
		name, count(int(got.Records), "record"), harmless(got.ID), name)
	return nil
}

func (p *triggerReplay) preview(w io.Writer, name string, got *api.ReplayDone) error {
	seen := got.Preview
	if seen == nil {
		return fmt.Errorf("replay trigger %s: the gateway did not say what would be sent", name)
	}
	of := fmt.Sprintf("of %s", count(int(got.Records), "record"))
	if !seen.Complete {
		of = fmt.Sprintf("of the first %s of %s, for there was no time to read more", thousands(seen.Read), count(int(got.Records), "record"))
	}
	fmt.Fprintf(w, "%s would get %s %s.\n", name, count(int(seen.Matched), "event"), of)
	for i := range seen.First {
		e := tail.Event{Partition: seen.First[i].Partition, Offset: seen.First[i].Offset, Received: seen.First[i].Received}
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
