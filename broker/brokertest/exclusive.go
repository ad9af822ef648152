package brokertest

import (
	"context"
	"errors"
	"sync/atomic"

	"tidemill.dev/broker"
)

func (w *testWorld) exclusive(name string) *broker.Exclusive {
	w.Helper()
	e, err := w.reopen().Exclusive(w.testContext(), name, broker.ProducerOptions{})
	w.must(err)
	w.Cleanup(func() {
		ctx, cancel := cleanupContext()
		defer cancel()
		if err := e.Close(ctx); err != nil {
			w.Errorf("close the exclusive producer: %v", err)
		}
	})
	return e
}

// sendNumber sends number n and marks it as done.
func (w *testWorld) sendNumber(ctx context.Context, e *broker.Exclusive, n int, during func() error) error {
	return e.Do(ctx, func(x *broker.ExclusiveTx) error {
		x.Send(ctx, "ticks", testEvent("tick", n))
		x.Mark("g", broker.Position{Stream: "clock", Offset: 4711})
		x.Mark("g", broker.Position{Stream: "clock", Offset: int64(n + 1)})
		x.Mark("h", broker.Position{Stream: "clock", Offset: int64(n + 101)})
		return during()
	})
}

func fine() error { return nil }

// The last producer that opens a name owns it. The previous owner gets ErrSuperseded from
// then on, and its open transaction leaves no events.
func exclusiveOne(w *testWorld) {
	w.stream("ticks", 2)
	w.stream("clock", 1)
	a := w.exclusive("clock")
	w.must(w.sendNumber(w.testContext(), a, 0, fine))
	w.wantErr(w.sendNumber(w.testContext(), a, 1, func() error { return errNo }), broker.ErrAborted)
	w.must(w.sendNumber(w.testContext(), a, 1, fine))
	var b *broker.Exclusive
	err := w.sendNumber(w.testContext(), a, 2, func() error {
		w.pollUntil("the third is on the log", func() bool { return w.endOffset("ticks") >= 3 })
		b = w.exclusive("clock")
		return nil
	})
	w.wantErr(err, broker.ErrSuperseded)
	w.wantErr(err, broker.ErrAborted)
	for n := range 3 {
		w.must(w.sendNumber(w.testContext(), b, 2+n, fine))
		w.wantErr(w.sendNumber(w.testContext(), a, 9, func() error { return errors.New("called") }), broker.ErrSuperseded)
	}
	w.wantTicks(5)
}

// wantTicks checks that each tick is on the stream once, and that the committed offsets
// of both groups agree.
func (w *testWorld) wantTicks(n int) {
	w.Helper()
	count := map[string]int{}
	for _, e := range w.committedLog("ticks") {
		count[e.id]++
	}
	for i := range n {
		if id := testEvent("tick", i).ID; count[id] != 1 {
			w.Errorf("%s is there %d times", id, count[id])
		}
	}
	if len(count) != n {
		w.Errorf("%d are there, want %d", len(count), n)
	}
	for group, want := range map[string]int64{"g": int64(n), "h": int64(n + 100)} {
		all, err := w.b.Committed(w.testContext(), group, []broker.Position{{Stream: "clock"}})
		if w.must(err); all[0].Offset != want {
			w.Errorf("group %s is at %d, want %d", group, all[0].Offset, want)
		}
	}
}

// A producer that was superseded during a failed transaction does not take the name back
// to clean up.
func exclusiveStays(w *testWorld) {
	w.stream("ticks", 2)
	w.stream("clock", 1)
	a := w.exclusive("clock")
	var b *broker.Exclusive
	w.wantErr(w.sendNumber(w.testContext(), a, 0, func() error { b = w.exclusive("clock"); return errNo }), errNo)
	w.must(w.sendNumber(w.testContext(), b, 0, fine))
	w.wantErr(w.sendNumber(w.testContext(), a, 7, fine), broker.ErrSuperseded)
	w.must(w.sendNumber(w.testContext(), b, 1, fine))
	w.wantTicks(2)
}

// Across restarts of the server, the committed offset shows the outcome of each uncertain
// transaction, and every tick is on the stream once.
func restartExclusive(w *testWorld) {
	w.stream("ticks", 2)
	w.stream("clock", 1)
	e := w.exclusive("clock")
	var n atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	w.Cleanup(func() { <-stopped })
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-w.Context().Done():
				return
			default:
			}
			err := w.sendNumber(w.Context(), e, int(n.Load()), fine)
			switch {
			case errors.Is(err, broker.ErrSuperseded): // Kafka was away for longer than a transaction may take
				e = w.exclusive("clock")
			case err != nil && !errors.Is(err, broker.ErrAborted):
				w.Error(err)
				return
			}
			if err != nil {
				all, err := w.b.Committed(w.testContext(), "g", []broker.Position{{Stream: "clock"}})
				if err != nil {
					w.Error(err)
					return
				}
				n.Store(max(0, all[0].Offset))
				continue
			}
			n.Add(1)
		}
	}()
	w.pollUntil("ticks are there", func() bool { return n.Load() > 20 })
	w.disturb()
	after := n.Load()
	w.pollUntil("more ticks are there", func() bool { return n.Load() > after+20 })
	close(stop)
	<-stopped
	w.wantTicks(int(n.Load()))
}
