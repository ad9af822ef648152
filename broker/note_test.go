package broker

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev/broker/internal/wire"
)

func TestNotesSurviveTheirEncoding(t *testing.T) {
	long := strings.Repeat("ü", MaxNote/2)
	for _, note := range []string{"", "x", "a:b", "note1:3:", "ended:AAA", long} {
		for _, spans := range [][]span{nil, {{5, 9}, {12, 13}}} {
			got, ended := decodeBeside(3, encodeBeside(3, note, spans))
			if got != note || !reflect.DeepEqual(ended, spans) {
				t.Errorf("%q with %v came back as %q with %v", note, spans, got, ended)
			}
		}
	}
}

// What was committed before there were notes, and what is not ours.
func TestMetadataWithoutANote(t *testing.T) {
	for metadata, want := range map[string][]span{
		encodeEnded(3, []span{{5, 9}}): {{5, 9}},
		"":                             nil, "x": nil, "note1": nil, "note1:": nil, "note1:3:ab": nil, "note1:-1:ab": nil, "note1:x:ab": nil, "note2:1:a": nil,
		"note1:99999999999999999999:a": nil,
	} {
		if note, spans := decodeBeside(3, metadata); note != "" || !reflect.DeepEqual(spans, want) {
			t.Errorf("%q was read as %q with %v", metadata, note, spans)
		}
	}
}

func TestNotesAndSpansFitTogether(t *testing.T) {
	var spans []span
	for i := range int64(10_000) {
		spans = append(spans, span{2 * i, 2*i + 1})
	}
	if n := len(encodeBeside(0, strings.Repeat("x", MaxNote), spans)); n > 4096 {
		t.Errorf("%d bytes stand beside an offset, of which Kafka keeps 4096", n)
	}
}

// beside is what a group has committed of the partition 0 of events.
func beside(t *testing.T, b *Broker) (offset int64, note string, spans []span) {
	t.Helper()
	tp := wire.TopicPartition{Topic: "prod.events"}
	known, err := b.committedOffsets(t.Context(), "prod.g", []wire.TopicPartition{tp})
	if err != nil {
		t.Fatal(err)
	}
	note, spans = decodeBeside(known[tp].Offset, known[tp].Metadata)
	return known[tp].Offset, note, spans
}

// awaitNote waits until it is committed.
func awaitNote(t *testing.T, b *Broker, want string) {
	t.Helper()
	for _, note, _ := beside(t, b); note != want; _, note, _ = beside(t, b) {
		if err := sleep(t.Context(), time.Millisecond); err != nil {
			t.Fatalf("%q is committed, want %q: %v", note, want, err)
		}
	}
}

