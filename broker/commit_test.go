package broker

import (
	"context"
	"errors"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev/broker/internal/wire"
	"tidemill.dev/broker/retry"
)

// A member whose offsets are refused for good gets an error, even if many events are still unread.
func TestRefusedCommitEndsReading(t *testing.T) {
	h := newHostile(t, 1)
	c, err := h.b.Consumer(h.ctx(), ConsumerOptions{Group: "g", Streams: []string{"events"}, SessionTimeout: hostileSession, CommitEvery: 10 * time.Millisecond})
	h.must(err)
	defer c.Close(h.ctx())
	_, errs := h.publish(0, 4, ProducerOptions{})
	h.must(errors.Join(errs...))
	d, err := c.Poll(h.ctx())
	h.must(err)
	h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.GroupAuthorizationFailed, Count: -1})
	for err == nil {
		d.Done()
		h.publish(4, 8, ProducerOptions{})
		d, err = c.Poll(h.ctx())
	}
	if !errors.Is(err, kafka.GroupAuthorizationFailed) {
		t.Errorf("Poll returns %v", err)
	}
}

// A Close with enough time waits for the last commit, even if Kafka is slow, because uncommitted
// events would be repeated.
func TestCloseWaitsForTheLastCommit(t *testing.T) {
	h := newHostile(t, 1)
	c, err := h.b.Consumer(h.ctx(), ConsumerOptions{Group: "g", Streams: []string{"events"}, SessionTimeout: hostileSession, CommitEvery: time.Hour})
	h.must(err)
	_, errs := h.publish(0, 4, ProducerOptions{})
	h.must(errors.Join(errs...))
	for n := 0; n < 4; {
		d, err := c.Poll(h.ctx())
		h.must(err)
		n += len(d.Events)
		d.Done()
	}
	h.kafka.ControlKey(int16(kmsg.OffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
		h.kafka.SleepControl(func() { _ = retry.Sleep(h.ctx(), leaveTime*3/2) })
		return nil, nil, false
	})
	h.must(c.Close(h.ctx()))
	if at := h.committedEvents("g"); at != 4 {
		t.Errorf("closed, and the group is at %d of 4", at)
	}
}

// A commit that got no answer may reach Kafka after later ones. The member puts its offset right.
func TestALateCommitIsPutRight(t *testing.T) {
	h := newHostile(t, 1)
	h.b.recommitEvery = 20 * time.Millisecond
	c, err := h.b.Consumer(h.ctx(), ConsumerOptions{Group: "g", Streams: []string{"events"}, SessionTimeout: hostileSession, CommitEvery: 10 * time.Millisecond})
	h.must(err)
	_, errs := h.publish(0, 3, ProducerOptions{})
	h.must(errors.Join(errs...))
	for n := 0; n < 3; {
		d, err := c.Poll(h.ctx())
		h.must(err)
		n += len(d.Events)
		d.Done()
	}
	for h.committedEvents("g") != 3 {
		h.must(retry.Sleep(h.ctx(), time.Millisecond))
	}
	c.member.committing.Lock()
	refused, err := c.member.commitOffsets(h.ctx(), map[string][]kafka.OffsetCommit{"tidemill.events": {{Partition: 0, Offset: 0}, {Partition: 1, Offset: 0}}})
	h.must(err)
	before := h.committedEvents("g")
	c.member.committing.Unlock()
	if len(refused) > 0 || before != 0 {
		t.Fatalf("after the late commit: %d of 0, refused: %v", before, refused)
	}
	for h.committedEvents("g") != 3 {
		h.must(retry.Sleep(h.ctx(), time.Millisecond))
	}
	h.must(c.Close(h.ctx()))
}

