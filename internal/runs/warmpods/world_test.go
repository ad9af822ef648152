package warmpods

import (
	"context"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"tidemill.dev"
)

const (
	patience = 2 * time.Minute
	long     = time.Hour // no test waits that long
)

// world holds a Redis and the lists of two gateways.
type world struct {
	*testing.T
	server   *miniredis.Miniredis
	one, two *Book
}

func newWorld(t *testing.T) *world {
	names, err := tidemill.NewNames("prod")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, server: miniredis.RunT(t)}
	book := func() *Book {
		client := redis.NewClient(&redis.Options{Addr: w.server.Addr(), Protocol: 2, DisableIdentity: true})
		t.Cleanup(func() { _ = client.Close() })
		return NewBook(client, names, "kafka-1")
	}
	w.one, w.two = book(), book()
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// waitUntil waits until a condition holds.
func (w *world) waitUntil(what string, is func() bool) {
	w.Helper()
	tick := time.NewTicker(5 * time.Millisecond) // no busy loop: other goroutines need the processor
	defer tick.Stop()
	for late := time.After(patience); !is(); {
		select {
		case <-tick.C:
		case <-late:
			w.Fatalf("waited in vain until %s", what)
		}
	}
}

// takePod takes a pod as soon as any pod waits.
func (w *world) takePod(b *Book, shape string) (p Pod) {
	w.Helper()
	w.waitUntil("a pod waits", func() (ok bool) {
		var err error
		p, ok, err = b.Take(w.Context(), shape)
		w.must(err)
		return ok
	})
	return p
}

// checkNone checks that no pod of a shape waits.
func (w *world) checkNone(b *Book, shape string) {
	w.Helper()
	if p, ok, err := b.Take(w.Context(), shape); ok || err != nil {
		w.Fatalf("took %+v, %v", p, err)
	}
}

// waitResult is the result of a wait.
type waitResult struct {
	Offer
	ok  bool
	err error
}

// startWait waits in the background.
func (w *world) startWait(ctx context.Context, b *Book, p Pod, d time.Duration) <-chan waitResult {
	got := make(chan waitResult, 1)
	go func() {
		o, ok, err := b.Wait(ctx, p, d)
		got <- waitResult{o, ok, err}
	}()
	return got
}

func (w *world) hears(got <-chan waitResult) waitResult {
	w.Helper()
	select {
	case h := <-got:
		w.must(h.err)
		return h
	case <-time.After(patience):
		w.Fatal("the wait does not end")
		return waitResult{}
	}
}

func pod(name string) Pod {
	return Pod{Name: name, Attempt: name + "-did-1", Pool: "gpu", Shape: "s", GPUs: 2}
}

func offer(name string) Offer { return Offer{Attempt: name, Token: "token of " + name} }
