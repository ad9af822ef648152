package deadletters

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
)

// patience ends a test that hangs; it measures nothing.
const patience = 2 * time.Minute

// world is a Kafka of the laptop with dead letters.
type world struct {
	*testing.T
	names   tidemill.Names
	options embedded.Options
	servers *embedded.Servers
	b       *broker.Broker
	p       *broker.Producer
}

func newWorld(t *testing.T, o embedded.Options) *world {
	t.Helper()
	w := &world{T: t, options: o, names: install(t)}
	w.serve()
	t.Cleanup(func() { _ = w.servers.Close() })
	var err error
	w.b, err = broker.Open(w.ctx(), broker.Options{Addr: w.servers.Kafka(), Names: w.names})
	w.must(err)
	t.Cleanup(func() { w.must(w.b.Close()) })
	_, err = w.b.EnsureStreams(w.ctx(), []broker.StreamSpec{{Name: tidemill.StreamDeadLetters, Partitions: 3}, {Name: tidemill.StreamCommands, Partitions: 1}}, broker.EnsureOptions{})
	w.must(err)
	w.p, err = w.b.Producer(broker.ProducerOptions{})
	w.must(err)
	t.Cleanup(func() { _ = w.p.Close(context.Background()) })
	return w
}

func (w *world) serve() {
	w.Helper()
	var err error
	w.servers, err = embedded.Start(w.Context(), w.options)
	w.must(err)
	w.options.Kafka, w.options.Redis = w.servers.Kafka(), w.servers.Redis()
}

func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	w.Cleanup(cancel)
	return ctx
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) publish(stream string, v broker.View) broker.Position {
	w.Helper()
	r, err := w.p.Publish(w.ctx(), stream, &v)
	w.must(err)
	return r.Position()
}

// letter writes the dead letter of an event with the given subject and returns it.
func (w *world) letter(subject string) broker.View {
	w.Helper()
	was := original()
	was.Subject, was.Key, was.ID = subject, []byte(subject), "of "+subject
	v, err := New(w.names, lay, &was, details(), when)
	w.must(err)
	w.publish(tidemill.StreamDeadLetters, v)
	return v
}

