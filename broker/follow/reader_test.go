package follow

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
)

func TestReadsToTheEndInTheOrderOfTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, serve(t, embedded.Options{}).Kafka(), 8)
	w.publish("a", 500)
	r := w.open(ReaderOptions{Start: broker.Earliest(), ToEnd: true})
	w.publish("late", 10)
	all, latest := 0, map[int32]int64{}
	for {
		batch, err := r.Next(w.ctx())
		if errors.Is(err, io.EOF) {
			break
		}
		w.must(err)
		all += len(batch)
		// A batch holds the records that have arrived; on a busy machine they may be of
		// one partition.
		if !slices.IsSortedFunc(batch, func(a, b Event) int { return a.Received.Compare(b.Received) }) {
			t.Error("not in the order of time")
		}
		for _, e := range batch {
			if next, ok := latest[e.Partition]; ok && e.Offset != next {
				t.Errorf("offset %d of partition %d comes where %d should", e.Offset, e.Partition, next)
			}
			latest[e.Partition] = e.Next
		}
	}
	if all != 500 {
		t.Errorf("%d events, want the 500 that were there", all)
	}
	// Another reader resumes at the place where this one ended.
	if late := w.restOfEvents(w.open(ReaderOptions{Resume: r.Place(), ToEnd: true})); len(late) != 10 {
		t.Errorf("%d events after the end, want 10", len(late))
	}
}

func TestReadsWhatComes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, serve(t, embedded.Options{}).Kafka(), 4)
	w.publish("before", 10)
	r := w.open(ReaderOptions{Start: broker.Latest()})
	began := r.Place()
	w.publish("a", 1)
	e := w.nextBatch(r)[0]
	if e.ID != "a-0" || e.Err != nil || e.Stream != stream || e.Received.IsZero() || w.there[place{e.Partition, e.Offset}] != e.ID {
		t.Errorf("%+v", e)
	}
	began.Set(e.Partition, e.Next)
	if got := r.Place(); !slices.Equal(got, began) || e.Next != e.Offset+1 {
		t.Errorf("the place is %v, want %v", got, began)
	}
}

// A reader that stops in the middle of a batch needs each partition's events in the log's
// order: otherwise its place would skip some.
func TestOrderWithinAPartitionIsTheLogs(t *testing.T) {
	t.Parallel()
	second := func(n int64) time.Time { return time.Unix(n, 0) }
	batch := inOrder([]Event{
		{Partition: 0, Offset: 1, at: second(5)}, {Partition: 0, Offset: 2, at: second(3)}, {Partition: 0, Offset: 3, at: second(6)},
		{Partition: 1, Offset: 1, at: second(4)}, {Partition: 1, Offset: 2}, {Partition: 1, Offset: 3, at: second(7)},
	})
	var got []place
	for _, e := range batch {
		got = append(got, place{e.Partition, e.Offset})
	}
	want := []place{{1, 1}, {1, 2}, {0, 1}, {0, 2}, {0, 3}, {1, 3}}
	if !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}

// A partition that was added after the ends were read shows no events and does not delay the end.
func TestToTheEndPassesAddedPartitions(t *testing.T) {
	t.Parallel()
	r := &Reader{ends: map[int32]int64{0: 1}, toEnd: true}
	d := &broker.Delivery{Partition: 1, Events: make([]broker.Incoming, 2)}
	if got := r.copyRecords(nil, d); len(got) != 0 {
		t.Errorf("%d events of it are shown", len(got))
	}
	if at := r.limitToEnd(1, 2); at != Beginning {
		t.Errorf("another would go on at %d", at)
	}
}

func TestNoSuchStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t, serve(t, embedded.Options{}).Kafka(), 1)
	if _, err := OpenReader(w.ctx(), w.b, ReaderOptions{Stream: "nothing"}); !errors.Is(err, broker.ErrNoStream) || !strings.Contains(err.Error(), "nothing") {
		t.Errorf("error %v", err)
	}
}

func TestNextObeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t, serve(t, embedded.Options{}).Kafka(), 1)
	r := w.open(ReaderOptions{Start: broker.Latest()})
	if batch, err := r.Next(w.ctx()); err != nil || len(batch) != 0 {
		t.Errorf("of nothing: %v, %v", batch, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	w.must(r.Close(w.ctx()))
	if _, err := r.Next(w.ctx()); !errors.Is(err, broker.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