// noteWhileOpen has three events polled, of which the last has ended, and commits
// nothing by itself.
func noteWhileOpen(t *testing.T, every time.Duration) (*Broker, *kfake.Cluster, *Consumer, *Transactor, []*Delivery) {
	t.Helper()
	b, k := parkedFake(t)
	c, err := b.Consumer(t.Context(), ConsumerOptions{Group: "g", Streams: []string{"events"}, CommitEvery: every})
	if err != nil {
		t.Fatal(err)
	}
	x, err := c.Transactor(ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var all []*Delivery
	for _, id := range []string{"a", "b", "c"} {
		publishAll(t, b, "events", id)
		all = append(all, pollOne(t, c))
	}
	all[2].Done()
	t.Cleanup(func() {
		all[0].Done()
		all[1].Done()
		if err := errors.Join(x.Close(context.Background()), c.Close(context.Background())); err != nil {
			t.Error(err)
		}
	})
	return b, k, c, x, all
}

// A note shares what Kafka keeps with what has ended beyond the offset, and goes
// before it.
func TestNoteStaysWhereTheRestDoesNotFit(t *testing.T) {
	tooLarge := func(length int) func(kmsg.Request) bool {
		return func(r kmsg.Request) bool {
			switch r := r.(type) {
			case *kmsg.TxnOffsetCommitRequest:
				return len(*r.Topics[0].Partitions[0].Metadata) > length
			case *kmsg.OffsetCommitRequest:
				m := r.Topics[0].Partitions[0].Metadata
				return m != nil && len(*m) > length
			}
			return false
		}
	}
	keys := []kmsg.Key{kmsg.TxnOffsetCommit, kmsg.OffsetCommit}
	t.Run("in a transaction", func(t *testing.T) {
		b, k, _, x, all := noteWhileOpen(t, time.Hour)
		k.Fault(kfake.Fault{Keys: keys, Err: kerr.OffsetMetadataTooLarge, Count: -1, When: tooLarge(len("note1:4:mine"))})
		if err := x.Do(t.Context(), func(tx *Tx) error { tx.Note("events", 0, "mine"); tx.Done(all[0]); return nil }); err != nil {
			t.Fatal(err)
		}
		if offset, note, spans := beside(t, b); offset != 1 || note != "mine" || spans != nil {
			t.Errorf("the group stands at %d with %q and %v", offset, note, spans)
		}
		err := x.Do(t.Context(), func(tx *Tx) error { tx.Note("events", 0, "more than that"); return nil })
		if !errors.Is(err, ErrAborted) || !errors.Is(err, errNoteTooLarge) {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("by and by", func(t *testing.T) {
		b, k, c, _, _ := noteWhileOpen(t, time.Millisecond)
		k.Fault(kfake.Fault{Keys: keys, Err: kerr.OffsetMetadataTooLarge, Count: -1, When: tooLarge(len("note1:4:mine"))})
		if err := c.Note("events", 0, "mine"); err != nil {
			t.Fatal(err)
		}
		awaitNote(t, b, "mine")
		if err := c.Note("events", 0, "more than that"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Poll(t.Context()); !errors.Is(err, errNoteTooLarge) {
			t.Errorf("Poll returns %v", err)
		}
	})
}

// What ended beyond a note's offset is remembered with it.
func TestNoteCarriesWhatEndedBeyond(t *testing.T) {
	b, _, _, x, _ := noteWhileOpen(t, time.Hour)
	if err := x.Do(t.Context(), func(tx *Tx) error { tx.Note("events", 0, "mine"); return nil }); err != nil {
		t.Fatal(err)
	}
	if offset, note, spans := beside(t, b); offset != 0 || note != "mine" || !reflect.DeepEqual(spans, []span{{2, 3}}) {
		t.Errorf("the group stands at %d with %q and %v", offset, note, spans)
	}
}

func TestNotesThatAreRefused(t *testing.T) {
	_, _, c, x, _ := noteWhileOpen(t, time.Hour)
	for _, bad := range []struct {
		stream    string
		partition int32
		text      string
	}{{"events", 0, strings.Repeat("x", MaxNote+1)}, {"events", 0, "\xff"}, {"events", 7, "x"}, {"out", 0, "x"}} {
		if err := c.Note(bad.stream, bad.partition, bad.text); err == nil {
			t.Errorf("%s/%d takes a note of %d bytes", bad.stream, bad.partition, len(bad.text))
		}
		err := x.Do(t.Context(), func(tx *Tx) error { tx.Note(bad.stream, bad.partition, bad.text); return nil })
		if !errors.Is(err, ErrAborted) {
			t.Errorf("a transaction with it ends with %v", err)
		}
	}
}

func TestNoteWithoutAGroup(t *testing.T) {
	b, _ := parkedFake(t)
	c, err := b.Consumer(t.Context(), ConsumerOptions{Streams: []string{"events"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	if err := c.Note("events", 0, "x"); err == nil {
		t.Error("a note is taken that nothing commits")
	}
}

// awaitHome waits until the partition 0 of events is read, which is a little after
// the hook was asked.
func awaitHome(t *testing.T, c *Consumer) {
	t.Helper()
	for _, err := c.mark(Position{Stream: "events.parked"}); err != nil; _, err = c.mark(Position{Stream: "events.parked"}) {
		if err := sleep(t.Context(), time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
}

// A partition that is given up between the note and the commit, and even taken
// again, is not the note's any more.
func TestNoteWhosePartitionIsLost(t *testing.T) {
	b, _ := parkedFake(t)
	publishAll(t, b, "events", "a", "b")
	asked := make(chan []Position, 10)
	c, x := openTransactor(t, b, func(_ context.Context, at []Position) ([]Position, error) { asked <- at; return nil, nil })
	pollOne(t, c).Done()
	<-asked
	for _, given := range []bool{false, true} {
		var d *Delivery
		awaitHome(t, c)
		err := x.Do(t.Context(), func(tx *Tx) error {
			tx.Note("events", 0, "mine")
			c.giveUp(c.parts)
			c.member.startOver()
			<-asked
			if given {
				publishAll(t, b, "events", "c")
				d = pollOne(t, c)
				tx.Done(d)
			}
			return nil
		})
		if !errors.Is(err, ErrAborted) || !errors.Is(err, errTakenAway) {
			t.Errorf("error is %v", err)
		}
		if _, note, _ := beside(t, b); note != "" {
			t.Errorf("%q is committed", note)
		}
	}
}

// A hook that moves a partition, or a transaction that fails, does not cost it
// its note; what was not committed is forgotten.
func TestNoteOutlivesAbortsAndMoves(t *testing.T) {
	b, _ := parkedFake(t)
	publishAll(t, b, "events", "a", "b", "c")
	asked := make(chan []Position, 10)
	c, x := openTransactor(t, b, func(_ context.Context, at []Position) ([]Position, error) {
		asked <- at
		return []Position{{Stream: "events", Offset: at[0].Offset + 1}}, nil
	})
	if at := <-asked; at[0].Note != "" {
		t.Errorf("a note stands where none was made: %+v", at)
	}
	d := pollOne(t, c)
	if err := x.Do(t.Context(), func(tx *Tx) error { tx.Note("events", 0, "kept"); tx.Done(d); return nil }); err != nil {
		t.Fatal(err)
	}
	publishAll(t, b, "events", "d") // or the hook would move the partition beyond its end, from where reading comes back
	offset, _, _ := beside(t, b)
	no := errors.New("no")
	if err := x.Do(t.Context(), func(tx *Tx) error { tx.Note("events", 0, "lost"); return no }); !errors.Is(err, no) {
		t.Fatal(err)
	}
	if at := <-asked; len(at) != 1 || at[0] != (Position{Stream: "events", Offset: offset, Note: "kept"}) {
		t.Errorf("asked where to go on from %+v", at)
	}
	for at := int64(0); at != offset+1; { // as the hook has said
		var note string
		if at, note, _ = beside(t, b); note != "kept" {
			t.Fatalf("beside %d stands %q", at, note)
		}
		if err := sleep(t.Context(), time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
}
