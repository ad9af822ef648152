package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

// Transactor consumes, transforms and produces exactly once. The outputs of a transaction and the
// offsets of its inputs become visible together or not at all.
//
// Two fences stop a zombie. The transactional id belongs to the member's slot in its group, so the
// next holder of the slot aborts an open transaction. And offsets are committed with the member's
// id and generation, which Kafka refuses after the group has moved on.
type Transactor struct {
	c *Consumer
	p *Producer

	turn   chan struct{} // full while a transaction runs, so that there is one at a time
	slot   int32
	opened bool // whether we hold the slot's transactional id, with no transaction open
}

// Transactor returns a transactor for the consumer's events. Close it after the last transaction
// and before the consumer, or after the consumer if ConsumerOptions.Leaving runs a transaction.
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

// takeSlot takes the transactional id without waiting for the first transaction. An open
// transaction of the slot's former holder would delay Kafka's answer about the group's offsets, and
// so the first events.
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

// await waits for its turn. takeSlot may hold the turn for as long as Kafka does not answer.
func (t *Transactor) await(ctx context.Context) error {
	select {
	case t.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t *Transactor) leave() { <-t.turn }

// Close closes the transactor's producer.
func (t *Transactor) Close(ctx context.Context) error { return t.p.Close(ctx) }

// ErrAborted means that a transaction had no effect. The partitions of its deliveries and notes,
// and the homes of its marks, are read again from the group's committed offsets, after a call of
// Assigned. Poll then returns the events that have not ended, here or at the partition's new
// reader. This holds for all deliveries of such a partition. The caller must still end deliveries
// that it did not give to the transaction, to free their memory. If the function was not called, or
// failed before it gave any delivery, no partition is read again and the caller keeps its
// deliveries.
var ErrAborted = errors.New("transaction aborted")

// Do runs one transaction. After an error nothing of it is visible to readers of committed events,
// unless the error also wraps ErrInDoubt. In both cases this consumer continues from the offsets
// that Kafka has.
func (t *Transactor) Do(ctx context.Context, fn func(*Tx) error) error {
	x := &Tx{t: t, outputs: outputsOf(t.p)}
	if err := t.await(ctx); err != nil {
		return fmt.Errorf("%w: wait for the slot's transactional id: %w", ErrAborted, err)
	}
	defer t.leave()
	if err := t.begin(ctx); err != nil {
		return t.abort(ctx, x, err)
	}
	// If fn panics and the caller continues, the next transaction must not commit the events of
	// this one. So it opens the id again.
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
	x.report()
	return nil
}

// prepare waits for the answers to the sent events, and meanwhile adds the offsets to the
// transaction: neither counts before its end. The first partition is added before the offsets,
// because the coordinator handles only one change of a transaction at a time.
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
		return failed // the other error follows from this one
	}
	return err
}

// complete waits until all events of the open transaction have their answers, and returns an error
// if it must not be committed.
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
	// Events of an aborted transaction that are still queued must not become part of the next one.
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

// relabelAll makes every partition take the new identity. No events are queued at that point.
func (p *Producer) relabelAll() {
	for _, topic := range *p.topics.Load() {
		for _, o := range topic.all() {
			o.mu.Lock()
			o.id = noIdentity
			o.mu.Unlock()
		}
	}
}

// Exclusive produces in transactions under one name. One process at a time holds the name: the one
// that opened it last. Kafka fences the others, so no output of theirs becomes visible later.
type Exclusive struct {
	p      *Producer
	turn   chan struct{} // full while a transaction runs, so that there is one at a time
	opened bool          // whether we hold the transactional id, with no transaction open
	lost   error         // reason why the name was lost
}

// ErrSuperseded means that another process has opened the same exclusive name. It is final: nothing
// can be committed under the name here. Kafka gives the same answer for a transaction that it ended
// because it took longer than Options.TransactionTimeout. A process that should still have the name
// opens it again.
var ErrSuperseded = errors.New("superseded by another holder of the name")

// Exclusive takes a name from its present holder, and aborts the holder's open transaction before
// it returns. The name must not be that of a group with a Transactor. The caller must close the
// Exclusive.
func (b *Broker) Exclusive(ctx context.Context, name string, o ProducerOptions) (*Exclusive, error) {
	p, err := b.Producer(o)
	if err != nil {
		return nil, err
	}
	p.tx = &transaction{b: b, id: b.names.Transactional(name, 0), ident: noIdentity, included: map[*outPartition]bool{}}
	if err := p.tx.open(ctx); err != nil {
		_ = p.Close(ctx) // no event was sent
		return nil, err
	}
	return &Exclusive{p: p, turn: make(chan struct{}, 1), opened: true}, nil
}

// Close closes the producer. The next process can open the name without waiting for it.
func (e *Exclusive) Close(ctx context.Context) error { return e.p.Close(ctx) }

// ExclusiveTx is one open transaction of an Exclusive. It is valid while the function passed to Do
// runs.
type ExclusiveTx struct {
	outputs
	marks map[string]offsetsByTopic // by group
}

// Mark commits a position and its note for a group inside the transaction. The group must be one
// that has no members: only the name protects its offsets, not a generation. Of several marks for
// one partition the last one counts.
func (x *ExclusiveTx) Mark(group string, p Position) {
	group = x.p.b.names.Group(group)
	if x.marks[group] == nil {
		x.marks[group] = offsetsByTopic{}
	}
	x.marks[group].add(wire.TopicPartition{Topic: x.p.b.names.Topic(p.Stream), Partition: p.Partition}, p.Offset, encodeMetadata(p.Offset, p.Note, nil))
}

