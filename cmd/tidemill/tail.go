package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/internal/tail"
	"tidemill.dev/triggers/match"
)

func tailCommand() command {
	return command{
		name:    "tail",
		args:    "STREAM",
		summary: "show a stream's events as they arrive",
		about: `It follows the stream until Ctrl-C, -n or --no-follow ends it, and leaves no
trace: nobody's offsets move. What arrives together is shown in the order of time;
across partitions no other order is promised.

--from is beginning, end, an offset (of each partition), a time ago such as -1h or
-2d, or a time as in RFC 3339. --where is CloudEvents SQL; an event that lacks an
attribute it names does not match. Records that are no events are shown as such,
with -o json on standard error.

` + whereTo,
		examples: []example{
			{"tidemill tail events", "what arrives from now on"},
			{"tidemill tail events --from beginning --no-follow", "what is there, and no more"},
			{`tidemill tail events --from -1h --where "type = 'new-data' AND subject LIKE 'bot-%'"`, "an hour back, filtered"},
			{"tidemill tail dead-letters --from beginning -n 1 -o json", "the first dead letter, as JSON"},
		},
		make: func() program { return &tailing{from: "end", output: "text"} },
	}
}

type tailing struct {
	reach
	from, where, output string
	limit               int
	noFollow            bool

	start broker.Start
	match *match.Filter // nil is every event
}

func (t *tailing) flags(f *flagSet) {
	f.text(&t.from, "from", "", "WHERE", "beginning, end, OFFSET, -1h or a time")
	f.text(&t.where, "where", "w", "CESQL", "show only events that match")
	f.number(&t.limit, "count", "n", "COUNT", "end after so many events; 0 is no limit")
	f.yes(&t.noFollow, "no-follow", "end where the stream ends now")
	f.text(&t.output, "output", "o", "FORMAT", "text, or json: a structured CloudEvent a line")
	t.reach.flags(f)
}

func (t *tailing) accept(positional []string) (err error) {
	if err := checkOutput(t.output); err != nil {
		return err
	}
	if t.limit < 0 {
		return usagef("-n %d: give 1 or more", t.limit)
	}
	if t.start, err = parseFrom(t.from, time.Now()); err != nil {
		return err
	}
	if t.match, err = parseFilter(t.where); err != nil {
		return err
	}
	return wants(positional, "STREAM")
}

func (t *tailing) run(ctx context.Context, s *session, positional []string) (err error) {
	from, err := t.open(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.close(ctx)) }()
	what := following{stream: positional[0], start: t.start, toEnd: t.noFollow, where: t.match, limit: t.limit,
		begun: func() { t.sayHow(s, positional[0]) }}
	show := t.shower(s)
	shown := 0
	err = from.follow(ctx, what, func(e *tail.Event) error {
		if ctx.Err() != nil { // what is fetched already may fill many screens
			return ctx.Err()
		}
		if err := show(e); err != nil {
			return err
		}
		if shown++; shown == t.limit {
			return errEnough
		}
		return nil
	})
	switch {
	case errors.Is(err, errEnough):
		return nil
	case err != nil:
		return t.interrupted(ctx, err)
	case shown == 0:
		t.sayNothing(s, what.stream)
	}
	return nil
}

// errEnough ends a tail that has shown what it was asked for.
var errEnough = errors.New("there are as many as were wanted")

// interrupted tells the user's Ctrl-C, which is how following ends, from
// trouble. Whoever asked for all that is there has not got it.
func (t *tailing) interrupted(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil && t.noFollow:
		return errors.New("tail: interrupted before the stream's end")
	case ctx.Err() != nil:
		return nil
	}
	return fmt.Errorf("tail: %w", err)
}
