package follow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
)

// waitLimit bounds waits; it only ends hangs.
const waitLimit = 2 * time.Minute

// testWorld is a laptop's Kafka with one stream.
type testWorld struct {
	*testing.T
	b *broker.Broker
	p *broker.Producer

	mu    sync.Mutex
	there map[place]string // ids of the events on the stream
}

type place struct {
	partition int32
	offset    int64
}

const stream = "events"

func serve(t *testing.T, o embedded.Options) *embedded.Servers {
	t.Helper()
	s, err := embedded.Start(t.Context(), o)
	for late := time.Now().Add(waitLimit); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(late); { // another process may have been given our former port
		<-time.After(50 * time.Millisecond)
		s, err = embedded.Start(t.Context(), o)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func newWorld(t *testing.T, addr string, partitions int) *testWorld {
	t.Helper()
	w := &testWorld{T: t, there: map[place]string{}}
	names, err := tidemill.NewNames("")
	w.must(err)
	w.b, err = broker.Open(w.ctx(), broker.Options{Addr: addr, Names: names})
	w.must(err)
	t.Cleanup(func() { w.must(w.b.Close()) })
	w.grow(partitions)
	w.p, err = w.b.Producer(broker.ProducerOptions{})
	w.must(err)
	t.Cleanup(func() { w.must(w.p.Close(context.Background())) })
	return w
}

func (w *testWorld) ctx() context.Context {
	ctx, cancel := context.WithTimeout(w.Context(), waitLimit)
	w.Cleanup(cancel)
	return ctx
}

func (w *testWorld) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *testWorld) grow(partitions int) {
	w.Helper()
	_, err := w.b.EnsureStreams(w.ctx(), []broker.StreamSpec{{Name: stream, Partitions: partitions}}, broker.EnsureOptions{})
	w.must(err)
}

// publish publishes n events with as many keys and waits for the acknowledgements.
func (w *testWorld) publish(name string, n int) {
	w.Helper()
	var all sync.WaitGroup
	for i := range n {
		v := broker.View{ID: fmt.Sprint(name, "-", i), Source: "/tail", Type: "t", Subject: fmt.Sprint("key-", i)}
		all.Add(1)
		w.p.Send(w.ctx(), stream, &v, func(r broker.Receipt, err error) {
			defer all.Done()
			if err != nil {
				w.Errorf("publish %s: %v", v.ID, err)
				return
			}
			w.mu.Lock()
			w.there[place{r.Partition, r.Offset}] = v.ID
			w.mu.Unlock()
		})
	}
	all.Wait()
}

func (w *testWorld) open(o ReaderOptions) *Reader {
	w.Helper()
	o.Stream = stream
	r, err := OpenReader(w.ctx(), w.b, o)
	w.must(err)
	w.Cleanup(func() { _ = r.Close(context.Background()) })
	return r
}

// restOfEvents returns all events up to the reader's end.
func (w *testWorld) restOfEvents(r *Reader) (all []Event) {
	w.Helper()
	for ctx := w.ctx(); ; {
		batch, err := r.Next(ctx)
		if errors.Is(err, io.EOF) {
			return all
		}
		w.must(err)
		all = append(all, batch...)
	}
}

// nextBatch returns the next batch of a reader without an end.
func (w *testWorld) nextBatch(r *Reader) []Event {
	w.Helper()
	for ctx := w.ctx(); ; {
		batch, err := r.Next(ctx)
		w.must(err)
		if len(batch) > 0 {
			return batch
		}
	}
}