// Do runs one transaction. After an error nothing of it is visible to readers of committed events,
// unless the error also wraps ErrInDoubt; then Committed shows whether its marks were committed.
// After an error that wraps ErrSuperseded, every later call fails with ErrSuperseded and does not
// call the function.
func (e *Exclusive) Do(ctx context.Context, fn func(*ExclusiveTx) error) error {
	select {
	case e.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("%w: wait for the transaction before: %w", ErrAborted, context.Cause(ctx))
	}
	defer func() { <-e.turn }()
	if err := e.begin(ctx); err != nil {
		return fmt.Errorf("%w: %w", ErrAborted, err)
	}
	// As in Transactor.Do: if fn panics, the next transaction must not commit the events of this
	// one.
	e.opened = false
	x := &ExclusiveTx{outputs: outputsOf(e.p), marks: map[string]offsetsByTopic{}}
	if err := e.run(ctx, x, fn); err != nil {
		return fmt.Errorf("%w: %w", ErrAborted, e.abort(ctx, err))
	}
	e.opened = true
	x.report()
	return nil
}

func (e *Exclusive) run(ctx context.Context, x *ExclusiveTx, fn func(*ExclusiveTx) error) error {
	// The time limit leaves time for an abort. Kafka's answer for a transaction that it has ended
	// itself looks like a takeover by another process.
	ctx, cancel := context.WithTimeout(ctx, e.p.b.transactionTimeout*4/5)
	defer cancel()
	if err := fn(x); err != nil {
		return err
	}
	if err := e.p.complete(ctx); err != nil {
		return err
	}
	if len(x.marks) == 0 && !e.p.tx.touched() {
		return nil
	}
	if err := e.p.tx.offsets(ctx, x.groups()...); err != nil {
		return err
	}
	return e.p.tx.commit(ctx)
}

// groups returns the commits of the marked positions.
func (x *ExclusiveTx) groups() (all []groupCommit) {
	for group, offsets := range x.marks {
		all = append(all, groupCommit{group, func(ctx context.Context) error {
			return x.p.tx.commitOffsets(ctx, group, noMember, offsets)
		}})
	}
	return all
}

// begin prepares the next transaction. A name that another process has taken is never taken back.
func (e *Exclusive) begin(ctx context.Context) error {
	switch {
	case e.lost != nil:
		return e.lost
	case e.opened:
		e.p.tx.begin()
		return nil
	}
	// Events of an aborted transaction that are still queued must not become part of the next one.
	if err := e.p.Flush(ctx); err != nil {
		return fmt.Errorf("end the former transaction: %w", err)
	}
	if err := e.p.tx.renew(ctx); err != nil {
		return e.judge(err)
	}
	e.p.relabelAll()
	e.opened = true
	return nil
}

// abort aborts the transaction: at once if possible, so that readers do not wait, or else when the
// next one begins.
func (e *Exclusive) abort(ctx context.Context, cause error) error {
	e.p.tx.poison(cause)
	if cause = e.judge(cause); e.lost != nil {
		return cause
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.p.b.transactionTimeout)
	defer cancel()
	defer context.AfterFunc(e.p.ctx, cancel)()
	if again := e.begin(ctx); again != nil {
		return fmt.Errorf("%w; open it anew: %w", cause, again)
	}
	return cause
}

// judge makes an error final if it means that another process has the name.
func (e *Exclusive) judge(err error) error {
	if fenced(err) {
		err = fmt.Errorf("%w: %w", ErrSuperseded, err)
		e.lost = fmt.Errorf("%s: %w", e.p.tx.id, ErrSuperseded) // the text of this error does not apply to later transactions
	}
	return err
}

// fenced reports whether Kafka knows a later holder of a transactional id.
func fenced(err error) bool {
	return errors.Is(err, kafka.ProducerFenced) || errors.Is(err, kafka.InvalidProducerEpoch)
}

// renew takes the next epoch of the same identity, unless another process has taken one since.
// Kafka can detect that only while no transaction is open, because otherwise it fences the open one
// itself. So the open transaction is ended first. After that has succeeded once, it is not ended
// again, because an answer with a new epoch may have been lost.
//
// Kafka refuses an epoch that is not the last one (KIP-360). The embedded broker accepts an old one
// as a recovery and returns the epoch after the next; that difference shows the takeover too.
func (t *transaction) renew(ctx context.Context) error {
	if !t.settled {
		err := t.retry(ctx, func(ctx context.Context) error { return t.end(ctx, false) })
		if err != nil && !errors.Is(err, kafka.InvalidTransactionState) && !errors.Is(err, kafka.InvalidProducerIDMapping) {
			return err
		}
		t.settled = true
	}
	old, _ := t.identity()
	id, err := persist(ctx, func(ctx context.Context) (identity, error) { return t.b.initProducer(ctx, t.id, old) })
	if errors.Is(err, kafka.InvalidProducerIDMapping) { // Kafka forgot the id after a week without transactions, so no process holds it
		return t.open(ctx)
	}
	if err == nil && id.producer == old.producer && id.epoch != old.epoch+1 {
		err = kafka.ProducerFenced
	}
	if err != nil {
		return fmt.Errorf("open transactions as %s: %w", t.id, err)
	}
	t.take(id)
	return nil
}
