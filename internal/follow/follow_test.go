package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"syscall"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
)

// patience ends a hang; it measures nothing.
const patience = 2 * time.Minute

const stream = "events"

// world is a laptop's Kafka, and what a follower has taken.
type world struct {
	*testing.T
	options embedded.Options
	servers *embedded.Servers
	b       *broker.Broker
	p       *broker.Producer

	mu    sync.Mutex
	taken map[string]int
}

func newWorld(t *testing.T, o embedded.Options) *world {
	t.Helper()
	w := &world{T: t, options: o, taken: map[string]int{}}
	w.serve()
	t.Cleanup(func() { _ = w.servers.Close() })
	names, err := tidemill.NewNames("")
	w.must(err)
	w.b, err = broker.Open(w.ctx(), broker.Options{Addr: w.servers.Kafka(), Names: names})
	w.must(err)
	t.Cleanup(func() { w.must(w.b.Close()) })
	w.grow(2)
	w.p, err = w.b.Producer(broker.ProducerOptions{})
	w.must(err)
	t.Cleanup(func() { _ = w.p.Close(context.Background()) })
	return w
}

func (w *world) serve() {
	w.Helper()
	ctx := w.ctx()
	for {
		s, err := embedded.Start(w.Context(), w.options)
		if err == nil {
			w.servers = s
			break
		}
		if !errors.Is(err, syscall.EADDRINUSE) || ctx.Err() != nil { // another process may have been given the port
			w.Fatal(err)
		}
		<-time.After(50 * time.Millisecond)
	}
	w.options.Kafka, w.options.Redis = w.servers.Kafka(), w.servers.Redis()
}

func (w *world) grow(partitions int) {
	w.Helper()
	_, err := w.b.EnsureStreams(w.ctx(), []broker.StreamSpec{{Name: stream, Partitions: partitions}}, broker.EnsureOptions{})
	w.must(err)
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

// publish publishes n events under as many keys.
func (w *world) publish(name string, n int) {
	w.Helper()
	for i := range n {
		_, err := w.p.Publish(w.ctx(), stream, &broker.View{ID: fmt.Sprint(name, "-", i), Source: "/x", Type: "t", Subject: fmt.Sprint("key-", i)})
		w.must(err)
	}
}

func (w *world) follow() *Follower {
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

// has waits until so many events have been taken, each once.
func (w *world) has(n int) {
	w.Helper()
	tick := time.NewTicker(2 * time.Millisecond) // leaves the processor to who takes them
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

func (w *world) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.taken)
}

func TestOpenReturnsWhenAllIsTaken(t *testing.T) {
	w := newWorld(t, embedded.Options{})
	w.publish("before", 30)
	w.follow()
	if n := w.count(); n != 30 {
		t.Errorf("%d of 30 had been taken", n)
	}
	w.publish("after", 10)
	w.has(40)
}

func TestAStreamMayGrowAndKafkaMayGo(t *testing.T) {
	w := newWorld(t, embedded.Options{Dir: t.TempDir()})
	w.publish("before", 10)
	w.follow()
	w.must(w.servers.Close())
	w.serve()
	w.publish("between", 10)
	w.has(20)
	w.grow(6)
	w.publish("after", 30)
	w.has(50)
}

func TestAFollowerReadsOnAfterAnError(t *testing.T) {
	w := newWorld(t, embedded.Options{})
	w.publish("before", 10)
	f := w.follow()
	w.must(f.consumer.Close(t.Context())) // as if the stream had been denied for a minute
	w.publish("after", 10)
	w.has(20)
}

func TestAStreamThatIsNotThereIsToldAtOnce(t *testing.T) {
	w := newWorld(t, embedded.Options{})
	_, err := Open(w.ctx(), w.b, Options{Stream: "none", Logger: slog.New(slog.DiscardHandler)})
	if !errors.Is(err, broker.ErrNoStream) {
		t.Errorf("it says %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Open(ended, w.b, Options{Stream: stream, Logger: slog.New(slog.DiscardHandler)}); err == nil {
		t.Error("nobody waits, and it was opened")
	}
}
