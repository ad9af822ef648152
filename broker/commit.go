package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

// each calls do for every partition, without the lock.
func (c *Consumer) each(do func(*inPartition)) {
	c.mu.Lock()
	all := make([]*inPartition, 0, len(c.parts))
	for _, p := range c.parts {
		all = append(all, p)
	}
	c.mu.Unlock()
	for _, p := range all {
		do(p)
	}
}

// drainedBy tells whether a draining partition may be given up. Called with
// its lock held.
func (p *inPartition) drainedBy(now time.Time) bool {
	return p.mark.open() == 0 && p.parting != leaving && !p.reserved || now.After(p.drainBy)
}

// draining counts the partitions that still drain and finds those that are
// done.
func (c *Consumer) draining(now time.Time) (waiting int, ready []*inPartition) {
	c.each(func(p *inPartition) {
		p.mu.Lock()
		defer p.mu.Unlock()
		switch {
		case !p.draining || p.gone:
		case p.drainedBy(now):
			ready = append(ready, p)
		default:
			waiting++
		}
	})
	return waiting, ready
}

// commit commits how far every partition has got, in the name of the present
// generation. Kafka refuses it if the generation has ended.
func (m *member) commit(ctx context.Context) error {
	type moved struct {
		p     *inPartition
		epoch uint64
		to    int64
		with  string
	}
	m.committing.Lock()
	defer m.committing.Unlock()
	var all []moved
	topics := map[string][]kafka.OffsetCommit{}
	m.c.each(func(p *inPartition) {
		p.mu.Lock()
		defer p.mu.Unlock()
		with := p.beside(p.mark.next, m.bare)
		if !p.gone && !p.reserved && (p.mark.next > p.committed || with != p.metadata) {
			all = append(all, moved{p, p.epoch, p.mark.next, with})
			topics[p.tp.Topic] = append(topics[p.tp.Topic], kafka.OffsetCommit{Partition: int(p.tp.Partition), Offset: p.mark.next, Metadata: with})
		}
	})
	if len(all) == 0 {
		return nil
	}
	refused, err := m.commitOffsets(ctx, topics)
	if err != nil {
		return err
	}
	bare := m.bare // as these were
	for _, c := range all {
		if e := refused[c.p.tp]; e != nil {
			e = m.refused(e, bare && c.with != "")
			err = graver(err, fmt.Errorf("commit offset of %s/%d: %w", c.p.stream, c.p.tp.Partition, asMembership(e)))
			continue
		}
		c.p.mu.Lock()
		if c.p.epoch == c.epoch {
			c.p.committed, c.p.metadata = max(c.p.committed, c.to), c.with
		}
		c.p.mu.Unlock()
	}
	return err
}

// refused goes on with notes alone where the metadata was too large for Kafka.
// What was a note alone stays too large.
func (m *member) refused(err error, alone bool) error {
	if !errors.Is(err, kafka.OffsetMetadataTooLarge) {
		return err
	}
	m.bare = true
	if alone {
		err = fmt.Errorf("%w: %w", errNoteTooLarge, err)
	}
	return err
}

// refusedForGood tells whether an offset that could not be committed will not be
// at the next tick either. That ends reading: work would go on, all of it would
// be done again after the next rebalance, and nobody would know.
func refusedForGood(err error) bool {
	var code kafka.Error
	return errors.Is(err, errNoteTooLarge) || errors.As(err, &code) && !passingCode(code) &&
		!slices.Contains([]kafka.Error{kafka.RebalanceInProgress, kafka.OffsetMetadataTooLarge, kafka.Unknown}, code)
}

// commitOffsets sends offsets in the name of the present generation and returns
// those that were refused.
func (m *member) commitOffsets(ctx context.Context, topics map[string][]kafka.OffsetCommit) (map[wire.TopicPartition]error, error) {
	res, err := m.c.b.client.OffsetCommit(ctx, &kafka.OffsetCommitRequest{GroupID: m.group, GenerationID: int(m.generation),
		MemberID: m.id, Topics: topics})
	if err != nil {
		return nil, fmt.Errorf("commit offsets of group %s: %w", m.group, err)
	}
	refused := map[wire.TopicPartition]error{}
	for topic, parts := range res.Topics {
		for _, p := range parts {
			if p.Error != nil {
				refused[wire.TopicPartition{Topic: topic, Partition: int32(p.Partition)}] = p.Error
			}
		}
	}
	return refused, nil
}

// reserve leaves partitions to a transaction until the returned function is
// called, and fixes what it commits of them. Kafka lets the offset count that was
// written last: one committed outside the transaction, between its own offsets
// and its end, would stay when it ends, and what the transaction has read would
// be read again. The other way round, an offset that was committed before must
// not lie beyond the transaction's, which would take it back. The homes of marks
// are reserved as well, so that they are not given up in the middle.
func (m *member) reserve(places map[wire.TopicPartition]*txPlace, marks []txMark) (release func()) {
	parts := make([]*inPartition, 0, len(places)+len(marks))
	for _, mark := range marks {
		parts = append(parts, mark.home)
	}
	m.committing.Lock() // what is on its way has arrived then
	defer m.committing.Unlock()
	for _, place := range places {
		parts = append(parts, place.p)
		place.fix(m.bare)
	}
	for _, p := range parts {
		p.reserve(true)
	}
	return func() {
		for _, p := range parts {
			p.reserve(false)
		}
	}
}

// reserve leaves the partition to a transaction, or no longer.
func (p *inPartition) reserve(to bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reserved = to
	if !to && p.draining {
		p.c.member.nudge() // it has waited for that
	}
}

// bear does without what has ended beyond the offsets: Kafka takes less metadata
// than we have.
func (m *member) bear(places map[wire.TopicPartition]*txPlace) {
	m.committing.Lock()
	m.bare = true
	m.committing.Unlock()
	for _, place := range places {
		place.p.mu.Lock()
		place.beside = place.p.beside(place.next, true)
		place.p.mu.Unlock()
	}
}
