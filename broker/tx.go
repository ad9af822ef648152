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

// Tx is one open transaction. It is valid while the function that Do was given
// runs.
type Tx struct {
	outputs
	t     *Transactor
	began time.Time
	done  []*Delivery
	marks []txMark
	notes map[wire.TopicPartition]txNote
}

// Done makes a delivery part of the transaction: all its events end with it.
// Deliveries of one partition are given in the order in which Poll returned
// them, and none is left out whose events have not all ended; those that have
// may be left out. Once given, a delivery is the transaction's, which ends it
// whatever the outcome.
func (x *Tx) Done(d *Delivery) { x.done = append(x.done, d) }

// Mark commits a place for the consumer's group inside the transaction: one in
// the parked companion of a stream that is read, which the group itself need
// not read. It belongs to the companion's home, the partition of the same number
// of the stream itself. If the home is not this consumer's, or ceases to be
// before the offsets are committed, the transaction fails; and if it fails, the
// home is taken back as that of a delivery is. The last of several marks of one
// place counts.
func (x *Tx) Mark(p Position) {
	m, err := x.t.c.mark(p)
	if err != nil {
		x.p.tx.poison(fmt.Errorf("mark %s/%d: %w", p.Stream, p.Partition, err))
		return
	}
	x.marks = append(slices.DeleteFunc(x.marks, func(o txMark) bool { return o.at == m.at }), m)
}

// Mine tells whether a place can be marked now: whether its home is read here. It
// may not be yet while Assigned is being asked, and not any more before Gone is
// called.
func (x *Tx) Mine(p Position) bool {
	_, err := x.t.c.mark(p)
	return err == nil
}

// txMark is a place that a transaction commits without having read it.
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

// outputs are what a transaction sends.
type outputs struct {
	p    *Producer
	sent []*output
	told func(Receipt, error) // p.sound
}

// output is an event whose sender wants to know where it came to lie.
type output struct {
	at   Receipt
	done func(Receipt)
}

// Send publishes an event as part of the transaction. Its bytes are copied. An
// event that cannot be sent makes the transaction fail.
func (x *outputs) Send(ctx context.Context, stream string, v *View) {
	x.p.Send(ctx, stream, v, x.told)
}

// SendTo is Send to a partition of the caller's choice. done, which may be nil,
// is called with where the event lies: once the transaction is committed, before
// Do returns and by its goroutine, in the order of the calls. If the transaction
// fails it is not called.
func (x *outputs) SendTo(ctx context.Context, stream string, partition int32, v *View, done func(Receipt)) {
	if done == nil {
		x.p.SendTo(ctx, stream, partition, v, x.told)
		return
	}
	o := &output{done: done}
	x.sent = append(x.sent, o)
	x.p.SendTo(ctx, stream, partition, v, func(r Receipt, err error) {
		if o.at = r; err == nil && r.Offset < 0 {
			err = fmt.Errorf("stream %s, partition %d: Kafka does not say where an event lies", r.Stream, r.Partition)
		}
		x.told(r, err)
	})
}

// outputsOf makes them. The one function serves all events: a method's value is
// made anew each time it is named.
func outputsOf(p *Producer) outputs { return outputs{p: p, told: p.sound} }

// sound makes the transaction fail for an event that was not sent.
func (p *Producer) sound(_ Receipt, err error) {
	if err != nil {
		p.tx.poison(err)
	}
}

// tell says where the events lie. The flush that came before it has made sure
// that all answers are in.
func (x *outputs) tell() {
	for _, o := range x.sent {
		o.done(o.at)
	}
}

// offsetsByTopic gathers offsets as Kafka wants them, one of a partition.
type offsetsByTopic map[string][]kafka.TxnOffsetCommit

func (o offsetsByTopic) add(tp wire.TopicPartition, offset int64, metadata string) {
	others := slices.DeleteFunc(o[tp.Topic], func(c kafka.TxnOffsetCommit) bool { return c.Partition == int(tp.Partition) })
	o[tp.Topic] = append(others, kafka.TxnOffsetCommit{Partition: int(tp.Partition), Offset: offset, Metadata: metadata})
}

// txPlace is how far a transaction moves a partition.
type txPlace struct {
	p      *inPartition
	epoch  uint64
	first  uint64 // number of the first event
	next   int64
	beside string  // the metadata to commit beside it
	note   *string // the caller's, if the transaction has one
	holes  []hole
}

