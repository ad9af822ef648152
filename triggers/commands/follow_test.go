package commands

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"testing"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
)

// An event of a forgotten key is one before the key's end, unless it is about the end itself. The ends
// are read from the command, and only if the key was forgotten and the event is before some end.
func TestEventsOfAForgottenKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, embedded.Options{})
	f, err := FollowKeys(w.ctx(), w.b, slog.New(slog.DiscardHandler))
	w.must(err)
	t.Cleanup(func() { w.must(f.Close(context.Background())) })
	reads := 0
	f.ends.read = func(ctx context.Context, offset int64) (Command, error) { reads++; return f.command(ctx, offset) }
	forget := func(key, ends string) {
		at := w.publish(broker.View{ID: ends, Source: "/test", Type: tidemill.TypeKeyPassed, Subject: key, DataContentType: "application/json", Data: []byte(`{"ends":` + ends + `}`)})
		w.waitKnown(f, func(s *State) bool { return s.Next() > at.Offset })
	}
	type event struct {
		key, typ, stream string
		partition        int32
		offset           int64
	}
	check := func(when string, passed bool, all ...event) {
		t.Helper()
		for _, e := range all {
			if got, err := f.Passed(w.ctx(), e.key, e.typ, e.stream, e.partition, e.offset); err != nil || got != passed {
				t.Errorf("%s: %+v: %v, %v", when, e, got, err)
			}
		}
	}
	check("at first", false, event{"bot-1", "order", "events", 0, 0})
	forget("bot-1", `{"events":[10,0]}`)
	check("beyond", false, event{"bot-1", "order", "events", 0, 10}, event{"bot-1", "order", "events", 1, 0}, event{"bot-1", "order", "events", 2, 0},
		event{"bot-1", "order", "messages", 0, 0}, event{"bot-2", "order", "events", 0, 0},
		event{"bot-1", tidemill.TypeBotDeleted, "events", 0, 0}, event{"bot-1", tidemill.TypeKeyForgetting, "events", 0, 0})
	if reads != 0 {
		t.Errorf("%d commands were read for events that need none", reads)
	}
	check("before", true, event{"bot-1", "order", "events", 0, 9}, event{"bot-1", "order", "events", 0, 8})
	if reads != 1 {
		t.Errorf("a command was read %d times", reads)
	}
	forget("bot-1", `{"events":[20,5]}`)
	forget("bot-1", `{"events":[10,0]}`) // written by a slow author
	forget("bot-3", `{"events":[30,5]}`)
	check("again", true, event{"bot-1", "order", "events", 0, 19}, event{"bot-1", "order", "events", 1, 4}, event{"bot-3", "order", "events", 0, 29})
	check("after that", false, event{"bot-1", "order", "events", 0, 20})

	one := f.ends.candidates("bot-3", "events", 0, 0)[0] // two keys may have one hash
	f.ends.older[maphash.String(f.ends.seed, "bot-1")] = append(f.ends.older[maphash.String(f.ends.seed, "bot-1")], one)
	check("with another's hash", false, event{"bot-1", "order", "events", 0, 20})
	f.ends.read = func(context.Context, int64) (Command, error) { return Command{}, errors.New("the log is away") }
	clear(f.ends.known)
	if _, err := f.Passed(w.ctx(), "bot-1", "order", "events", 0, 0); err == nil {
		t.Error("without the log there is an answer")
	}
}

// Few commands are kept in memory, however many forgotten keys have events.
func TestReadCommandsAreBounded(t *testing.T) {
	t.Parallel()
	all := map[int64]Command{}
	f := newForgotten(func(_ context.Context, offset int64) (Command, error) { return all[offset], nil })
	for i := range int64(maxKnown + 100) {
		c := Command{Offset: i, Type: tidemill.TypeKeyPassed, Subject: fmt.Sprint(i), Data: []byte(`{"ends":{"events":[10]}}`)}
		all[i] = c
		f.add(&c)
	}
	for i := range all {
		if passed, err := f.passed(t.Context(), fmt.Sprint(i), "events", 0, 9); err != nil || !passed {
			t.Fatalf("key %d: %v, %v", i, passed, err)
		}
	}
	if len(f.known) != maxKnown {
		t.Errorf("%d commands are kept", len(f.known))
	}
}
