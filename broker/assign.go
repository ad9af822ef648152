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

// assignPartitions assigns the partitions to the members. Only the group's leader calls it.
func (m *member) assignPartitions(ctx context.Context, res *kafka.JoinGroupResponse) ([]kafka.SyncGroupRequestAssignment, error) {
	var claims []claimant
	counts := map[string]int{}
	for _, member := range res.Members {
		c := claimant{id: member.ID, topics: member.Metadata.Topics, slot: -1, generation: -1}
		var self introduction
		if json.Unmarshal(member.Metadata.UserData, &self) == nil {
			c.generation, c.slot, c.slots = self.Generation, self.Slot, self.Slots
			c.topics = slices.DeleteFunc(c.topics, func(t string) bool { return slices.Contains(self.Unread, t) })
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
	if err := m.c.b.countPartitions(ctx, counts); err != nil {
		return nil, err
	}
	began, err := m.topicsBegun(ctx, counts)
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

// topicsBegun lists the topics that the group has begun to read, if the group starts at the latest
// event. A partition of these topics without an offset was added later, so the partition must be
// read from its beginning. Otherwise its first events would be skipped. The leader reads the
// group's offsets before the generation begins, because the members of that generation write their
// first offsets. For other topics it records where the group begins.
func (m *member) topicsBegun(ctx context.Context, counts map[string]int) ([]string, error) {
	if m.c.opt.Start.kind != atLatest {
		return nil, nil
	}
	known, err := m.c.b.groupOffsets(ctx, m.group, nil, false)
	if err != nil {
		return nil, err
	}
	began := map[string]bool{}
	for tp, o := range known {
		if o.Offset >= 0 {
			began[tp.Topic] = true
		}
	}
	isNew := func(stream string) bool { return !began[m.c.b.names.Topic(stream)] }
	if slices.ContainsFunc(m.c.opt.Streams, isNew) { // the group is new to the stream, or Kafka has forgotten its offsets
		records, err := m.recorded(ctx)
		if err != nil {
			return nil, err
		}
		for tp, r := range records {
			if !r.First || tp.Partition == 0 {
				began[tp.Topic] = true
			}
		}
		if err := m.recordFirst(ctx, began, counts); err != nil {
			return nil, err
		}
	}
	return slices.Sorted(maps.Keys(began)), nil
}

// recordFirst records the ends of topics that the group has not begun to read. A member finds them as the group's places. Otherwise,
// if the first reader of a partition died before its first commit, the next reader would begin at a later end, or at the
// partition's beginning if another partition has an offset. A member cannot commit for the others, because they may
// have committed later offsets by then.
func (m *member) recordFirst(ctx context.Context, began map[string]bool, counts map[string]int) error {
	var fresh []wire.TopicPartition
	for topic, n := range counts {
		for p := range int32(n) {
			if !began[topic] {
				fresh = append(fresh, wire.TopicPartition{Topic: topic, Partition: p})
			}
		}
	}
	fresh, lost, err := m.withoutRecord(ctx, fresh)
	if err != nil || len(fresh) == 0 || len(lost) > 0 { // of lost ones it has read something
		return err
	}
	places, err := m.firstOffsets(ctx, fresh, Latest(), &knownLives{b: m.c.b})
	if err != nil {
		return err
	}
	var others, zero []groupRecord // the record of partition 0 says that all others are there
	for tp, at := range places {
		r := m.recordOf(tp, at)
		r.First, r.Final = true, true
		if tp.Partition == 0 {
			zero = append(zero, r)
		} else {
			others = append(others, r)
		}
	}
	if err := m.c.b.writeGroupRecords(ctx, m.c.letters.p, others); err != nil {
		return err
	}
	return m.c.b.writeGroupRecords(ctx, m.c.letters.p, zero)
}

// countPartitions fills in the number of partitions of each topic. A topic that does not exist yet
// has no partitions.
func (b *Broker) countPartitions(ctx context.Context, counts map[string]int) error {
	for topic := range counts {
		leaders, err := b.leaders(ctx, topic, time.Second)
		if err != nil && !errors.Is(err, kafka.UnknownTopicOrPartition) {
			return err
		}
		counts[topic] = len(leaders)
	}
	return nil
}

// haveChanged reports to a leader whether the group's topics have more partitions than the leader has
// assigned, or fewer, because they were created again.
func (m *member) haveChanged(ctx context.Context) bool {
	if !m.leads {
		return false
	}
	now := map[string]int{}
	for topic := range m.counts {
		now[topic] = 0
	}
	if m.c.b.countPartitions(ctx, now) != nil {
		return false
	}
	for topic, n := range now {
		if n != m.counts[topic] && n > 0 {
			return true
		}
	}
	return false
}

// claimant is the data that a member sends to its group when it joins.
type claimant struct {
	id         string
	topics     []string
	owned      []wire.TopicPartition
	generation int32 // generation in which the member got the owned partitions
	slot       int32 // -1 before its first assignment
	slots      int32 // number of slots that the member knows of
}

// share is the part of the assignment that one member gets.
type share struct {
	partitions []wire.TopicPartition
	slot       int32
	slots      int32
	fence      []int32 // slots whose holders are gone, to be fenced by this member
}

// unit is the smallest thing that is assigned: one partition of a stream, with the same partition
// of its parked companion. So the reader of a partition also reads the records that were parked
// from this partition.
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

// assign distributes partitions evenly, with as few moves as possible, and cooperatively.
// Cooperatively means that a partition that moves away from a living member has no owner for one
// generation. The old owner of the partition sees the loss, finishes its open events and joins
// again. Then the partition gets its new owner. The other members do not pause.
//
// assign is a pure function of its arguments, so any member may be the leader.
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
	owner   map[unit]int // present owner
	target  map[unit]int // owner after this assignment
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

// keepOwned accepts the members' claims. If two members claim one unit, the claim of the newer
// generation counts; if both are of the same generation, neither counts.
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
		if i := a.leastLoaded(u); i >= 0 {
			a.target[u] = i
			a.load[i]++
		}
	}
}

// leastLoaded returns the least loaded member that reads a unit's stream.
func (a *assignment) leastLoaded(u unit) int {
	best := -1
	for i := range a.members {
		if a.reads[i][u.topic] && (best < 0 || a.load[i] < a.load[best]) {
			best = i
		}
	}
	return best
}

// balance moves units away from members that have at least two more than another reader of the
// stream.
func (a *assignment) balance() {
	for moved := true; moved; {
		moved = false
		for _, u := range a.units {
			from, held := a.target[u]
			to := a.leastLoaded(u)
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

// slotShares gives each member a slot, which names its transactional id. A member keeps its slot. A
// new member gets the lowest free slot, and fences the former holder. The first member fences the
// slots that stay free, because an open transaction there would otherwise delay readers until it
// times out.
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
	missingFor  = time.Minute // time after which a missing stream counts as deleted
)

// watchPartitions looks for partitions that are added to the streams of a consumer without a group.
// Added partitions are read from their beginning.
func (c *Consumer) watchPartitions(counts map[string]int) {
	for retry.Sleep(c.ctx, c.b.growthEvery) == nil {
		for topic, before := range counts {
			n, err := c.takeAdded(topic, before)
			if err != nil && c.ctx.Err() == nil && !isTransient(err) {
				c.failReading(fmt.Errorf("look after added partitions: %w", err))
			}
			counts[topic] = n
		}
	}
}

// takeAdded takes the partitions that were added to a topic.
func (c *Consumer) takeAdded(topic string, before int) (int, error) {
	ctx, cancel := context.WithTimeout(c.ctx, c.b.requestTimeout)
	defer cancel()
	leaders, err := c.b.leaders(ctx, topic, maxLeaderAge)
	if err != nil || len(leaders) <= before {
		return before, err
	}
	var added []wire.TopicPartition
	for i := before; i < len(leaders); i++ {
		added = append(added, wire.TopicPartition{Topic: topic, Partition: int32(i)})
	}
	places, err := c.firstPlaces(ctx, added, Earliest())
	if err == nil {
		err = c.take(ctx, places)
	}
	if err != nil {
		return before, err
	}
	return len(leaders), nil
}

// recordMissing records whether Kafka knows a partition. Kafka may deny that a partition exists
// while a server restarts. After a minute of denials, reading ends, because otherwise the consumer
// would silently wait for a deleted stream. Partition -1 means the whole topic.
func (c *Consumer) recordMissing(tp wire.TopicPartition, err error) {
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
		if errors.Is(err, errSurplus) {
			c.failReading(fmt.Errorf("read stream %s: %w: it has no partition %d, because it was created again with fewer partitions", stream, ErrNoStream, tp.Partition))
			return
		}
		c.failReading(fmt.Errorf("read stream %s: it has not been there for %v and must have been deleted: %w", stream, gone.Round(time.Second), noStream(err)))
	}
}

// checkStreams checks that a member's streams still exist. If the member has no partition of a
// deleted stream, no failing fetch shows that the stream is gone.
func (m *member) checkStreams(ctx context.Context) {
	for _, s := range m.c.opt.Streams {
		topic := m.c.b.names.Topic(s)
		_, err := m.c.b.leaders(ctx, topic, m.c.b.growthEvery/2)
		m.c.recordMissing(wire.TopicPartition{Topic: topic, Partition: -1}, err)
	}
}
