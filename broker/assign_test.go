package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"

	"tidemill.dev"
	"tidemill.dev/broker/internal/wire"
	"tidemill.dev/broker/retry"
)

// groupModel simulates a group's members. They own partitions that are assigned to them, and keep
// partitions that are taken away until they join again.
type groupModel struct {
	t          *testing.T
	partitions map[string]int
	members    map[string]*claimant
	generation int32
	fenced     []int32 // slots fenced in the last round
}

func newGroupModel(t *testing.T, partitions map[string]int, members int) *groupModel {
	g := &groupModel{t: t, partitions: partitions, members: map[string]*claimant{}}
	for i := range members {
		g.join(fmt.Sprint("m", i))
	}
	return g
}

func (g *groupModel) join(id string) {
	topics := slices.Sorted(maps.Keys(g.partitions))
	g.members[id] = &claimant{id: id, topics: topics, slot: -1, generation: -1}
}

// runRound runs one generation and checks its invariants. It reports whether any partition was
// taken away, so that another round is needed.
func (g *groupModel) runRound() (again bool) {
	g.t.Helper()
	var claims []claimant
	before := map[wire.TopicPartition]string{}
	for id, m := range g.members {
		claims = append(claims, *m)
		for _, p := range m.owned {
			before[p] = id
		}
	}
	rand.Shuffle(len(claims), func(i, j int) { claims[i], claims[j] = claims[j], claims[i] })
	shares := assign(claims, g.partitions)
	g.generation++
	g.fenced = nil
	owner, slots := map[wire.TopicPartition]string{}, map[int32]string{}
	for id, s := range shares {
		for _, p := range s.partitions {
			if other, twice := owner[p]; twice {
				g.t.Fatalf("%v is %s's and %s's", p, id, other)
			}
			owner[p] = id
			if was, held := before[p]; held && was != id {
				g.t.Fatalf("%v goes to %s while %s still has it", p, id, was)
			}
		}
		if other, twice := slots[s.slot]; twice {
			g.t.Fatalf("slot %d is %s's and %s's", s.slot, id, other)
		}
		slots[s.slot] = id
		g.fenced = append(g.fenced, s.fence...)
		m := g.members[id]
		for _, p := range m.owned {
			again = again || !slices.Contains(s.partitions, p)
		}
		m.owned, m.slot, m.slots, m.generation = s.partitions, s.slot, s.slots, g.generation
	}
	for _, slot := range g.fenced {
		if holder, held := slots[slot]; held {
			g.t.Fatalf("slot %d is %s's and is fenced", slot, holder)
		}
	}
	return again
}

// runUntilStable runs rounds until no partition moves, and checks the result.
func (g *groupModel) runUntilStable() (rounds int) {
	g.t.Helper()
	for rounds = 1; g.runRound(); rounds++ {
		if rounds == 4 {
			g.t.Fatal("does not converge")
		}
	}
	total, least, most := 0, 1<<30, 0
	for _, m := range g.members {
		units := map[unit]bool{}
		for _, p := range m.owned {
			units[unitOf(p)] = true
		}
		total += len(m.owned)
		least, most = min(least, len(units)), max(most, len(units))
	}
	want := 0
	for _, n := range g.partitions {
		want += n
	}
	if total != want {
		g.t.Fatalf("%d partitions have an owner, of %d", total, want)
	}
	if most-least > 1 {
		g.t.Fatalf("one has %d, another %d", least, most)
	}
	return rounds
}

func (g *groupModel) ownership() map[wire.TopicPartition]string {
	all := map[wire.TopicPartition]string{}
	for id, m := range g.members {
		for _, p := range m.owned {
			all[p] = id
		}
	}
	return all
}