// hole is what lies between two of a transaction's deliveries. Dead letters may,
// and deliveries that have ended; one that was left out would be lost.
type hole struct{ from, to uint64 }

// places finds the offsets that the transaction commits, once every dead
// letter that lies before its events has been written. A delivery's memory may
// be another's already, all its events having ended one by one; its numbers are
// its own.
func (t *Transactor) places(ctx context.Context, x *Tx) (map[wire.TopicPartition]*txPlace, error) {
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
		expect[tp] = d.behind
	}
	for _, place := range all {
		if err := t.c.awaitFirst(ctx, place); err != nil {
			return nil, err
		}
		if !place.whole() {
			return nil, fmt.Errorf("%s/%d: a delivery was left out; give the transaction all that Poll returned before the last", place.p.stream, place.p.tp.Partition)
		}
	}
	return all, x.annotate(all)
}

// whole tells whether everything between a place's deliveries has ended.
func (place *txPlace) whole() bool {
	place.p.mu.Lock()
	defer place.p.mu.Unlock()
	for _, h := range place.holes {
		if !place.p.mark.all(h.from, h.to) {
			return false
		}
	}
	return true
}

// awaitFirst waits until a place's first event is the partition's first open
// one, and no dead letter is on its way that the place would pass. What can lie
// before it are also deliveries that the caller has kept back, which would wait
// until the context ends.
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

// fix settles what is committed of a place, now that nothing else commits it:
// as much as has ended by itself meanwhile, what has ended beyond that, and the
// note. The note is the partition's from here on: if the transaction fails, the
// partition's is what the log says.
func (place *txPlace) fix(bare bool) {
	place.p.mu.Lock()
	defer place.p.mu.Unlock()
	place.next = max(place.next, place.p.mark.next)
	if place.note != nil {
		place.p.note = *place.note
	}
	place.beside = place.p.beside(place.next, bare)
}

// commit puts the offsets into the transaction, if there are any.
func (t *Transactor) commit(ctx context.Context, x *Tx, places map[wire.TopicPartition]*txPlace) error {
	if len(places) == 0 && len(x.marks) == 0 {
		return nil
	}
	return t.p.tx.offsets(ctx, groupCommit{t.c.member.group, func(ctx context.Context) error {
		err := t.offsets(ctx, x, places)
		if errors.Is(err, kafka.OffsetMetadataTooLarge) {
			t.c.member.bear(places)
			if err = t.offsets(ctx, x, places); errors.Is(err, kafka.OffsetMetadataTooLarge) {
				err = fmt.Errorf("%w: %w", errNoteTooLarge, err)
			}
		}
		return err
	}})
}

// offsets commits in the name of the member and its generation, which the group
// refuses once others may read what was ours.
func (t *Transactor) offsets(ctx context.Context, x *Tx, places map[wire.TopicPartition]*txPlace) error {
	// Who is no member has no generation either, and Kafka takes offsets that
	// name none from anyone.
	member, generation, _, ok := t.c.member.snapshot()
	if !ok {
		return errTakenAway
	}
	all := offsetsByTopic{}
	for tp, place := range places {
		if !place.p.stands(place.epoch) {
			return errTakenAway
		}
		all.add(tp, place.next, place.beside)
	}
	for _, m := range x.marks {
		if !m.home.stands(m.epoch) {
			return fmt.Errorf("mark %s/%d: %w", m.at.Topic, m.at.Partition, errTakenAway)
		}
		all.add(m.at, m.offset, "")
	}
	between := t.c.member.between.Load()
	err := t.p.tx.commitOffsets(ctx, t.c.member.group, identified{member, generation}, all)
	if errors.Is(err, kafka.IllegalGeneration) {
		// It has just passed, or Kafka is done with it and has yet to tell us.
		if _, now, _, _ := t.c.member.snapshot(); now != generation || between || t.c.member.between.Load() {
			err = fmt.Errorf("%w: %w", kafka.RebalanceInProgress, err)
		}
	}
	return err
}

// stands tells whether a partition is still ours and has not been read anew.
func (p *inPartition) stands(epoch uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.gone && p.epoch == epoch
}

