package broker

import (
	"context"
	"sync"
)

// budget bounds the bytes of events without an answer and counts those events,
// both under one lock, because every event takes and gives both. Whoever finds
// it spent waits until an acknowledgement gives some back: that is the
// back-pressure. Close waits until no event is counted.
type budget struct {
	mu      sync.Mutex
	left    int64
	events  int
	closed  bool
	waiting []waiter
	idle    chan struct{} // closed when events falls to zero; nil while nobody waits for that
}

type waiter struct {
	n     int64
	ready chan struct{}
}

// take takes n bytes for one event. An event larger than the whole budget
// passes when nothing else is buffered, so that it is slow rather than stuck.
func (b *budget) take(ctx, closed context.Context, n int64) error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return ErrClosed
	}
	if len(b.waiting) == 0 && b.left > 0 {
		b.left -= n
		b.events++
		b.mu.Unlock()
		return nil
	}
	w := waiter{n, make(chan struct{})}
	b.waiting = append(b.waiting, w)
	b.mu.Unlock()

	var err error
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-closed.Done():
		err = context.Cause(closed)
	}
	if !b.forget(w) {
		b.give(n, 1) // it became ready in the same moment
	}
	return err
}

// give returns the bytes of events that have their answer, and lets in who
// waits, in order. Those are counted before anyone can find the budget idle, so
// Close does not overlook them.
func (b *budget) give(n int64, events int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += n
	b.events -= events
	for len(b.waiting) > 0 && b.left > 0 {
		w := b.waiting[0]
		b.waiting = b.waiting[1:]
		b.left -= w.n
		b.events++
		close(w.ready)
	}
	if b.events == 0 && b.idle != nil {
		close(b.idle)
		b.idle = nil
	}
}

func (b *budget) forget(w waiter) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.waiting {
		if b.waiting[i].ready == w.ready {
			b.waiting = append(b.waiting[:i:i], b.waiting[i+1:]...)
			return true
		}
	}
	return false
}

// close lets nobody take any more. Who waits already still gets in.
func (b *budget) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
}

// none tells whether every event has its answer.
func (b *budget) none() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.events == 0
}

// wait waits until every event has its answer.
func (b *budget) wait(ctx context.Context) error {
	b.mu.Lock()
	if b.events == 0 {
		b.mu.Unlock()
		return nil
	}
	if b.idle == nil {
		b.idle = make(chan struct{})
	}
	idle := b.idle
	b.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