func TestAssignChurn(t *testing.T) {
	worst := 0
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		g := newGroupModel(t, map[string]int{"a": 1 + rnd.IntN(20), "b": rnd.IntN(8)}, 1+rnd.IntN(5))
		worst = max(worst, g.runUntilStable())
		for step := range 8 {
			switch id := fmt.Sprint("n", step); {
			case rnd.IntN(2) == 0 && len(g.members) > 1:
				gone := slices.Sorted(maps.Keys(g.members))[rnd.IntN(len(g.members))]
				delete(g.members, gone)
			case rnd.IntN(4) == 0:
				g.partitions["a"] += rnd.IntN(4)
			default:
				g.join(id)
			}
			if rnd.IntN(3) == 0 {
				g.runRound() // members may also change before the group has settled
			} else {
				worst = max(worst, g.runUntilStable())
			}
		}
		worst = max(worst, g.runUntilStable())
	}
	if worst > 3 {
		t.Errorf("the slowest group took %d rounds, 3 are allowed", worst)
	}
}

func TestAssignIsSticky(t *testing.T) {
	g := newGroupModel(t, map[string]int{"a": 12}, 4)
	g.runUntilStable()
	before := g.ownership()
	delete(g.members, "m2")
	g.runUntilStable()
	for p, now := range g.ownership() {
		if was := before[p]; was != "m2" && was != now {
			t.Errorf("m2 left, and %v moved from %s to %s", p, was, now)
		}
	}
	before = g.ownership()
	g.join("new")
	g.runUntilStable()
	moved := 0
	for p, now := range g.ownership() {
		if before[p] != now {
			moved++
			if now != "new" {
				t.Errorf("a member joined, and %v moved from %s to %s", p, before[p], now)
			}
		}
	}
	if moved != 3 {
		t.Errorf("%d of 12 moved to the fourth member, want 3", moved)
	}
}

func TestAssignKeepsParkedWithItsStream(t *testing.T) {
	parked := tidemill.Parked("events")
	g := newGroupModel(t, map[string]int{"events": 9, parked: 9}, 3)
	g.runUntilStable()
	owner := g.ownership()
	for i := range int32(9) {
		if a, b := owner[wire.TopicPartition{Topic: "events", Partition: i}], owner[wire.TopicPartition{Topic: parked, Partition: i}]; a != b {
			t.Errorf("partition %d is %s's and parked from it %s's", i, a, b)
		}
	}
}

func TestAssignConflictingClaims(t *testing.T) {
	p := []wire.TopicPartition{{Topic: "a", Partition: 0}}
	claim := func(id string, generation int32) claimant {
		return claimant{id: id, topics: []string{"a"}, owned: p, generation: generation, slot: -1}
	}
	owner := func(shares map[string]share) (all []string) {
		for id, s := range shares {
			if len(s.partitions) > 0 {
				all = append(all, id)
			}
		}
		return all
	}
	if got := owner(assign([]claimant{claim("x", 7), claim("y", 8)}, map[string]int{"a": 1})); !slices.Equal(got, []string{"y"}) {
		t.Errorf("it goes to %v, and y's claim is newer", got)
	}
	if got := owner(assign([]claimant{claim("x", 8), claim("y", 8)}, map[string]int{"a": 1})); len(got) != 1 {
		t.Errorf("two claims of one generation give %v", got)
	}
	if got := owner(assign([]claimant{claim("x", 8)}, map[string]int{"a": 0})); len(got) != 0 {
		t.Errorf("a partition that is not there is %v's", got)
	}
	other := claim("z", 9)
	other.topics = []string{"b"}
	if got := owner(assign([]claimant{other, claim("x", 1)}, map[string]int{"a": 1})); !slices.Equal(got, []string{"x"}) {
		t.Errorf("it goes to %v, and only x reads it", got)
	}
}