// If Kafka allows less metadata than ours, the offset is committed without it.
func TestCommitWithoutMetadataWhereItIsTooLarge(t *testing.T) {
	h := newHostile(t, 1)
	c, err := h.b.Consumer(h.ctx(), ConsumerOptions{Group: "g", Streams: []string{"events"}, SessionTimeout: hostileSession, CommitEvery: 10 * time.Millisecond})
	h.must(err)
	h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.OffsetMetadataTooLarge, Count: -1, When: func(r kmsg.Request) bool {
		for _, topic := range r.(*kmsg.OffsetCommitRequest).Topics {
			for _, p := range topic.Partitions {
				if p.Metadata != nil && *p.Metadata != "" {
					return true
				}
			}
		}
		return false
	}})
	p, err := h.b.Producer(ProducerOptions{})
	h.must(err)
	for range 3 {
		_, err := p.Publish(h.ctx(), "events", hostileEvent(0))
		h.must(err)
	}
	h.must(p.Close(h.ctx()))
	var all []*Incoming
	for len(all) < 3 {
		d, err := c.Poll(h.ctx())
		h.must(err)
		for i := range d.Events {
			all = append(all, &d.Events[i])
		}
	}
	all[0].Done()
	all[2].Done()
	for h.committedEvents("g") != 1 {
		h.must(retry.Sleep(h.ctx(), time.Millisecond))
	}
	all[1].Done()
	h.must(c.Close(h.ctx()))
}

// A group that started at the latest event reads an added partition from its beginning, because the
// group was not there when its first events came.
func TestAddedPartitionIsReadFromItsBeginning(t *testing.T) {
	h := newHostile(t, 1)
	c, err := h.b.Consumer(h.ctx(), ConsumerOptions{Group: "g", Streams: []string{"events"}, Start: Latest(), CommitEvery: 10 * time.Millisecond})
	h.must(err)
	for len(c.Positions()) != 2 { // their starts are committed before they are read
		h.must(retry.Sleep(h.ctx(), time.Millisecond))
	}
	_, err = h.b.client.CreatePartitions(h.ctx(), &kafka.CreatePartitionsRequest{Topics: []kafka.TopicPartitionsConfig{{Name: "tidemill.events", Count: 8}}})
	h.must(err)
	h.b.cluster.mu.Lock()
	clear(h.b.cluster.topics)
	h.b.cluster.mu.Unlock()
	_, errs := h.publish(0, 40, ProducerOptions{})
	h.must(errors.Join(errs...))
	c.member.startOver() // the leader does the same after it notices the partition
	ctx, cancel := context.WithTimeout(h.ctx(), hostilePatience)
	defer cancel()
	for n := 0; n < 40; {
		d, err := c.Poll(ctx)
		if err != nil {
			t.Fatalf("%d of 40 events have come: %v", n, err)
		}
		n += len(d.Events)
		d.Done()
	}
	h.must(c.Close(h.ctx()))
}

// Events that are published while a reader searches its start time are not skipped.
func TestNothingIsPassedOverWhileTheStartIsFound(t *testing.T) {
	h := newHostile(t, 1)
	since := time.Now().Add(-time.Hour)
	lists := 0
	h.kafka.ControlKey(int16(kmsg.ListOffsets), func(r kmsg.Request) (kmsg.Response, error, bool) {
		h.kafka.KeepControl()
		if lists++; lists == 2 {
			h.kafka.SleepControl(func() { h.publish(0, 20, ProducerOptions{}) })
		}
		return nil, nil, false
	})
	c, err := h.b.Consumer(h.ctx(), ConsumerOptions{Streams: []string{"events"}, Start: Since(since)})
	h.must(err)
	ctx, cancel := context.WithTimeout(h.ctx(), hostilePatience)
	defer cancel()
	for n := 0; n < 20; {
		d, err := c.Poll(ctx)
		if err != nil {
			t.Fatalf("%d of 20 events have come: %v", n, err)
		}
		n += len(d.Events)
		d.Done()
	}
	h.must(c.Close(h.ctx()))
}

func TestEndedSpansSurviveTheirEncoding(t *testing.T) {
	for _, spans := range [][]span{nil, {{5, 6}}, {{5, 9}, {12, 13}, {1 << 33, 1<<33 + 7}}} {
		if got := decodeEnded(3, encodeEnded(3, spans)); !reflect.DeepEqual(got, spans) {
			t.Errorf("%v came back as %v", spans, got)
		}
	}
}

func TestEndedSpansThatDoNotFitAreLeftOut(t *testing.T) {
	var spans []span
	for i := range int64(10_000) {
		spans = append(spans, span{2 * i, 2*i + 1})
	}
	text := encodeEnded(0, spans)
	got := decodeEnded(0, text)
	if len(text) > maxEnded+len(endedPrefix) || len(got) == 0 || !reflect.DeepEqual(got, spans[:len(got)]) {
		t.Errorf("%d bytes hold %d spans", len(text), len(got))
	}
}

