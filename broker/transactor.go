package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tidemill.dev/broker/internal/wire"
)

// Transactor consumes, transforms and produces exactly once: what a
// transaction sends and how far it has read become visible together or not at
// all.
//
// Two fences keep a zombie out. The transactional id belongs to the member's
// slot in its group, so whoever holds the slot next aborts what was left open;
// and offsets are committed in the name of the member and its generation, which
// Kafka refuses once the group has moved on.
type Transactor struct {
	c *Consumer
	p *Producer

	turn   chan struct{} // one transaction at a time; who fills it has it
	slot   int32
	opened bool // the slot's transactional id is ours, and nothing is open under it
}

// Transactor returns a transactor for the consumer's events. Close it after
// the last transaction: before the consumer, or behind it where
// ConsumerOptions.Leaving runs one.
func (c *Consumer) Transactor(o ProducerOptions) (*Transactor, error) {
	if c.member == nil {
		return nil, errors.New("a transactor needs a consumer with a group")
	}
	p, err := c.b.Producer(o)
	if err != nil {
		return nil, err
	}
	p.tx = &transaction{b: c.b, ident: noIdentity, included: map[*outPartition]bool{}}
	t := &Transactor{c: c, p: p, turn: make(chan struct{}, 1), slot: -1}
	c.member.mu.Lock()
	c.member.transactor = t
	c.member.mu.Unlock()
	c.running.Go(t.takeSlot)
	return t, nil
}

// takeSlot takes the transactional id without waiting for the first
// transaction: what the slot's former holder left open keeps Kafka from saying
// where the group is, and so keeps the first events from coming.
func (t *Transactor) takeSlot() {
	if t.await(t.c.ctx) != nil {
		return
	}
	defer t.leave()
	ctx, cancel := context.WithTimeout(t.c.ctx, 3*t.c.b.requestTimeout)
	defer cancel()
	if err := t.begin(ctx); err != nil && t.c.ctx.Err() == nil {
		t.c.b.log.Warn("the slot's transactional id could not be taken; the first transaction tries again", "group", t.c.member.group, "reason", err)
	}
}

// await waits for the turn, which whoever takes the slot may hold for as long as
// Kafka is away.
func (t *Transactor) await(ctx context.Context) error {
	select {
	case t.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t *Transactor) leave() { <-t.turn }

// Close ends the transactor's producer.
func (t *Transactor) Close(ctx context.Context) error { return t.p.Close(ctx) }

// ErrAborted says that a transaction has left no trace. Its deliveries have
// been taken back, and so have the homes of its marks and the partitions of its
// notes: these are read anew from where the group is, Assigned having been asked,
// and Poll returns what has not ended again, here or at their new reader. That
// goes for all deliveries of such a partition; those that the transaction was not given are
// still their caller's, to be ended for their memory's sake. So is every delivery
// where the function failed before it had given any, or was not called; none is
// taken back then.
var ErrAborted = errors.New("transaction aborted")

// Do runs one transaction. After an error nothing of it is visible to readers
// of committed events, unless the error wraps ErrInDoubt as well; even then
// this consumer reads on from where the log says that the group is.
func (t *Transactor) Do(ctx context.Context, fn func(*Tx) error) error {
	x := &Tx{t: t, outputs: outputsOf(t.p)}
	if err := t.await(ctx); err != nil {
		return fmt.Errorf("%w: wait for the slot's transactional id: %w", ErrAborted, err)
	}
	defer t.leave()
	if err := t.begin(ctx); err != nil {
		return t.abort(ctx, x, err)
	}
	// Should fn panic and its caller go on, the next transaction must not
	// commit what this one has sent: it opens the id anew.
	t.opened = false
	x.began = time.Now()
	if err := fn(x); err != nil {
		return t.abort(ctx, x, err)
	}
	places, err := t.places(ctx, x)
	if err != nil {
		return t.abort(ctx, x, err)
	}
	defer t.c.member.reserve(places, x.marks)()
	if err := t.prepare(ctx, x, places); err != nil {
		return t.abort(ctx, x, err)
	}
	if len(places) > 0 || len(x.marks) > 0 || t.p.tx.touched() {
		if err := t.p.tx.commit(ctx); err != nil {
			return t.abort(ctx, x, err)
		}
		t.committed(x, places)
	}
	t.opened = true
	x.tell()
	return nil
}

// prepare waits for the answers to what was sent, and meanwhile puts the offsets
// into the transaction: neither counts before its end. What is sent comes first,
// since the coordinator takes up one thing of a transaction at a time.
func (t *Transactor) prepare(ctx context.Context, x *Tx, places map[wire.TopicPartition]*txPlace) error {
	begun := t.p.tx.begun()
	flushed := make(chan error, 1)
	go func() { flushed <- t.p.complete(ctx) }()
	select {
	case <-begun:
	case err := <-flushed:
		if err != nil {
			return err
		}
		flushed <- nil
	}
	err := t.commit(ctx, x, places)
	if failed := <-flushed; failed != nil {
		return failed // from which the other follows
	}
	return err
}

// complete waits until all that the open transaction sends has got its answer,
// and tells whether it may be committed.
func (p *Producer) complete(ctx context.Context) error {
	if err := p.Flush(ctx); err != nil {
		return err
	}
	return p.tx.faulty()
}

// begin takes the slot's transactional id, unless it is held already.
func (t *Transactor) begin(ctx context.Context) error {
	slot, err := t.awaitSlot(ctx)
	if err != nil {
		return err
	}
	if t.opened && slot == t.slot {
		t.p.tx.begin()
		return nil
	}
	// What an aborted transaction could not rid itself of in time must not
	// become part of the next.
	if err := t.p.Flush(ctx); err != nil {
		return fmt.Errorf("end the former transaction: %w", err)
	}
	t.p.tx.id = t.c.b.names.Transactional(t.c.opt.Group, int(slot))
	if err := t.p.tx.open(ctx); err != nil {
		return err
	}
	t.p.relabelAll()
	t.slot, t.opened = slot, true
	return nil
}

func (t *Transactor) awaitSlot(ctx context.Context) (int32, error) {
	var w backoff
	for {
		if _, _, slot, ok := t.c.member.snapshot(); ok {
			return slot, nil
		}
		if err := w.wait(ctx); err != nil {
			return 0, fmt.Errorf("wait for a place in group %s: %w", t.c.opt.Group, err)
		}
	}
}

func (m *member) snapshot() (id string, generation, slot int32, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.id, m.generation, m.slot, m.generation >= 0
}

// relabelAll makes every partition begin anew under the new identity. Nothing
// is queued at that point.
func (p *Producer) relabelAll() {
	for _, topic := range *p.topics.Load() {
		for _, o := range topic.all() {
			o.mu.Lock()
			o.id = noIdentity
			o.mu.Unlock()
		}
	}
}
