package broker

import (
	"context"
	"sync"
)

// budget limits the bytes of events without an answer, and counts these events. One lock guards the
// bytes and the count, because every event changes both. While no budget is left, senders wait
// until acknowledgements return some bytes. This wait is the back-pressure. Close waits until no
// event is counted.
type budget struct {
	mu      sync.Mutex
	left    int64
	events  int
	closed  bool
	waiting []waiter
	idle    chan struct{} // closed when events becomes zero; nil if Close does not wait
}

type waiter struct {
	n     int64
	ready chan struct{}
}

// take takes n bytes for one event. An event larger than the whole budget is admitted as soon as
// any budget is left, because it would otherwise wait for ever.
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
		b.give(n, 1) // the event was admitted at the same moment
	}
	return err
}

// give returns the bytes of answered events and admits waiting events in order. give counts the
// admitted events before it checks for idle, so that Close does not miss them.
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

// close refuses new events. Events that wait already are still admitted.
func (b *budget) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
}

// isEmpty reports whether every event has its answer.
func (b *budget) isEmpty() bool {
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
