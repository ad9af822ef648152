package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev"
	"tidemill.dev/broker/internal/wire"
	"tidemill.dev/broker/retry"
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

// claimant is a member of a group as it introduces itself when it joins.
type claimant struct {
	id         string
	topics     []string
	owned      []wire.TopicPartition
	generation int32 // of the assignment it owns that from
	slot       int32 // -1 before its first assignment
	slots      int32 // how many there were, as far as it knows
}

// share is what a member gets.
type share struct {
	partitions []wire.TopicPartition
	slot       int32
	slots      int32
	fence      []int32 // slots whose holders are gone, to be fenced by this member
}

// unit is what is assigned as a whole: one partition number of a stream and of
// the stream's parked companion, so that whoever reads a partition also reads
// what was parked from it.
type unit struct {
	topic     string
	partition int32
}

func unitOf(p wire.TopicPartition) unit {
	return unit{strings.TrimSuffix(p.Topic, tidemill.Parked("")), p.Partition}
}

func compareUnits(a, b unit) int {
	return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.partition, b.partition))
}

// assign shares partitions out: evenly, with as few moves as evenness allows,
// and cooperatively. Cooperatively means that what moves from a living member
// is given to nobody this time: its owner sees that it has lost it, finishes
// what it has begun, and joins again, and only then is it given away. Nobody
// else pauses meanwhile.
//
// It is pure and depends on nothing but its arguments' values, so any member
// may lead.
func assign(members []claimant, partitions map[string]int) map[string]share {
	members = slices.Clone(members)
	slices.SortFunc(members, func(a, b claimant) int { return strings.Compare(a.id, b.id) })
	a := newAssignment(members, partitions)
	a.keepOwned()
	a.giveFree()
	a.balance()
	shares := a.shares()
	slotShares(members, shares)
	return shares
}

type assignment struct {
	members []claimant
	holds   map[unit][]wire.TopicPartition
	units   []unit
	owner   map[unit]int // who has it now
	target  map[unit]int // who shall have it
	load    []int
	reads   []map[string]bool
}

func newAssignment(members []claimant, partitions map[string]int) *assignment {
	a := &assignment{members: members, holds: map[unit][]wire.TopicPartition{}, owner: map[unit]int{}, target: map[unit]int{},
		load: make([]int, len(members))}
	wanted := map[string]bool{}
	for _, m := range members {
		reads := map[string]bool{}
		for _, t := range m.topics {
			reads[unitOf(wire.TopicPartition{Topic: t}).topic] = true
			wanted[t] = true
		}
		a.reads = append(a.reads, reads)
	}
	for _, topic := range slices.Sorted(maps.Keys(wanted)) {
		for i := range partitions[topic] {
			p := wire.TopicPartition{Topic: topic, Partition: int32(i)}
			a.holds[unitOf(p)] = append(a.holds[unitOf(p)], p)
		}
	}
	a.units = slices.SortedFunc(maps.Keys(a.holds), compareUnits)
	return a
}

// keepOwned believes claims. Where two members claim one unit, the claim from
// the newer assignment counts; from the same one neither does.
func (a *assignment) keepOwned() {
	claimed := map[unit]int32{}
	for i, m := range a.members {
		for _, p := range m.owned {
			u := unitOf(p)
			if a.holds[u] == nil || !a.reads[i][u.topic] {
				continue
			}
			switch held, ok := a.owner[u]; {
			case ok && held == i:
			case !ok || m.generation > claimed[u]:
				a.owner[u], claimed[u] = i, m.generation
			case m.generation == claimed[u]:
				a.owner[u] = -1
			}
		}
	}
	for u, i := range a.owner {
		if i < 0 {
			delete(a.owner, u)
			continue
		}
		a.target[u] = i
		a.load[i]++
	}
}

func (a *assignment) giveFree() {
	for _, u := range a.units {
		if _, held := a.target[u]; held {
			continue
		}
		if i := a.least(u); i >= 0 {
			a.target[u] = i
			a.load[i]++
		}
	}
}

// least is the least loaded member that reads a unit's stream.
func (a *assignment) least(u unit) int {
	best := -1
	for i := range a.members {
		if a.reads[i][u.topic] && (best < 0 || a.load[i] < a.load[best]) {
			best = i
		}
	}
	return best
}

// balance moves units from members that have two more than another could.
func (a *assignment) balance() {
	for moved := true; moved; {
		moved = false
		for _, u := range a.units {
			from, held := a.target[u]
			to := a.least(u)
			if held && to >= 0 && a.load[from] > a.load[to]+1 {
				a.target[u] = to
				a.load[from]--
				a.load[to]++
				moved = true
			}
		}
	}
}

