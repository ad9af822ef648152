package remote

import (
	"context"
	"sync"

	"tidemill.dev/broker"
)

// What one request carries. Larger ones gain nothing and wait longer for their
// answer; the gateway's limits, and those of most proxies, are above.
const (
	batchEvents = 2000
	batchBytes  = 768 << 10
)

// Batcher publishes many events in batches. One is under way at a time, so that
// all events stay in order, and the next fills meanwhile: a slow caller's events
// go alone, a fast one's in full batches. It is safe for concurrent use.
type Batcher struct {
	g      *Gateway
	stream string

	mu      sync.Mutex
	filling *batch
	busy    bool          // a batch is under way
	moved   chan struct{} // closed and replaced each time that there is more room or less under way
	wake    chan struct{}
	closed  bool

	ctx     context.Context // of the requests; ended by Close
	stop    context.CancelCauseFunc
	running sync.WaitGroup
}

// Batcher publishes to a stream, or, if it is empty, each event to the home of
// its type. Close it.
func (g *Gateway) Batcher(stream string) *Batcher {
	b := &Batcher{g: g, stream: stream, filling: &batch{}, moved: make(chan struct{}), wake: make(chan struct{}, 1)}
	b.ctx, b.stop = context.WithCancelCause(context.Background())
	b.running.Go(b.run)
	return b
}

// Send hands an event over and returns; it waits only while the next batch is
// full, as long as the context allows. The event's bytes are copied. done is
// called once, from another goroutine or this one, and must not block.
func (b *Batcher) Send(ctx context.Context, v *broker.View, done func(Receipt, error)) {
	err := v.Validate()
	if err == nil {
		err = b.put(ctx, v, done)
	}
	if err != nil {
		done(Receipt{}, ofEvent(b.stream, v.ID, err))
	}
}

func (b *Batcher) put(ctx context.Context, v *broker.View, done func(Receipt, error)) error {
	for {
		moved, err := b.tryPut(v, done)
		if err != nil || moved == nil {
			return err
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// tryPut gives what to wait for if the batch is full.
func (b *Batcher) tryPut(v *broker.View, done func(Receipt, error)) (moved <-chan struct{}, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return nil, broker.ErrClosed
	case len(b.filling.events) >= batchEvents || len(b.filling.body) >= batchBytes:
		return b.moved, nil
	}
	b.filling.add(v, done)
	select {
	case b.wake <- struct{}{}:
	default:
	}
	return nil, nil
}

func (b *Batcher) run() {
	for {
		select {
		case <-b.wake:
		case <-b.ctx.Done():
			return
		}
		for full := b.take(); full != nil; full = b.take() {
			b.g.publishing().send(b.ctx, b.stream, full)
		}
	}
}

// take is the next batch, nil if there is none: then nothing is under way.
func (b *Batcher) take() *batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.moved)
	b.moved = make(chan struct{})
	if b.busy = len(b.filling.events) > 0; !b.busy {
		return nil
	}
	full := b.filling
	b.filling = &batch{}
	return full
}

// Flush waits until every event that was sent has its answer.
func (b *Batcher) Flush(ctx context.Context) error {
	for {
		b.mu.Lock()
		moved, none := b.moved, !b.busy && len(b.filling.events) == 0
		b.mu.Unlock()
		if none {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Close flushes, as long as the context allows, and ends the batcher. Events
// that have no answer by then get an error.
func (b *Batcher) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	err := b.Flush(ctx)
	b.stop(broker.ErrClosed)
	b.running.Wait()
	b.mu.Lock()
	left := b.filling
	b.filling = &batch{}
	b.mu.Unlock()
	left.fail(b.stream, broker.ErrClosed)
	return err
}
