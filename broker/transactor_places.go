package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
	"tidemill.dev/broker/retry"
)

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

// commitOffsets commits for the member and its generation. The group refuses that as soon as other
// members may read our partitions.
func (t *Transactor) commitOffsets(ctx context.Context, x *Tx, places map[wire.TopicPartition]*txPlace) error {
	// Without a membership the member has no generation, and Kafka accepts offsets without a
	// generation from any client.
	member, generation, _, ok := t.c.member.snapshot()
	if !ok {
		return errTakenAway
	}
	all := make([]wire.CommittedOffset, 0, len(places)+len(x.marks))
	for tp, place := range places {
		if !place.p.isCurrent(place.epoch) {
			return errTakenAway
		}
		all = append(all, wire.CommittedOffset{TopicPartition: tp, Offset: kafkaOffset(place.next), Metadata: place.metadata})
	}
	for _, m := range x.marks {
		if !m.home.isCurrent(m.epoch) {
			return fmt.Errorf("mark %s/%d: %w", m.at.Topic, m.at.Partition, errTakenAway)
		}
		all = append(all, wire.CommittedOffset{TopicPartition: m.at, Offset: m.offset})
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
		from := p.lastPlace()
		if o, ok := known[tp]; ok && o.Offset >= 0 {
			from = origin{lifeOf(o.Metadata).base + o.Offset, o.Metadata}
		}
		p.mu.Lock()
		places[tp] = p.life.place(from)
		p.mu.Unlock()
	}
	return places, nil
}

// lastPlace returns the last committed offset with its note, as this member knows it. It counts if Kafka has
// none: Kafka forgets the offset of a stream that is deleted.
func (p *inPartition) lastPlace() origin {
	p.mu.Lock()
	defer p.mu.Unlock()
	return origin{p.committed, p.metadata}
}