func must(t *testing.T, data any) []byte {
	t.Helper()
	b, err := json.Marshal(data)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (w *world) resolve(letter *broker.View, r Receipt) {
	w.Helper()
	v, err := Resolved(w.names, letter, r, when)
	w.must(err)
	w.publish(tidemill.StreamDeadLetters, v)
}

func (w *world) open() *Book {
	w.Helper()
	k, err := Open(w.ctx(), w.b, slog.New(slog.DiscardHandler))
	w.must(err)
	w.Cleanup(func() { w.must(k.Close(context.Background())) })
	return k
}

// waitOpen waits until the open dead letters are those of some keys.
func (w *world) waitOpen(k *Book, keys ...string) {
	w.Helper()
	tick := time.NewTicker(5 * time.Millisecond) // other goroutines need the processor meanwhile
	defer tick.Stop()
	for ctx := w.ctx(); ; <-tick.C {
		var open []string
		k.ByKey(Selection{}, func(e Entry) { open = append(open, e.Key) })
		slices.Sort(open)
		if slices.Equal(open, keys) {
			return
		}
		if ctx.Err() != nil {
			w.Fatalf("open are the letters of %v, not of %v", open, keys)
		}
	}
}

func TestABookHasWhatIsOpen(t *testing.T) {
	w := newWorld(t, embedded.Options{})
	if empty := w.open(); len(empty.Counts()) != 0 {
		t.Error("of no letters the book has some")
	}
	first, second := w.letter("bot-1"), w.letter("bot-2")
	w.letter("bot-2")
	w.publish(tidemill.StreamDeadLetters, broker.View{ID: "strange", Source: "/x", Type: "tidemill.event.forgotten"})
	w.resolve(&first, Receipt{Action: Replayed, Outcome: Delivered, Command: "act"})
	k := w.open()
	w.waitOpen(k, "bot-2")
	if got := k.Counts(); len(got) != 1 || got["tell-crm"] != 1 {
		t.Errorf("the counts are %v", got)
	}
	w.letter("bot-3")
	w.waitOpen(k, "bot-2", "bot-3")
	w.resolve(&second, Receipt{Action: Dropped, Outcome: DroppedByAct})
	w.waitOpen(k, "bot-3")
	at, over := k.Receipt(second.ID)
	if !over {
		t.Fatal("the book knows no receipt")
	}
	w.must(k.At(w.ctx(), []broker.Position{at}, func(_ broker.Position, e *broker.Incoming) error {
		r, err := ReadReceipt(&e.View)
		if err == nil && r.Letter != second.ID {
			t.Errorf("the receipt is that of %s", r.Letter)
		}
		return err
	}))
}

func TestABookKnowsWhatIsBeingReplayed(t *testing.T) {
	w := newWorld(t, embedded.Options{})
	asked := func(act string, ids ...string) {
		var refs []tidemill.LetterRef
		for _, id := range ids {
			refs = append(refs, tidemill.LetterRef{ID: id})
		}
		data := must(t, tidemill.LetterReplayData{Trigger: "tell-crm", Letters: refs})
		w.publish(tidemill.StreamCommands, broker.View{ID: act, Source: "/x", Type: tidemill.TypeEventReplayRequested, Data: data})
	}
	first, second, third := w.letter("bot-1"), w.letter("bot-2"), w.letter("bot-3")
	asked("before", first.ID)
	asked("resolved since", second.ID)
	w.resolve(&second, Receipt{Action: Replayed, Outcome: Delivered, Command: "resolved since"})
	k := w.open()
	replay := func(id string) string {
		e, err := k.Find(id)
		w.must(err)
		return e.Replay
	}
	if replay(first.ID) != "before" || replay(third.ID) != "" {
		t.Errorf("replayed by %q and %q", replay(first.ID), replay(third.ID))
	}
	asked("after", third.ID)
	for ctx := w.ctx(); replay(third.ID) != "after"; {
		if ctx.Err() != nil {
			t.Fatal("the book never hears of an act")
		}
	}
	k.Asked("again", []tidemill.LetterRef{{ID: third.ID}})
	if replay(third.ID) != "after" {
		t.Error("a second act took a letter from the first")
	}
}

func TestALetterIsFoundByTheBeginningOfItsID(t *testing.T) {
	w := newWorld(t, embedded.Options{})
	one, two := w.letter("bot-1"), w.letter("bot-2")
	k := w.open()
	e, err := k.Find(one.ID[:20])
	if err != nil || e.ID != one.ID {
		t.Errorf("found %s, %v", e.ID, err)
	}
	same := 0
	for one.ID[same] == two.ID[same] {
		same++
	}
	if _, err := k.Find(one.ID[:same]); same > 0 && !errors.Is(err, ErrAmbiguous) || same == 0 && !errors.Is(err, ErrNotOpen) {
		t.Errorf("of the first %d letters it says %v", same, err)
	}
	if _, err := k.Find("none"); !errors.Is(err, ErrNotOpen) {
		t.Errorf("of an id that is none it says %v", err)
	}
}

// At returns the events at the given places, however far apart they are.
func TestLettersAreReadWhereTheyLie(t *testing.T) {
	w := newWorld(t, embedded.Options{})
	at := map[broker.Position]string{}
	var wanted []broker.Position
	for i := range 40 {
		was := original()
		was.Subject, was.Key = "", []byte{byte(i)}
		was.Data = make([]byte, 20_000)
		d := details()
		d.Replay = string(rune('a' + i))
		v, err := New(w.names, lay, &was, d, when)
		w.must(err)
		p := w.publish(tidemill.StreamDeadLetters, v)
		at[p] = v.ID
		if i%7 == 0 || i > 35 {
			wanted = append(wanted, p)
		}
	}
	k := w.open()
	got := 0
	w.must(k.At(w.ctx(), wanted, func(p broker.Position, e *broker.Incoming) error {
		if at[p] != e.ID {
			t.Errorf("at %+v lies %s, not %s", p, e.ID, at[p])
		}
		got++
		return nil
	}))
	if got != len(wanted) {
		t.Errorf("%d of %d were read", got, len(wanted))
	}
	stop := errors.New("enough")
	if err := k.At(w.ctx(), wanted, func(broker.Position, *broker.Incoming) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("an error of the reader's is %v", err)
	}
	beyond := []broker.Position{{Stream: tidemill.StreamDeadLetters, Partition: 0, Offset: 1 << 40}}
	if err := k.At(w.ctx(), beyond, func(broker.Position, *broker.Incoming) error { return nil }); err == nil {
		t.Error("beyond the end there is something to read")
	}
}

func TestABookOutlivesKafka(t *testing.T) {
	w := newWorld(t, embedded.Options{Dir: t.TempDir()})
	k := w.open()
	w.letter("bot-1")
	w.waitOpen(k, "bot-1")
	w.must(w.servers.Close())
	w.serve()
	w.letter("bot-2")
	w.waitOpen(k, "bot-1", "bot-2")
}