func TestForeignMetadataSaysNothing(t *testing.T) {
	for _, m := range []string{"", "x", "ended:", "ended:!", "ended://///////////w", "ended:AAA"} {
		if got := decodeEnded(7, m); got != nil {
			t.Errorf("%q was read as %v", m, got)
		}
	}
}

// The next reader gets exactly the events that have not ended.
func TestEndedBeyondListsWhatEnded(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var w watermark
		w.begin(10)
		ended := map[int64]bool{}
		offset := int64(10)
		for range 100 {
			offset += 1 + rng.Int64N(2) // holes are markers and aborted events
			number := w.add(offset)
			if rng.IntN(2) == 0 {
				w.endEvent(number)
				ended[offset] = true
			}
		}
		spans := decodeEnded(w.next, encodeEnded(w.next, w.endedBeyond(maxEnded)))
		for o := w.next; o <= offset; o++ {
			if isCovered(spans, o) != ended[o] {
				t.Fatalf("offset %d: ended %v, listed %v", o, ended[o], !ended[o])
			}
		}
	}
}

// If reading stops within a span of ended events, the rest of the span stays ended.
func TestEndedSpansAreKeptWhereReadingStopsWithinThem(t *testing.T) {
	p := &inPartition{ended: []span{{2, 10}, {12, 14}}}
	p.mark.begin(0)
	p.mark.skipTo(5)
	if got, want := p.endedSpans(), []span{{5, 10}, {12, 14}}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v are left, want %v", got, want)
	}
}

// A written dead letter does not hide an open event at the same offset.
func TestALetterDoesNotEndTheEventAtItsOffset(t *testing.T) {
	var w watermark
	w.begin(10)
	w.add(10)
	w.add(11)
	w.endEvent(w.add(11)) // dead letter for bytes that were left after the event
	w.endEvent(w.add(12))
	if got, want := w.endedBeyond(maxEnded), []span{{12, 13}}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v have ended, want %v", got, want)
	}
	w.begin(20)
	w.add(20)
	w.endEvent(w.add(21))
	w.add(21)
	w.endEvent(w.add(22))
	if got, want := w.endedBeyond(maxEnded), []span{{22, 23}}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v have ended, want %v", got, want)
	}
}

// If the hook Assigned moves a partition during a transaction's rewind, all its events are read
// again.
func TestRewindToAnotherPlaceForgetsWhatHadEnded(t *testing.T) {
	c, p := bareReader(t, ConsumerOptions{}, nil)
	for offset, want := range map[int64]int{7: 1, 3: 0} {
		p.ended = []span{{9, 12}}
		p.c = c
		p.rewind(offset, origin{offset: 7})
		if len(p.ended) != want {
			t.Errorf("rewound to %d, %d spans are left", offset, len(p.ended))
		}
	}
}

func TestNotesSurviveTheirEncoding(t *testing.T) {
	long := strings.Repeat("ü", MaxNote/2)
	for _, note := range []string{"", "x", "a:b", "note1:3:", "ended:AAA", long} {
		for _, spans := range [][]span{nil, {{5, 9}, {12, 13}}} {
			got, ended := decodeMetadata(3, encodeMetadata(3, note, spans))
			if got != note || !reflect.DeepEqual(ended, spans) {
				t.Errorf("%q with %v came back as %q with %v", note, spans, got, ended)
			}
		}
	}
}

// Metadata from before notes existed, and metadata of other clients.
func TestMetadataWithoutANote(t *testing.T) {
	for metadata, want := range map[string][]span{
		encodeEnded(3, []span{{5, 9}}): {{5, 9}},
		"":                             nil, "x": nil, "note1": nil, "note1:": nil, "note1:3:ab": nil, "note1:-1:ab": nil, "note1:x:ab": nil, "note2:1:a": nil,
		"note1:99999999999999999999:a": nil,
	} {
		if note, spans := decodeMetadata(3, metadata); note != "" || !reflect.DeepEqual(spans, want) {
			t.Errorf("%q was read as %q with %v", metadata, note, spans)
		}
	}
}

func TestNotesSpansAndLivesFitTogether(t *testing.T) {
	var spans []span
	for i := range int64(10_000) {
		spans = append(spans, span{2 * i, 2*i + 1})
	}
	id := strings.Repeat("x", 11) + "." + strings.Repeat("x", 6)
	var l life
	for range 1<<(exactBits-lifeBits) - 1 {
		l = l.next(id)
	}
	if n := len(encodeMetadata(0, strings.Repeat("x", MaxNote), spans) + l.encode()); n > 4096 {
		t.Errorf("an offset has %d bytes of metadata, of which Kafka keeps 4096", n)
	}
}

