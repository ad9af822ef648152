package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev"
	"tidemill.dev/broker/internal/wire"
)

// Transactor consumes, transforms and produces exactly once. The outputs of a transaction and the
// offsets of its inputs become visible together or not at all.
//
// Two fences stop a zombie. The transactional ids belong to the member's slot in its group, so the
// next holder of the slot aborts an open transaction. And offsets are committed with the member's
// id and generation. Kafka refuses this commit after a new generation has begun.
//
// Two producers take turns. Kafka answers the end of a transaction before it has written the markers
// into the partitions, and refuses the producer's next transaction until then. A transaction begins
// only after the end of the one before it is on Kafka's log, so the outcomes keep their order. Of two
// offsets Kafka keeps the one that was sent last, whichever marker is written first.
type Transactor struct {
	c    *Consumer
	turn chan struct{} // full while a transaction runs, so that only one runs at a time
	all  [2]*slotProducer
	next int // index of the producer of the next transaction
}

// slotProducer is a producer with one of the transactional ids of the member's slot.
type slotProducer struct {
	*Producer
	number int
	slot   int32
	opened bool // whether we hold the id, with no transaction open
}

// transactionalIDs returns the transactional ids of a slot of a group.
func (b *Broker) transactionalIDs(group string, slot int32) [2]string {
	id := b.names.Transactional(group, int(slot))
	return [2]string{id, id + "-2"}
}

// Transactor returns a transactor for the consumer's events. Close it after the last transaction
// and before the consumer, or after the consumer if ConsumerOptions.Leaving runs a transaction.
func (c *Consumer) Transactor(o ProducerOptions) (*Transactor, error) {
	if c.member == nil {
		return nil, errors.New("a transactor needs a consumer with a group")
	}
	// The events are sent when the transaction is full, because each request with new partitions costs
	// a write to the log of transactions.
	o.Linger = maxLinger
	t := &Transactor{c: c, turn: make(chan struct{}, 1)}
	for i := range t.all {
		p, err := c.b.Producer(o)
		if err != nil {
			return nil, err
		}
		p.tx = &transaction{b: c.b, group: c.member.group, ident: noIdentity, included: map[*outPartition]bool{}}
		t.all[i] = &slotProducer{Producer: p, number: i, slot: -1}
	}
	c.member.mu.Lock()
	c.member.transactor = t
	c.member.mu.Unlock()
	c.running.Go(t.takeSlot)
	c.running.Go(t.watchFailures)
	return t, nil
}

// takeSlot takes the transactional ids without waiting for the first transaction. An open
// transaction of the slot's former holder would delay Kafka's answer about the group's offsets, and
// therefore the first events.
func (t *Transactor) takeSlot() {
	if t.waitTurn(t.c.ctx) != nil {
		return
	}
	defer t.leave()
	ctx, cancel := context.WithTimeout(t.c.ctx, 3*t.c.b.requestTimeout)
	defer cancel()
	for _, p := range t.all {
		if err := t.begin(ctx, p); err != nil && t.c.ctx.Err() == nil {
			t.c.b.log.Warn("consumer: fencing a transactional id of a slot failed; the next transaction tries again", "group", t.c.member.group, "reason", err)
		}
	}
}

// waitTurn waits until no other transaction runs. takeSlot holds the turn until Kafka answers.
func (t *Transactor) waitTurn(ctx context.Context) error {
	select {
	case t.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t *Transactor) leave() { <-t.turn }

// Close closes the transactor's producers.
func (t *Transactor) Close(ctx context.Context) error {
	return errors.Join(t.all[0].Close(ctx), t.all[1].Close(ctx))
}

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
	if err := t.waitTurn(ctx); err != nil {
		return fmt.Errorf("%w: wait for the slot's transactional id: %w", ErrAborted, err)
	}
	defer t.leave()
	p := t.all[t.next]
	x := t.newTx(p)
	if err := t.begin(ctx, p); err != nil {
		return t.abort(ctx, x, err)
	}
	// If fn panics and the caller continues, the next transaction must not commit the events of
	// this transaction. So the next transaction opens the id again.
	p.opened = false
	x.began = time.Now()
	if err := fn(x); err != nil {
		return t.abort(ctx, x, err)
	}
	places, err := t.commitPlaces(ctx, x)
	if err != nil {
		return t.abort(ctx, x, err)
	}
	defer t.c.member.reserve(places, x.marks)()
	if err := t.prepare(ctx, x, places); err != nil {
		return t.abort(ctx, x, err)
	}
	if len(places) > 0 || len(x.marks) > 0 || p.tx.hasPartitions() {
		if err := p.tx.commit(ctx); err != nil {
			return t.abort(ctx, x, err)
		}
		t.committed(x, places)
		t.next = (t.next + 1) % len(t.all)
	}
	p.opened = true
	x.callDone()
	return nil
}