func (a *assignment) shares() map[string]share {
	shares := make(map[string]share, len(a.members))
	for _, m := range a.members {
		shares[m.id] = share{}
	}
	for _, u := range a.units {
		to, ok := a.target[u]
		if from, held := a.owner[u]; !ok || held && from != to {
			continue
		}
		s := shares[a.members[to].id]
		for _, p := range a.holds[u] {
			if slices.Contains(a.members[to].topics, p.Topic) {
				s.partitions = append(s.partitions, p)
			}
		}
		shares[a.members[to].id] = s
	}
	return shares
}

// slotShares numbers the members. A slot names a transactional id; a member
// keeps its own, a new member takes the lowest that is free, which fences the
// slot's former holder. Slots that nobody takes are fenced by the first
// member, or what their holders left open would hold up readers until it times
// out.
func slotShares(members []claimant, shares map[string]share) {
	taken := map[int32]bool{}
	slots := int32(len(members))
	for _, m := range members {
		slots = max(slots, m.slots)
	}
	give := func(m claimant, slot int32) {
		s := shares[m.id]
		s.slot = slot
		shares[m.id] = s
		taken[slot] = true
	}
	var without []claimant
	for _, m := range members {
		if m.slot >= 0 && m.slot < slots && !taken[m.slot] {
			give(m, m.slot)
		} else {
			without = append(without, m)
		}
	}
	next := int32(0)
	for _, m := range without {
		for taken[next] {
			next++
		}
		give(m, next)
	}
	var fence []int32
	last := int32(0)
	for slot := range slots {
		if taken[slot] {
			last = slot + 1
		} else {
			fence = append(fence, slot)
		}
	}
	for i, m := range members {
		s := shares[m.id]
		s.slots = last
		if i == 0 {
			s.fence = fence
		}
		shares[m.id] = s
	}
}

const (
	growthEvery = 10 * time.Second
	missingFor  = time.Minute // after which a stream that is not there is taken for deleted
)

// watch looks, for a consumer without a group, after partitions that are added
// to its streams. They are read from their beginning.
func (c *Consumer) watch(counts map[string]int) {
	for retry.Sleep(c.ctx, c.b.growthEvery) == nil {
		for topic, before := range counts {
			n, err := c.grow(topic, before)
			if err != nil && c.ctx.Err() == nil && !passing(err) {
				c.fail(fmt.Errorf("look after added partitions: %w", err))
			}
			counts[topic] = n
		}
	}
}

// grow takes the partitions that a topic has beyond those that were there.
func (c *Consumer) grow(topic string, before int) (int, error) {
	ctx, cancel := context.WithTimeout(c.ctx, c.b.requestTimeout)
	defer cancel()
	leaders, err := c.b.leaders(ctx, topic, fresh)
	if err != nil || len(leaders) <= before {
		return before, err
	}
	var added []wire.TopicPartition
	for i := before; i < len(leaders); i++ {
		added = append(added, wire.TopicPartition{Topic: topic, Partition: int32(i)})
	}
	places, err := c.b.startOffsets(ctx, added, Earliest())
	if err != nil {
		return before, err
	}
	return len(leaders), c.take(ctx, places)
}

// missing takes note whether Kafka knows a place. It may deny that it does
// while a server restarts; a minute of that ends reading, which would otherwise
// look in silence for a stream that has been deleted. A partition of -1 stands
// for the whole topic.
func (c *Consumer) missing(tp wire.TopicPartition, err error) {
	c.mu.Lock()
	if !errors.Is(err, kafka.UnknownTopicOrPartition) {
		if err == nil {
			delete(c.absent, tp)
		}
		c.mu.Unlock()
		return
	}
	since, known := c.absent[tp]
	if !known {
		since = time.Now()
		c.absent[tp] = since
	}
	c.mu.Unlock()
	if gone := time.Since(since); gone >= c.b.missingFor {
		stream, _ := c.b.names.Stream(tp.Topic)
		c.fail(fmt.Errorf("read stream %s: it has not been there for %v and must have been deleted: %w", stream, gone.Round(time.Second), noStream(err)))
	}
}

// lookAfter checks that the streams of a member are still there: of one that is
// not it has no partitions to fail at.
func (m *member) lookAfter(ctx context.Context) {
	for _, s := range m.c.opt.Streams {
		topic := m.c.b.names.Topic(s)
		_, err := m.c.b.leaders(ctx, topic, m.c.b.growthEvery/2)
		m.c.missing(wire.TopicPartition{Topic: topic, Partition: -1}, err)
	}
}
