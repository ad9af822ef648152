package follow

import (
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"

	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
)

// again deletes the stream and creates it again.
func (w *testWorld) again(servers *embedded.Servers, partitions int) {
	w.Helper()
	w.must(servers.Cluster().DeleteTopic("tidemill." + stream))
	w.grow(partitions)
}

// A reader stops at the end that the stream had, even if the stream is created again and does not reach it.
func TestAReaderEndsWhenItsStreamIsCreatedAgain(t *testing.T) {
	t.Parallel()
	servers := serve(t, embedded.Options{})
	w := newWorld(t, servers.Kafka(), 1)
	w.publish("before", 40)
	r := w.open(ReaderOptions{Start: broker.Latest(), ToEnd: true})
	r.ends[0] = 50 // as if it had ten events to read
	w.again(servers, 1)
	w.publish("after", 5)
	cuts := 0
	for {
		batch, err := r.Next(w.ctx())
		if errors.Is(err, io.EOF) {
			break
		}
		w.must(err)
		for _, e := range batch {
			if cuts++; !errors.Is(e.Err, broker.ErrCut) {
				t.Errorf("%s of the new stream comes", e.ID)
			}
		}
	}
	if cuts != 1 {
		t.Errorf("%d events say that the stream was created again", cuts)
	}
}

// A reader that goes on later comes to the end of a stream that was created again.
func TestToTheEndOfAStreamCreatedAgain(t *testing.T) {
	t.Parallel()
	servers := serve(t, embedded.Options{})
	w := newWorld(t, servers.Kafka(), 1)
	r := w.open(ReaderOptions{Start: broker.Earliest()})
	for turn, n := range []int{10, 5, 30} {
		if turn > 0 {
			w.again(servers, 1)
		}
		w.publish("a", n)
		var got []string
		for len(got) < n { // the place in the old stream may be after the end of this one
			w.must(ReadToEnd(w.ctx(), w.b, stream, r, func(e *Event) { got = append(got, strings.Clone(e.ID)) }))
		}
		if len(got) != n {
			t.Errorf("stream %d: %d events, want %d", turn, len(got), n)
		}
	}
}

// A follower takes all events of a stream that was created again and is longer than its place.
func TestAFollowersStreamIsCreatedAgain(t *testing.T) {
	w := newFollowerWorld(t, embedded.Options{})
	f, err := Open(w.ctx(), w.b, Options{Stream: stream, Logger: slog.New(slog.DiscardHandler), Take: func(d *broker.Delivery) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for i := range d.Events {
			if e := &d.Events[i]; e.Err == nil {
				w.taken[strings.Clone(e.ID)]++
			}
		}
	}})
	w.must(err)
	w.publish("before", 40)
	w.waitTaken(40)
	w.again(w.servers, 2)
	w.publish("after", 90)
	w.waitTaken(130)
	w.must(f.Close(w.ctx()))
}
