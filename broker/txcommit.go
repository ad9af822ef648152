package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

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
		if err := sleep(ctx, 2*time.Millisecond); err != nil {
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