func (t *Transactor) committed(x *Tx, places map[wire.TopicPartition]*txPlace) {
	for _, place := range places {
		place.p.mu.Lock()
		if place.p.epoch == place.epoch {
			place.p.committed, place.p.metadata = place.next, place.beside
		}
		place.p.mu.Unlock()
	}
	for _, d := range x.done {
		d.Done()
	}
}

// abort gives up what the transaction has done. The next one opens the
// transactional id anew, which makes Kafka abort this one; it happens at once,
// so that readers are not held up.
func (t *Transactor) abort(ctx context.Context, x *Tx, cause error) error {
	t.p.tx.poison(cause)
	t.opened = false
	if errors.Is(cause, kafka.UnknownMemberId) {
		t.c.member.startOver() // the group has said it here first
	}
	if took := time.Since(x.began); !x.began.IsZero() && took > t.c.b.transactionTimeout {
		cause = fmt.Errorf("it took %s, and Kafka ends a transaction after %s; put less into one: %w", took.Round(time.Millisecond), t.c.b.transactionTimeout, cause)
	}
	err := fmt.Errorf("%w: %w", ErrAborted, cause)
	// A caller whose time is up has still to be rid of the transaction, or its
	// events would be nobody's; a consumer that closes need not be.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.c.b.transactionTimeout)
	defer cancel()
	defer context.AfterFunc(t.c.ctx, cancel)()
	if t.p.tx.id != "" {
		if open := t.begin(ctx); open != nil {
			err = errors.Join(err, open)
		}
	}
	t.takeBack(ctx, x)
	return err
}

// takeBack makes the consumer read on from where the group is, which after an
// outcome in doubt may be before or behind the transaction. What the consumer
// has lost or taken back meanwhile is no longer the transaction's.
func (t *Transactor) takeBack(ctx context.Context, x *Tx) {
	parts := map[wire.TopicPartition]*inPartition{}
	for _, d := range x.done {
		if d.part.stands(d.epoch) {
			parts[d.part.tp] = d.part
		}
	}
	for _, m := range x.marks {
		if m.home.stands(m.epoch) {
			parts[m.home.tp] = m.home
		}
	}
	for _, n := range x.notes {
		if n.p.stands(n.epoch) {
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

// rewind reads partitions from where their group is. Where Kafka does not say
// in time they are given up and the group is joined anew, which asks until it
// knows: nothing may be read past what was taken back.
func (t *Transactor) rewind(ctx context.Context, parts map[wire.TopicPartition]*inPartition) {
	places, err := t.standing(ctx, parts)
	if err == nil {
		err = t.c.readAnew(ctx, parts, places)
	}
	if err != nil {
		t.c.b.log.Warn("partitions are given up after an aborted transaction", "group", t.c.member.group, "partitions", len(parts), "reason", err)
		t.c.giveUp(parts)
		t.c.member.startOver()
	}
}

// readAnew reads partitions from the given places, or from where the hook wants
// them to be read.
func (c *Consumer) readAnew(ctx context.Context, parts map[wire.TopicPartition]*inPartition, known map[wire.TopicPartition]origin) error {
	c.hooks.Lock()
	defer c.hooks.Unlock()
	asked := map[wire.TopicPartition]origin{}
	for tp, p := range parts {
		if p.remains() {
			asked[tp] = known[tp]
		}
	}
	if err := c.askAssigned(ctx, asked); err != nil {
		return err
	}
	for tp, p := range parts {
		from, ok := asked[tp]
		if !ok {
			from = known[tp] // nothing will be read of it, and no more be committed than is known
		}
		p.rewind(from.offset, known[tp])
	}
	return nil
}

// standing is where the group is, from where partitions are read on.
func (t *Transactor) standing(ctx context.Context, parts map[wire.TopicPartition]*inPartition) (map[wire.TopicPartition]origin, error) {
	known, err := t.c.b.committedOffsets(ctx, t.c.member.group, slices.Collect(maps.Keys(parts)))
	if err != nil {
		return nil, err
	}
	places := make(map[wire.TopicPartition]origin, len(parts))
	for tp, p := range parts {
		places[tp] = origin{offset: p.beginning()}
		if o, ok := known[tp]; ok && o.Offset >= 0 {
			places[tp] = origin{o.Offset, o.Metadata}
		}
	}
	return places, nil
}

// beginning is where the partition is read from while its group has committed
// nothing.
func (p *inPartition) beginning() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.committed
}
