package follow

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
)

// followerWorld is a stream on servers that may be restarted, with the events that a
// follower has taken.
type followerWorld struct {
	*testWorld
	options embedded.Options
	servers *embedded.Servers

	mu    sync.Mutex
	taken map[string]int
}

func newFollowerWorld(t *testing.T, o embedded.Options) *followerWorld {
	t.Helper()
	w := &followerWorld{options: o, taken: map[string]int{}}
	w.serve(t)
	w.testWorld = newWorld(t, w.servers.Kafka(), 2)
	return w
}

func (w *followerWorld) serve(t *testing.T) {
	t.Helper()
	w.servers = serve(t, w.options)
	w.options.Kafka, w.options.Redis = w.servers.Kafka(), w.servers.Redis()
}

func (w *followerWorld) follow() *Follower {
	w.Helper()
	f, err := Open(w.ctx(), w.b, Options{Stream: stream, Logger: slog.New(slog.DiscardHandler), Take: func(d *broker.Delivery) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for i := range d.Events {
			w.taken[d.Events[i].Clone().ID]++
		}
	}})
	w.must(err)
	w.Cleanup(func() { w.must(f.Close(context.Background())) })
	return f
}

// waitTaken waits until n events have been taken, each once.
func (w *followerWorld) waitTaken(n int) {
	w.Helper()
	tick := time.NewTicker(2 * time.Millisecond) // polling slowly leaves the processor to the follower
	defer tick.Stop()
	for ctx := w.ctx(); w.count() < n; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			w.Fatalf("%d of %d events were taken", w.count(), n)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, times := range w.taken {
		if times != 1 {
			w.Errorf("%s was taken %d times", id, times)
		}
	}
}

func (w *followerWorld) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.taken)
}

func TestOpenReturnsWhenAllIsTaken(t *testing.T) {
	w := newFollowerWorld(t, embedded.Options{})
	w.publish("before", 30)
	w.follow()
	if n := w.count(); n != 30 {
		t.Errorf("%d of 30 had been taken", n)
	}
	w.publish("after", 10)
	w.waitTaken(40)
}

func TestAStreamMayGrowAndKafkaMayGo(t *testing.T) {
	w := newFollowerWorld(t, embedded.Options{Dir: t.TempDir()})
	w.publish("before", 10)
	w.follow()
	w.must(w.servers.Close())
	w.serve(t)
	w.publish("between", 10)
	w.waitTaken(20)
	w.grow(6)
	w.publish("after", 30)
	w.waitTaken(50)
}

func TestAFollowerReadsOnAfterAnError(t *testing.T) {
	w := newFollowerWorld(t, embedded.Options{})
	w.publish("before", 10)
	f := w.follow()
	w.must(f.consumer.Close(t.Context())) // simulates an end of the consumer, such as a stream denied for a minute
	w.publish("after", 10)
	w.waitTaken(20)
}

func TestAStreamThatIsNotThereIsToldAtOnce(t *testing.T) {
	w := newFollowerWorld(t, embedded.Options{})
	_, err := Open(w.ctx(), w.b, Options{Stream: "none", Logger: slog.New(slog.DiscardHandler)})
	if !errors.Is(err, broker.ErrNoStream) {
		t.Errorf("it says %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Open(ended, w.b, Options{Stream: stream, Logger: slog.New(slog.DiscardHandler)}); err == nil {
		t.Error("the context is over, and it was opened")
	}
}
