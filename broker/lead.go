package broker

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

// lead shares the partitions out among the members.
func (m *member) lead(ctx context.Context, res *kafka.JoinGroupResponse) ([]kafka.SyncGroupRequestAssignment, error) {
	var claims []claimant
	counts := map[string]int{}
	for _, member := range res.Members {
		c := claimant{id: member.ID, topics: member.Metadata.Topics, slot: -1, generation: -1}
		var self introduction
		if json.Unmarshal(member.Metadata.UserData, &self) == nil {
			c.generation, c.slot, c.slots = self.Generation, self.Slot, self.Slots
		}
		for topic, parts := range member.Metadata.OwnedPartitions {
			for _, p := range parts {
				c.owned = append(c.owned, wire.TopicPartition{Topic: topic, Partition: int32(p)})
			}
		}
		claims = append(claims, c)
		for _, t := range c.topics {
			counts[t] = 0
		}
	}
	if err := m.c.b.count(ctx, counts); err != nil {
		return nil, err
	}
	began, err := m.begun(ctx)
	if err != nil {
		return nil, err
	}
	m.counts = counts
	var all []kafka.SyncGroupRequestAssignment
	for id, s := range assign(claims, counts) {
		place, err := json.Marshal(placement{s.slot, s.slots, s.fence, began})
		if err != nil {
			return nil, err
		}
		parts := map[string][]int{}
		for _, p := range s.partitions {
			parts[p.Topic] = append(parts[p.Topic], int(p.Partition))
		}
		all = append(all, kafka.SyncGroupRequestAssignment{MemberID: id,
			Assignment: kafka.GroupProtocolAssignment{AssignedPartitions: parts, UserData: place}})
	}
	return all, nil
}

// begun lists the topics that the group has begun to read, if it matters: a
// partition of those without an offset has been added since. A group that
// started behind the newest event must read it from its beginning, or what came
// before anyone noticed it would be passed over. The leader looks, because as
// soon as a generation stands its members write first offsets.
func (m *member) begun(ctx context.Context) ([]string, error) {
	if m.c.opt.Start.kind != atLatest {
		return nil, nil
	}
	known, err := m.c.b.groupOffsets(ctx, m.group, nil, false)
	began := map[string]bool{}
	for tp, o := range known {
		if o.Offset >= 0 {
			began[tp.Topic] = true
		}
	}
	return slices.Sorted(maps.Keys(began)), err
}

// count fills in how many partitions each topic has; a topic that is not there
// yet has none.
func (b *Broker) count(ctx context.Context, counts map[string]int) error {
	for topic := range counts {
		leaders, err := b.leaders(ctx, topic, time.Second)
		if err != nil && !errors.Is(err, kafka.UnknownTopicOrPartition) {
			return err
		}
		counts[topic] = len(leaders)
	}
	return nil
}

// grown tells a leader that there is more to share out than it has shared.
func (m *member) grown(ctx context.Context) bool {
	if !m.leads {
		return false
	}
	now := map[string]int{}
	for topic := range m.counts {
		now[topic] = 0
	}
	if m.c.b.count(ctx, now) != nil {
		return false
	}
	for topic, n := range now {
		if n > m.counts[topic] {
			return true
		}
	}
	return false
}