// committedMetadata returns the offset and metadata that a group has committed for partition 0 of
// events.
func committedMetadata(t *testing.T, b *Broker) (offset int64, note string, spans []span) {
	t.Helper()
	tp := wire.TopicPartition{Topic: "prod.events"}
	known, err := b.committedOffsets(t.Context(), "prod.g", []wire.TopicPartition{tp})
	if err != nil {
		t.Fatal(err)
	}
	note, spans = decodeMetadata(known[tp].Offset, known[tp].Metadata)
	return known[tp].Offset, note, spans
}

// awaitNote waits until the note is committed.
func awaitNote(t *testing.T, b *Broker, want string) {
	t.Helper()
	for _, note, _ := committedMetadata(t, b); note != want; _, note, _ = committedMetadata(t, b) {
		if err := retry.Sleep(t.Context(), time.Millisecond); err != nil {
			t.Fatalf("%q is committed, want %q: %v", note, want, err)
		}
	}
}

// noteWhileOpen polls three events, of which the last has ended. It commits nothing itself.
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

// A note and the ended events share the metadata that Kafka keeps. The note takes precedence.
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
		if offset, note, spans := committedMetadata(t, b); offset != 1 || note != "mine" || spans != nil {
			t.Errorf("the group is at %d with %q and %v", offset, note, spans)
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

// The ended events beyond a note's offset are committed with the note.
func TestNoteCarriesWhatEndedBeyond(t *testing.T) {
	b, _, _, x, _ := noteWhileOpen(t, time.Hour)
	if err := x.Do(t.Context(), func(tx *Tx) error { tx.Note("events", 0, "mine"); return nil }); err != nil {
		t.Fatal(err)
	}
	if offset, note, spans := committedMetadata(t, b); offset != 0 || note != "mine" || !reflect.DeepEqual(spans, []span{{2, 3}}) {
		t.Errorf("the group is at %d with %q and %v", offset, note, spans)
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

// awaitHome waits until partition 0 of events is read, which is shortly after the call of the hook.
func awaitHome(t *testing.T, c *Consumer) {
	t.Helper()
	for _, err := c.mark(Position{Stream: "events.parked"}); err != nil; _, err = c.mark(Position{Stream: "events.parked"}) {
		if err := retry.Sleep(t.Context(), time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
}

// A note fails if its partition is given up between the note and the commit, even if the partition
// is taken again.
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
		if _, note, _ := committedMetadata(t, b); note != "" {
			t.Errorf("%q is committed", note)
		}
	}
}

// A partition keeps its note if the hook moves it or a transaction fails. An uncommitted note is
// forgotten.
func TestNoteOutlivesAbortsAndMoves(t *testing.T) {
	b, _ := parkedFake(t)
	publishAll(t, b, "events", "a", "b", "c")
	asked := make(chan []Position, 10)
	c, x := openTransactor(t, b, func(_ context.Context, at []Position) ([]Position, error) {
		asked <- at
		return []Position{{Stream: "events", Offset: at[0].Offset + 1}}, nil
	})
	if at := <-asked; at[0].Note != "" {
		t.Errorf("there is a note that was not made: %+v", at)
	}
	d := pollOne(t, c)
	if err := x.Do(t.Context(), func(tx *Tx) error { tx.Note("events", 0, "kept"); tx.Done(d); return nil }); err != nil {
		t.Fatal(err)
	}
	publishAll(t, b, "events", "d") // an event to which the hook can move the partition; reading beyond the end would start at the end
	offset, _, _ := committedMetadata(t, b)
	no := errors.New("no")
	if err := x.Do(t.Context(), func(tx *Tx) error { tx.Note("events", 0, "lost"); return no }); !errors.Is(err, no) {
		t.Fatal(err)
	}
	if at := <-asked; len(at) != 1 || at[0] != (Position{Stream: "events", Offset: offset, Note: "kept"}) {
		t.Errorf("asked where to go on from %+v", at)
	}
	for at := int64(0); at != offset+1; { // offset that the hook returned
		var note string
		if at, note, _ = committedMetadata(t, b); note != "kept" {
			t.Fatalf("offset %d has the note %q", at, note)
		}
		if err := retry.Sleep(t.Context(), time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
}
