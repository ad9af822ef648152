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
)

// apply takes what is new and begins to drain what is no longer ours.
func (m *member) apply(ctx context.Context, mine []wire.TopicPartition) error {
	var added []wire.TopicPartition
	var parting []*inPartition
	now := time.Now()
	m.c.drop(nil) // what a transaction has given up, or it would seem to be ours still
	m.c.mu.Lock()
	for tp, p := range m.c.parts {
		keep := slices.Contains(mine, tp)
		p.mu.Lock()
		switch {
		case keep && p.parting == remaining:
			p.keep()
		case keep: // given back too late: it goes all the way, and is taken anew in the next generation
		default:
			p.drain(now.Add(m.c.opt.DrainTimeout))
			if p.part() {
				parting = append(parting, p)
			}
		}
		p.mu.Unlock()
	}
	for _, tp := range mine {
		if m.c.parts[tp] == nil {
			added = append(added, tp)
		}
	}
	m.c.mu.Unlock()
	m.farewell(m.tenure, parting)
	m.c.counts.assigned.Store(int64(len(mine)))
	m.c.counts.rebalances.Add(1)
	m.c.b.log.Info("assigned", "group", m.group, "generation", m.generation, "partitions", len(mine), "new", len(added))
	return m.begin(ctx, added)
}

// begin reads partitions on from where their group has got to.
func (m *member) begin(ctx context.Context, added []wire.TopicPartition) error {
	if len(added) == 0 {
		return nil
	}
	places, err := m.places(ctx, added)
	if err != nil {
		return err
	}
	return m.c.take(ctx, places)
}

// places are where the group has got to. They are not waited for without end:
// while they are, nothing is committed, and a stream may be gone for good, which
// the next generation will know.
func (m *member) places(ctx context.Context, added []wire.TopicPartition) (map[wire.TopicPartition]origin, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*rebalanceTimeout)
	defer cancel()
	known, err := m.c.b.committedOffsets(ctx, m.group, added)
	if err != nil {
		return nil, err
	}
	places := map[wire.TopicPartition]origin{}
	var fresh, grown []wire.TopicPartition
	for _, tp := range added {
		if o, ok := known[tp]; ok && o.Offset >= 0 {
			places[tp] = origin{o.Offset, o.Metadata}
		} else if m.began[tp.Topic] {
			grown = append(grown, tp)
		} else {
			fresh = append(fresh, tp)
		}
	}
	err = m.start(ctx, places, fresh, m.c.opt.Start)
	if err == nil {
		err = m.start(ctx, places, grown, Earliest())
	}
	return places, err
}

// start adds where partitions begin that the group has no offset for.
func (m *member) start(ctx context.Context, places map[wire.TopicPartition]origin, parts []wire.TopicPartition, from Start) error {
	if len(parts) == 0 {
		return nil
	}
	starts, err := m.c.b.startOffsets(ctx, parts, from)
	if err == nil {
		err = m.settleDown(ctx, starts)
	}
	maps.Copy(places, starts)
	return err
}

// settleDown commits where a group begins before it reads on from there. If
// the first reader of a partition died before its first commit, its successor
// would look for the beginning anew, and behind the newest event that is
// elsewhere by then.
func (m *member) settleDown(ctx context.Context, starts map[wire.TopicPartition]origin) error {
	topics := map[string][]kafka.OffsetCommit{}
	for tp, from := range starts {
		topics[tp.Topic] = append(topics[tp.Topic], kafka.OffsetCommit{Partition: int(tp.Partition), Offset: from.offset})
	}
	refused, err := m.commitOffsets(ctx, topics)
	for tp, e := range refused {
		err = errors.Join(err, named("commit the start of", fmt.Sprintf("%s/%d", tp.Topic, tp.Partition), e))
	}
	return rejoin(asMembership(err))
}
