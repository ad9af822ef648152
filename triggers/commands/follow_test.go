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
			if got, err := f.Passed(w.ctx(), e.key, e.typ, broker.Position{Stream: e.stream, Partition: e.partition, Offset: e.offset}, livesOf{""}); err != nil || got != passed {
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

	one := f.ends.commandsOf("bot-3")[0] // two keys may have one hash
	f.ends.older[maphash.String(f.ends.seed, "bot-1")] = append(f.ends.older[maphash.String(f.ends.seed, "bot-1")], one)
	check("with another's hash", false, event{"bot-1", "order", "events", 0, 20})
	f.ends.read = func(context.Context, int64) (Command, error) { return Command{}, errors.New("the log is away") }
	clear(f.ends.known)
	if _, err := f.Passed(w.ctx(), "bot-1", "order", broker.Position{Stream: "events"}, livesOf{""}); err == nil {
		t.Error("without the log there is an answer")
	}
}

// Few commands are kept in memory, however many forgotten keys have events.
func TestReadCommandsAreBounded(t *testing.T) {
	t.Parallel()
	all := map[int64]Command{}
	f := newForgotten(func(_ context.Context, offset int64) (Command, error) { return all[offset], nil }, nil)
	for i := range int64(maxKnown + 100) {
		c := Command{Offset: i, Type: tidemill.TypeKeyPassed, Subject: fmt.Sprint(i), Data: []byte(`{"ends":{"events":[10]}}`)}
		all[i] = c
		f.add(&c)
	}
	for i := range all {
		if passed, err := f.passed(t.Context(), fmt.Sprint(i), broker.Position{Stream: "events", Offset: 9}, livesOf{""}); err != nil || !passed {
			t.Fatalf("key %d: %v, %v", i, passed, err)
		}
	}
	if len(f.known) != maxKnown {
		t.Errorf("%d commands are kept", len(f.known))
	}
}

// livesOf has the ids of a stream's topics, by life.
type livesOf []string

func (l livesOf) Topic(at broker.Position) string { return l[broker.LifeOf(at.Offset)>>44] }

// A stream was created again between events and commands. The event of an earlier stream than the command's was
// before, and the event of a later one was after. Offsets count within one stream.
func TestForgottenKeysOfAStreamThatIsCreatedAgain(t *testing.T) {
	t.Parallel()
	const life = 1 << 44
	a, b := livesOf{"a.c"}, livesOf{"a.c", "b.c"}
	byNewGroup, ofThree, byCopy := livesOf{"b.c"}, livesOf{"a.c", "b.c", "c.c"}, livesOf{"a.other"}
	unknown := livesOf{"", ""}
	for name, c := range map[string]struct {
		command string // id of the stream whose end is 10
		now     string // id of the stream
		lives   livesOf
		offset  int64
		passed  bool
	}{
		"before the end":                            {`"a.c"`, "a.c", a, 9, true},
		"after the end":                             {`"a.c"`, "a.c", a, 10, false},
		"before the end, in a later life":           {`"b.c"`, "b.c", b, life + 9, true},
		"after the end, in a later life":            {`"b.c"`, "b.c", b, life + 10, false},
		"of the stream before":                      {`"b.c"`, "b.c", b, 50, true},
		"of a stream that the group does not see":   {`"b.c"`, "b.c", a, 50, true},
		"of the next stream":                        {`"a.c"`, "b.c", b, life + 5, false},
		"of the next stream, for a new group":       {`"a.c"`, "b.c", byNewGroup, 5, false},
		"before the end, parked until the next":     {`"a.c"`, "b.c", b, 9, true},
		"after the end, parked until the next":      {`"a.c"`, "b.c", b, 10, false},
		"of the first, forgotten in the second":     {`"b.c"`, "c.c", ofThree, 50, true},
		"in a copy, before the end":                 {`"a.c"`, "a.other", byCopy, 9, true},
		"in a copy, after the end":                  {`"a.c"`, "a.other", byCopy, 10, false},
		"an earlier version, before the end":        {`""`, "a.c", a, 9, true},
		"an earlier version, after the end":         {`""`, "a.c", a, 10, false},
		"an earlier version, in a later life":       {`""`, "b.c", b, life + 5, false},
		"no ids, before the end":                    {`""`, "", unknown, 9, true},
		"no ids, before the end, in a later life":   {`""`, "", unknown, life + 9, true},
		"no ids, after the end, in a later life":    {`""`, "", unknown, life + 10, false},
		"a member that does not know the topic yet": {`"a.c"`, "a.c", unknown, 9, true},
	} {
		t.Run(name, func(t *testing.T) {
			all := map[int64]Command{}
			asked := 0
			f := newForgotten(func(_ context.Context, offset int64) (Command, error) { return all[offset], nil },
				func(context.Context, string) (string, error) { asked++; return c.now, nil })
			all[0] = Command{Type: tidemill.TypeKeyPassed, Subject: "k", Data: []byte(`{"ends":{"events":[10]},"topics":{"events":` + c.command + `}}`)}
			first := all[0]
			f.add(&first)
			for range 3 {
				at := broker.Position{Stream: "events", Offset: c.offset}
				if passed, err := f.passed(t.Context(), "k", at, c.lives); err != nil || passed != c.passed {
					t.Errorf("passed is %v, %v", passed, err)
				}
			}
			if !c.passed && asked > 1 {
				t.Errorf("Kafka is asked %d times for an answer that stays", asked)
			}
		})
	}
}

// The present stream is later than those of all commands that were known when Kafka was asked, and of no others.
func TestKafkaIsAskedForLaterCommands(t *testing.T) {
	t.Parallel()
	var all []Command
	now := "b.c"
	f := newForgotten(func(_ context.Context, offset int64) (Command, error) { return all[offset], nil },
		func(context.Context, string) (string, error) {
			if now == "" {
				return "", errors.New("Kafka is away")
			}
			return now, nil
		})
	forget := func(topic string) {
		c := Command{Offset: int64(len(all)), Type: tidemill.TypeKeyPassed, Subject: "k", Data: []byte(`{"ends":{"events":[10]},"topics":{"events":"` + topic + `"}}`)}
		all = append(all, c)
		f.add(&c)
	}
	check := func(when string, want, fails bool) {
		t.Helper()
		passed, err := f.passed(t.Context(), "k", broker.Position{Stream: "events", Offset: 50}, livesOf{"b.c"})
		if passed != want || (err != nil) != fails {
			t.Errorf("%s: %v, %v", when, passed, err)
		}
	}
	forget("a.c")
	check("a command about the stream before", false, false)
	now = ""
	check("what is known", false, false)
	forget("c.c")
	check("a command about the next stream, without Kafka", false, true)
	now = "c.c"
	check("a command about the next stream", true, false)
}