func (t *Transactor) newTx(p *slotProducer) *Tx {
	return &Tx{t: t, by: p, outputs: outputsOf(p.Producer)}
}

// prepare waits for the answers to the sent events, and meanwhile adds the offsets to the
// transaction. Events and offsets count only after the transaction's end. The first partition is
// added before the offsets, because the coordinator handles only one change of a transaction at a
// time.
func (t *Transactor) prepare(ctx context.Context, x *Tx, places map[wire.TopicPartition]*txPlace) error {
	begun := x.p.tx.whenBegun()
	flushed := make(chan error, 1)
	go func() { flushed <- x.p.waitAnswers(ctx) }()
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

// waitAnswers waits until all events of the open transaction have their answers, and returns an
// error if it must not be committed.
func (p *Producer) waitAnswers(ctx context.Context) error {
	if err := p.Flush(ctx); err != nil {
		return err
	}
	return p.tx.faulty()
}

// begin takes a producer's transactional id, unless it is held already.
func (t *Transactor) begin(ctx context.Context, p *slotProducer) error {
	slot, err := t.awaitSlot(ctx)
	if err != nil {
		return err
	}
	if p.opened && slot == p.slot && !p.tx.maybeHanging() {
		p.tx.begin()
		return nil
	}
	// Events of an aborted transaction that are still queued must not become part of the next one.
	if err := p.Flush(ctx); err != nil {
		return fmt.Errorf("end the former transaction: %w", err)
	}
	p.tx.id = t.c.b.transactionalIDs(t.c.opt.Group, slot)[p.number]
	if err := p.tx.open(ctx); err != nil {
		return err
	}
	p.relabelAll()
	p.slot, p.opened = slot, true
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

// Tx is one open transaction. It is valid while the function passed to Do runs.
type Tx struct {
	outputs
	t     *Transactor
	by    *slotProducer
	began time.Time
	done  []*Delivery
	marks []txMark
	notes map[wire.TopicPartition]txNote
}

// Done makes a delivery part of the transaction: all its events end with it. Deliveries of one
// partition must be given in the order in which Poll returned them. A delivery may be left out only
// if all its events have ended. The transaction ends the delivery, whatever the outcome.
func (x *Tx) Done(d *Delivery) { x.done = append(x.done, d) }

// Mark commits a position for the consumer's group inside the transaction. The position is in the
// parked companion of a stream that the group reads. The group must not read the companion itself.
// The mark belongs to its home, the partition of the same number in the stream. The transaction
// fails if this consumer does not read the home, or loses it before the offsets are committed. If
// the transaction fails, the home is read again from its committed offset, as for a delivery. Of
// several marks for one partition the last one counts.
func (x *Tx) Mark(p Position) {
	m, err := x.t.c.mark(p)
	if err != nil {
		x.p.tx.poison(fmt.Errorf("mark %s/%d: %w", p.Stream, p.Partition, err))
		return
	}
	x.marks = append(slices.DeleteFunc(x.marks, func(o txMark) bool { return o.at == m.at }), m)
}

// Mine reports whether a position can be marked now, because its home is read here. During Assigned
// the home may not be read yet, and before Gone it may no longer be read.
func (x *Tx) Mine(p Position) bool {
	_, err := x.t.c.mark(p)
	return err == nil
}

// txMark is a position that a transaction commits without having read it.
type txMark struct {
	at     wire.TopicPartition
	offset int64
	home   *inPartition
	epoch  uint64
}

func (c *Consumer) mark(p Position) (txMark, error) {
	stream, parked := tidemill.CutParked(p.Stream)
	if !parked || slices.Contains(c.opt.Streams, p.Stream) {
		return txMark{}, errors.New("only a place in a parked companion can be marked, and only if the group does not read it; end deliveries instead")
	}
	c.mu.Lock()
	home := c.parts[wire.TopicPartition{Topic: c.b.names.Topic(stream), Partition: p.Partition}]
	c.mu.Unlock()
	if home == nil {
		return txMark{}, errTakenAway
	}
	home.mu.Lock()
	defer home.mu.Unlock()
	if home.gone {
		return txMark{}, errTakenAway
	}
	at := wire.TopicPartition{Topic: c.b.names.Topic(p.Stream), Partition: p.Partition}
	return txMark{at: at, offset: p.Offset, home: home, epoch: home.epoch}, nil
}

var errTakenAway = errors.New("the partition was taken away")

// commit adds the offsets to the transaction, if there are any.
func (t *Transactor) commit(ctx context.Context, x *Tx, places map[wire.TopicPartition]*txPlace) error {
	if len(places) == 0 && len(x.marks) == 0 {
		return nil
	}
	return x.p.tx.offsets(ctx, groupCommit{t.c.member.group, func(ctx context.Context) error {
		err := t.commitOffsets(ctx, x, places)
		if errors.Is(err, kafka.OffsetMetadataTooLarge) {
			t.c.member.dropEnded(places)
			if err = t.commitOffsets(ctx, x, places); errors.Is(err, kafka.OffsetMetadataTooLarge) {
				err = fmt.Errorf("%w: %w", errNoteTooLarge, err)
			}
		}
		return err
	}})
}

func (t *Transactor) committed(x *Tx, places map[wire.TopicPartition]*txPlace) {
	for _, place := range places {
		place.p.mu.Lock()
		if place.p.epoch == place.epoch {
			place.p.committed, place.p.metadata = place.next, place.metadata
		}
		place.p.mu.Unlock()
	}
	for _, d := range x.done {
		d.Done()
	}
}

// abort aborts the transaction. The next begin opens the transactional id again, which makes Kafka
// abort the open transaction. Kafka aborts it at once, so that readers do not wait.
func (t *Transactor) abort(ctx context.Context, x *Tx, cause error) error {
	x.p.tx.poison(cause)
	x.by.opened = false
	if errors.Is(cause, kafka.UnknownMemberId) {
		t.c.member.startOver() // the transaction, not the member, learned that the group has forgotten the member
	}
	if took := time.Since(x.began); !x.began.IsZero() && took > t.c.b.transactionTimeout {
		cause = fmt.Errorf("it took %s, and Kafka ends a transaction after %s; put less into one: %w", took.Round(time.Millisecond), t.c.b.transactionTimeout, cause)
	}
	err := fmt.Errorf("%w: %w", ErrAborted, cause)
	// The transaction must be aborted even if the caller's time is up, because its events would
	// otherwise have no reader. A consumer that closes need not wait for the abort.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.c.b.transactionTimeout)
	defer cancel()
	defer context.AfterFunc(t.c.ctx, cancel)()
	if x.p.tx.id != "" {
		if open := t.begin(ctx, x.by); open != nil {
			err = errors.Join(err, open)
		}
	}
	t.takeBack(ctx, x)
	return err
}

// fence aborts the open transaction of a slot's former holder.
func (m *member) fence(ctx context.Context, slot int32) {
	ctx, cancel := context.WithTimeout(ctx, m.c.b.transactionTimeout)
	defer cancel()
	for _, id := range m.c.b.transactionalIDs(m.c.opt.Group, slot) {
		t := &transaction{b: m.c.b, id: id, group: m.group}
		if err := t.open(ctx); err != nil && ctx.Err() == nil {
			m.c.b.log.Warn("consumer: fencing a free slot failed; its open transaction will time out", "transaction", id, "reason", err)
		}
	}
}