// Every slot that was ever held is either held again or fenced, once.
func TestAssignFencesLeftSlots(t *testing.T) {
	g := newGroupModel(t, map[string]int{"a": 4}, 4)
	g.runUntilStable()
	var left int32 = -1
	for id, m := range g.members {
		if m.slot == 1 {
			left = m.slot
			delete(g.members, id)
		}
	}
	g.runRound()
	if !slices.Equal(g.fenced, []int32{left}) {
		t.Errorf("slots %v are fenced, want %d", g.fenced, left)
	}
	g.join("new")
	g.runRound()
	if got := g.members["new"].slot; got != left {
		t.Errorf("the new member has slot %d, want the free %d", got, left)
	}
	g.members["twin"] = &claimant{id: "twin", topics: []string{"a"}, slot: left, slots: 4, generation: 1}
	g.runUntilStable() // checks that no slot is given twice
}

// A reader without a group notices added partitions and misses none of their events.
func TestReaderNoticesAddedPartitions(t *testing.T) {
	h := newHostile(t, 1)
	h.b.growthEvery = 20 * time.Millisecond
	c, err := h.b.Consumer(h.ctx(), ConsumerOptions{Streams: []string{"events"}, Start: Latest()})
	h.must(err)
	_, err = h.b.client.CreatePartitions(h.ctx(), &kafka.CreatePartitionsRequest{Topics: []kafka.TopicPartitionsConfig{{Name: "tidemill.events", Count: 8}}})
	h.must(err)
	h.b.cluster.mu.Lock()
	clear(h.b.cluster.topics)
	h.b.cluster.mu.Unlock()
	_, errs := h.publish(0, 40, ProducerOptions{})
	h.must(errors.Join(errs...))
	ctx, cancel := context.WithTimeout(h.ctx(), hostilePatience)
	defer cancel()
	for n := 0; n < 40; {
		d, err := c.Poll(ctx)
		if err != nil {
			t.Fatalf("%d of 40 events have come: %v", n, err)
		}
		n += len(d.Events)
		d.Done()
	}
	h.must(c.Close(h.ctx()))
}

// A reader of a stream that is deleted gets an error: with a group, without one, and also as a
// member that has lost its last partition of the stream.
func TestDeletedStreamEndsReading(t *testing.T) {
	for _, group := range []string{"", "g"} {
		t.Run("group "+group, func(t *testing.T) {
			h := newHostile(t, 1)
			h.b.growthEvery, h.b.missingFor = 20*time.Millisecond, 300*time.Millisecond
			c, err := h.b.Consumer(h.ctx(), ConsumerOptions{Group: group, Streams: []string{"events"}, SessionTimeout: time.Second})
			h.must(err)
			if group != "" {
				for len(c.Positions()) == 0 {
					h.must(retry.Sleep(h.ctx(), time.Millisecond))
				}
			}
			_, err = h.b.client.DeleteTopics(h.ctx(), &kafka.DeleteTopicsRequest{Topics: []string{"tidemill.events"}})
			h.must(err)
			ctx, cancel := context.WithTimeout(h.ctx(), hostilePatience)
			defer cancel()
			if _, err = c.Poll(ctx); !errors.Is(err, ErrNoStream) || !strings.Contains(err.Error(), "stream events") {
				t.Errorf("Poll returns %v", err)
			}
			if err := c.Close(ctx); err != nil {
				t.Errorf("Close waits for a commit to a stream that is gone: %v", err)
			}
		})
	}
}

// Added partitions are read although the hook Assigned fails for a while.
func TestAddedPartitionsAreTakenAgain(t *testing.T) {
	b, _ := openFake(t, kfake.SeedTopics(1, "prod.events"))
	b.growthEvery = time.Millisecond
	calls := 0
	c, err := b.Consumer(t.Context(), ConsumerOptions{Streams: []string{"events"}, Assigned: func(_ context.Context, at []Position) ([]Position, error) {
		if calls++; calls == 2 {
			return nil, context.DeadlineExceeded
		}
		return at, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	ensure(t, b, EnsureOptions{Reorder: true}, StreamSpec{Name: "events", Partitions: 2})
	p, err := b.Producer(ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.SendTo(t.Context(), "events", 1, plainEvent(), func(_ Receipt, err error) {
		if err != nil {
			t.Error(err)
		}
	})
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	poll(t, c).Done()
}
