package brokertest

import (
	"context"
	"errors"
	"sync/atomic"

	"tidemill.dev/broker"
)

func (w *world) exclusive(name string) *broker.Exclusive {
	w.Helper()
	e, err := w.open().Exclusive(w.ctx(), name, broker.ProducerOptions{})
	w.must(err)
	w.Cleanup(func() {
		ctx, cancel := closing()
		defer cancel()
		if err := e.Close(ctx); err != nil {
			w.Errorf("close the exclusive producer: %v", err)
		}
	})
	return e
}

// tick sends number n and marks it as done.
func (w *world) tick(ctx context.Context, e *broker.Exclusive, n int, during func() error) error {
	return e.Do(ctx, func(x *broker.ExclusiveTx) error {
		x.Send(ctx, "ticks", event("tick", n))
		x.Mark("g", broker.Position{Stream: "clock", Offset: 4711})
		x.Mark("g", broker.Position{Stream: "clock", Offset: int64(n + 1)})
		x.Mark("h", broker.Position{Stream: "clock", Offset: int64(n + 101)})
		return during()
	})
}

func fine() error { return nil }

// The last producer that opens a name owns it. The previous owner gets ErrSuperseded from
// then on, and its open transaction leaves no events.
func exclusiveOne(w *world) {
	w.stream("ticks", 2)
	w.stream("clock", 1)
	a := w.exclusive("clock")
	w.must(w.tick(w.ctx(), a, 0, fine))
	w.wantErr(w.tick(w.ctx(), a, 1, func() error { return errNo }), broker.ErrAborted)
	w.must(w.tick(w.ctx(), a, 1, fine))
	var b *broker.Exclusive
	err := w.tick(w.ctx(), a, 2, func() error {
		w.soon("the third is on the log", func() bool { return w.end("ticks") >= 3 })
		b = w.exclusive("clock")
		return nil
	})
	w.wantErr(err, broker.ErrSuperseded)
	w.wantErr(err, broker.ErrAborted)
	for n := range 3 {
		w.must(w.tick(w.ctx(), b, 2+n, fine))
		w.wantErr(w.tick(w.ctx(), a, 9, func() error { return errors.New("called") }), broker.ErrSuperseded)
	}
	w.wantTicks(5)
}

// wantTicks checks that each tick is on the stream once, and that the committed offsets
// of both groups agree.
func (w *world) wantTicks(n int) {
	w.Helper()
	count := map[string]int{}
	for _, e := range w.log("ticks") {
		count[e.id]++
	}
	for i := range n {
		if id := event("tick", i).ID; count[id] != 1 {
			w.Errorf("%s is there %d times", id, count[id])
		}
	}
	if len(count) != n {
		w.Errorf("%d are there, want %d", len(count), n)
	}
	for group, want := range map[string]int64{"g": int64(n), "h": int64(n + 100)} {
		all, err := w.b.Committed(w.ctx(), group, []broker.Position{{Stream: "clock"}})
		if w.must(err); all[0].Offset != want {
			w.Errorf("group %s is at %d, want %d", group, all[0].Offset, want)
		}
	}
}

// A producer that was superseded during a failed transaction does not take the name back
// to clean up.
func exclusiveStays(w *world) {
	w.stream("ticks", 2)
	w.stream("clock", 1)
	a := w.exclusive("clock")
	var b *broker.Exclusive
	w.wantErr(w.tick(w.ctx(), a, 0, func() error { b = w.exclusive("clock"); return errNo }), errNo)
	w.must(w.tick(w.ctx(), b, 0, fine))
	w.wantErr(w.tick(w.ctx(), a, 7, fine), broker.ErrSuperseded)
	w.must(w.tick(w.ctx(), b, 1, fine))
	w.wantTicks(2)
}

// Across restarts of the server, the committed offset decides each uncertain outcome, and
// every tick is there once.
func restartExclusive(w *world) {
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
			err := w.tick(w.Context(), e, int(n.Load()), fine)
			switch {
			case errors.Is(err, broker.ErrSuperseded): // Kafka was away for longer than a transaction may take
				e = w.exclusive("clock")
			case err != nil && !errors.Is(err, broker.ErrAborted):
				w.Error(err)
				return
			}
			if err != nil {
				all, err := w.b.Committed(w.ctx(), "g", []broker.Position{{Stream: "clock"}})
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
	w.soon("ticks are there", func() bool { return n.Load() > 20 })
	w.disturb()
	after := n.Load()
	w.soon("more ticks are there", func() bool { return n.Load() > after+20 })
	close(stop)
	<-stopped
	w.wantTicks(int(n.Load()))
}
