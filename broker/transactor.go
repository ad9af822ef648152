package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"

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

// Exclusive produces in transactions under one name, which one process holds at
// a time: who opens it last. What fences the others is Kafka, so that nothing of
// theirs becomes visible behind its back.
type Exclusive struct {
	p      *Producer
	turn   chan struct{} // one transaction at a time; who fills it has it
	opened bool          // the transactional id is ours, and nothing is open under it
	lost   error         // why it is ours no more
}

// ErrSuperseded says that another has opened the same exclusive name, for good:
// nothing can be committed under it here any more. Kafka says the same of a
// transaction that it has ended for taking longer than
// Options.TransactionTimeout; who still ought to have the name opens it anew.
var ErrSuperseded = errors.New("superseded by another holder of the name")

// Exclusive takes a name from whoever has it. What they have left open is
// aborted before it returns. The name must not be that of a group with a
// Transactor. Close it.
func (b *Broker) Exclusive(ctx context.Context, name string, o ProducerOptions) (*Exclusive, error) {
	p, err := b.Producer(o)
	if err != nil {
		return nil, err
	}
	p.tx = &transaction{b: b, id: b.names.Transactional(name, 0), ident: noIdentity, included: map[*outPartition]bool{}}
	if err := p.tx.open(ctx); err != nil {
		_ = p.Close(ctx) // nothing has been sent
		return nil, err
	}
	return &Exclusive{p: p, turn: make(chan struct{}, 1), opened: true}, nil
}

// Close ends the producer. Whoever opens the name next need not wait for it.
func (e *Exclusive) Close(ctx context.Context) error { return e.p.Close(ctx) }

// ExclusiveTx is one open transaction of an Exclusive. It is valid while the
// function that Do was given runs.
type ExclusiveTx struct {
	outputs
	marks map[string]offsetsByTopic // by group
}

// Mark commits a place for a group inside the transaction, and its note beside it.
// The group is one that nobody joins: no generation guards the place, the name
// alone does. The last of several marks of one place counts.
func (x *ExclusiveTx) Mark(group string, p Position) {
	group = x.p.b.names.Group(group)
	if x.marks[group] == nil {
		x.marks[group] = offsetsByTopic{}
	}
	x.marks[group].add(wire.TopicPartition{Topic: x.p.b.names.Topic(p.Stream), Partition: p.Partition}, p.Offset, encodeBeside(p.Offset, p.Note, nil))
}

// Do runs one transaction. After an error nothing of it is visible to readers of
// committed events, unless the error wraps ErrInDoubt as well; then Committed
// says how it ended, if it marked anything. Once an error wraps ErrSuperseded,
// so does every later one, and the function is not called.
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
	// As in Transactor.Do: what a function has sent that panics must not be
	// committed by the next.
	e.opened = false
	x := &ExclusiveTx{outputs: outputsOf(e.p), marks: map[string]offsetsByTopic{}}
	if err := e.run(ctx, x, fn); err != nil {
		return fmt.Errorf("%w: %w", ErrAborted, e.abort(ctx, err))
	}
	e.opened = true
	x.tell()
	return nil
}

func (e *Exclusive) run(ctx context.Context, x *ExclusiveTx, fn func(*ExclusiveTx) error) error {
	// It is given up while there is time to abort it: one that Kafka has ended for
	// its age looks like another's.
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

// groups are the commits of what was marked.
func (x *ExclusiveTx) groups() (all []groupCommit) {
	for group, offsets := range x.marks {
		all = append(all, groupCommit{group, func(ctx context.Context) error {
			return x.p.tx.commitOffsets(ctx, group, nobody, offsets)
		}})
	}
	return all
}

// begin makes ready for a transaction. What another has taken is never taken
// back.
func (e *Exclusive) begin(ctx context.Context) error {
	switch {
	case e.lost != nil:
		return e.lost
	case e.opened:
		e.p.tx.begin()
		return nil
	}
	// What an aborted transaction could not rid itself of in time must not
	// become part of the next.
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

// abort gives up what the transaction has done: at once if it can be, so that
// readers are not held up, or else when the next one begins.
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

// judge makes an error final that says that the name is another's.
func (e *Exclusive) judge(err error) error {
	if fenced(err) {
		err = fmt.Errorf("%w: %w", ErrSuperseded, err)
		e.lost = fmt.Errorf("%s: %w", e.p.tx.id, ErrSuperseded) // how this one ended is not how the next ones do
	}
	return err
}

// fenced tells whether Kafka knows of a later holder of a transactional id.
func fenced(err error) bool {
	return errors.Is(err, kafka.ProducerFenced) || errors.Is(err, kafka.InvalidProducerEpoch)
}

// renew takes the next epoch of the same identity, if nobody has taken one since.
// Kafka can tell only while no transaction is open, because it would fence that
// itself; so the open one is ended first, and once that is settled it is not
// asked again, since the epoch may have moved on with an answer that was lost.
//
// Kafka refuses an epoch that is not the last (KIP-360). The embedded broker takes
// an old one for a recovery and hands out the next but one, which tells as well.
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
	if errors.Is(err, kafka.InvalidProducerIDMapping) { // forgotten after a week without transactions, so nobody has it
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
