package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev"
	"tidemill.dev/broker/internal/wire"
	"tidemill.dev/broker/retry"
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
		p.tx = &transaction{b: c.b, ident: noIdentity, included: map[*outPartition]bool{}}
		t.all[i] = &slotProducer{Producer: p, number: i, slot: -1}
	}
	c.member.mu.Lock()
	c.member.transactor = t
	c.member.mu.Unlock()
	c.running.Go(t.takeSlot)
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
	if p.opened && slot == p.slot {
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

// txPlace is the offset to which a transaction moves a partition.
type txPlace struct {
	p        *inPartition
	epoch    uint64
	first    uint64 // number of the first event
	next     int64
	metadata string  // metadata to commit with the offset
	note     *string // note of the transaction, if it has one
	holes    []hole
}

// hole is a gap between two deliveries of a transaction. Dead letters and ended deliveries may be
// in it. An open delivery in the hole was left out, and a commit past that delivery would lose it.
type hole struct{ from, to uint64 }

// commitPlaces returns the offsets that the transaction commits, after every dead letter before its
// events was written. If all events of a delivery have ended one by one, its memory may belong to
// another delivery by now, but its numbers are still valid.
func (t *Transactor) commitPlaces(ctx context.Context, x *Tx) (map[wire.TopicPartition]*txPlace, error) {
	all := map[wire.TopicPartition]*txPlace{}
	expect := map[wire.TopicPartition]uint64{}
	for _, d := range x.done {
		tp := d.part.tp
		place := all[tp]
		switch {
		case place == nil:
			place = &txPlace{p: d.part, epoch: d.epoch, first: d.first}
			all[tp] = place
		case d.epoch != place.epoch || d.part != place.p || d.first < expect[tp]:
			return nil, fmt.Errorf("%s/%d: its deliveries are out of order", d.Stream, d.Partition)
		case d.first > expect[tp]:
			place.holes = append(place.holes, hole{expect[tp], d.first})
		}
		place.next = d.next
		expect[tp] = d.afterLast
	}
	for _, place := range all {
		if err := t.c.awaitFirst(ctx, place); err != nil {
			return nil, err
		}
		if !place.isComplete() {
			return nil, fmt.Errorf("%s/%d: a delivery was left out; give the transaction all that Poll returned before the last", place.p.stream, place.p.tp.Partition)
		}
	}
	return all, x.annotate(all)
}

// isComplete reports whether everything between a place's deliveries has ended.
func (place *txPlace) isComplete() bool {
	place.p.mu.Lock()
	defer place.p.mu.Unlock()
	for _, h := range place.holes {
		if !place.p.mark.allEnded(h.from, h.to) {
			return false
		}
	}
	return true
}

// awaitFirst waits until a place's first event is the partition's first open event, and until every
// dead letter before the place is written. If the caller has kept back an earlier delivery,
// awaitFirst waits until the context ends.
func (c *Consumer) awaitFirst(ctx context.Context, place *txPlace) error {
	for {
		place.p.mu.Lock()
		stale, first := place.p.epoch != place.epoch, place.p.mark.first
		written := place.p.unwritten == 0
		place.p.mu.Unlock()
		switch {
		case stale:
			return fmt.Errorf("%s/%d: %w", place.p.stream, place.p.tp.Partition, errTakenAway)
		case written && first >= place.first:
			return nil
		}
		if err := retry.Sleep(ctx, 2*time.Millisecond); err != nil {
			return fmt.Errorf("%s/%d: earlier events have not ended: %w", place.p.stream, place.p.tp.Partition, err)
		}
	}
}

var errTakenAway = errors.New("the partition was taken away")

// fixOffset sets what is committed for a place, after reserve has stopped other commits. It sets
// the offset, which is at least the watermark, the ended events beyond the offset, and the note.
// From then on the note belongs to the partition. If the transaction fails, the partition gets the
// committed note back.
func (place *txPlace) fixOffset(bare bool) {
	place.p.mu.Lock()
	defer place.p.mu.Unlock()
	place.next = max(place.next, place.p.mark.next)
	if place.note != nil {
		place.p.note = *place.note
	}
	place.metadata = place.p.metadataAt(place.next, bare)
}

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

// commitOffsets commits for the member and its generation. The group refuses that as soon as other
// members may read our partitions.
func (t *Transactor) commitOffsets(ctx context.Context, x *Tx, places map[wire.TopicPartition]*txPlace) error {
	// Without a membership the member has no generation, and Kafka accepts offsets without a
	// generation from any client.
	member, generation, _, ok := t.c.member.snapshot()
	if !ok {
		return errTakenAway
	}
	all := offsetsByTopic{}
	for tp, place := range places {
		if !place.p.isCurrent(place.epoch) {
			return errTakenAway
		}
		all.add(tp, place.next, place.metadata)
	}
	for _, m := range x.marks {
		if !m.home.isCurrent(m.epoch) {
			return fmt.Errorf("mark %s/%d: %w", m.at.Topic, m.at.Partition, errTakenAway)
		}
		all.add(m.at, m.offset, "")
	}
	between := t.c.member.between.Load()
	err := x.p.tx.commitOffsets(ctx, t.c.member.group, memberIdentity{member, generation}, all)
	if errors.Is(err, kafka.IllegalGeneration) {
		// The generation has just ended, perhaps before the member knows.
		if _, now, _, _ := t.c.member.snapshot(); now != generation || between || t.c.member.between.Load() {
			err = fmt.Errorf("%w: %w", kafka.RebalanceInProgress, err)
		}
	}
	return err
}

// isCurrent reports whether a partition is still read here and has not been read again.
func (p *inPartition) isCurrent(epoch uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.gone && p.epoch == epoch
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

// takeBack makes the consumer read on from the group's committed offsets. After an outcome in doubt
// these offsets may be before or after the transaction. takeBack skips partitions that were lost or
// read again meanwhile.
func (t *Transactor) takeBack(ctx context.Context, x *Tx) {
	parts := map[wire.TopicPartition]*inPartition{}
	for _, d := range x.done {
		if d.part.isCurrent(d.epoch) {
			parts[d.part.tp] = d.part
		}
	}
	for _, m := range x.marks {
		if m.home.isCurrent(m.epoch) {
			parts[m.home.tp] = m.home
		}
	}
	for _, n := range x.notes {
		if n.p.isCurrent(n.epoch) {
			parts[n.p.tp] = n.p
		}
	}
	if len(parts) > 0 {
		t.rewind(ctx, parts)
	}
	for _, d := range x.done {
		d.Done()
	}
}

// rewind reads partitions again from the group's committed offsets. If Kafka does not return these
// in time, the partitions are given up and the member joins again. The join retries until Kafka
// answers. No event after the returned ones may be read before.
func (t *Transactor) rewind(ctx context.Context, parts map[wire.TopicPartition]*inPartition) {
	places, err := t.groupPlaces(ctx, parts)
	if err == nil {
		err = t.c.readAgain(ctx, parts, places)
	}
	if err != nil {
		t.c.b.log.Warn("consumer: rewinding after an aborted transaction failed; its partitions are given up", "group", t.c.member.group, "partitions", len(parts), "reason", err)
		t.c.giveUp(parts)
		t.c.member.startOver()
	}
}

// readAgain reads partitions from the given places, or from where the hook Assigned moves them.
func (c *Consumer) readAgain(ctx context.Context, parts map[wire.TopicPartition]*inPartition, known map[wire.TopicPartition]origin) error {
	c.hooks.Lock()
	defer c.hooks.Unlock()
	asked := map[wire.TopicPartition]origin{}
	for tp, p := range parts {
		if p.isKept() {
			asked[tp] = known[tp]
		}
	}
	if err := c.askAssigned(ctx, asked); err != nil {
		return err
	}
	for tp, p := range parts {
		from, ok := asked[tp]
		if !ok {
			from = known[tp] // nothing is read from the partition, and nothing beyond the known offset is committed
		}
		p.rewind(from.offset, known[tp])
	}
	return nil
}

// groupPlaces returns the offsets from which the group continues.
func (t *Transactor) groupPlaces(ctx context.Context, parts map[wire.TopicPartition]*inPartition) (map[wire.TopicPartition]origin, error) {
	known, err := t.c.b.committedOffsets(ctx, t.c.member.group, slices.Collect(maps.Keys(parts)))
	if err != nil {
		return nil, err
	}
	places := make(map[wire.TopicPartition]origin, len(parts))
	for tp, p := range parts {
		places[tp] = origin{offset: p.startOffset()}
		if o, ok := known[tp]; ok && o.Offset >= 0 {
			places[tp] = origin{o.Offset, o.Metadata}
		}
	}
	return places, nil
}

// startOffset returns the offset from which the partition is read while its group has no committed
// offset.
func (p *inPartition) startOffset() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.committed
}
