package brokertest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"tidemill.dev/broker"
)

// publishUntilStopped publishes under some keys until stop is called; stop returns the events sent.
func (w *testWorld) publishUntilStopped(stream string, keys int) (stop func() *sentEvents) {
	return w.flowOf(stream, keys, math.MaxInt)
}

// flowOf publishes at most the given number of events per key, so that readers have the same work
// on a slow machine as on a fast machine.
func (w *testWorld) flowOf(stream string, keys, each int) (stop func() *sentEvents) {
	p := w.producer(broker.ProducerOptions{Timeout: 2 * waitLimit}) // a restart may take its time
	s := newSent()
	ctx, cancel := context.WithCancel(w.testContext())
	var wg sync.WaitGroup
	wg.Go(func() {
		beat := time.NewTicker(25 * time.Millisecond)
		defer beat.Stop()
		for n := range each {
			for k := range keys {
				s.send(w.Context(), p, stream, testEvent(key(k), n))
			}
			select {
			case <-beat.C:
			case <-ctx.Done():
				return
			}
		}
	})
	return func() *sentEvents {
		cancel()
		wg.Wait()
		s.wait(w)
		return s
	}
}

// waitMore waits until a group has received 100 more events, so that the next step happens in
// the middle.
func (y *deliveryCount) waitMore(w *testWorld) {
	w.Helper()
	y.mu.Lock()
	have := len(y.count)
	y.mu.Unlock()
	t0 := time.Now()
	y.waitFor(w, have+100)
	w.Logf("100 more events came within %s", time.Since(t0).Round(time.Millisecond))
}

// If members join and leave in order, every event comes exactly once.
func groupChurn(w *testWorld) {
	w.stream("events", 8)
	stop := w.publishUntilStopped("events", 20)
	y := newTally()
	var members []*testReader
	for range 4 {
		members = append(members, w.reader("g", "events", y))
		y.waitMore(w)
	}
	members[0].leave()
	y.waitMore(w)
	members[2].leave()
	y.waitMore(w)
	members = append(members, w.reader("g", "events", y))
	y.waitMore(w)
	s := stop()
	y.waitFor(w, len(s.all))
	for _, i := range []int{1, 3, 4} {
		members[i].leave()
	}
	y.checkNoRepeats(w)
	if lag := w.groupLag("events", "g").Lag; lag != 0 {
		w.Errorf("all have come and gone, and the lag is %d", lag)
	}
}

// A member that keeps its partitions through a rebalance continues to read these partitions.
func groupStall(w *testWorld) {
	w.stream("events", 8)
	y := newTally()
	stop := w.publishUntilStopped("events", 32)
	a := w.reader("g", "events", y)
	y.waitMore(w)
	for range 3 {
		t0 := time.Now()
		b := w.reader("g", "events", y)
		w.pollUntil("the new member has its share", func() bool { return b.partitionsRead() == 4 })
		w.Logf("a new member had its share %s after it began to join", time.Since(t0).Round(time.Millisecond))
		b.leave()
		y.waitMore(w)
	}
	s := stop()
	y.waitFor(w, len(s.all))
	a.leave()
	y.checkNoRepeats(w)
	var all []time.Duration
	for _, d := range a.longest {
		all = append(all, d.Round(time.Millisecond))
	}
	slices.Sort(all)
	w.Logf("longest wait for the next event of each partition over six rebalances, those that were kept first: %v", all)
}

// A group notices added partitions and reads them from their start.
func groupGrowth(w *testWorld) {
	w.stream("events", 2)
	y := newTally()
	r := w.reader("g", "events", y)
	s := w.publish("events", 6, 10)
	y.waitFor(w, len(s.all))
	w.stream("events", 5)
	p, err := w.reopen().Producer(broker.ProducerOptions{})
	w.must(err)
	more := newSent()
	for k := range 40 {
		more.send(w.testContext(), p, "events", testEvent("grown-"+key(k), 0))
	}
	w.must(p.Close(w.testContext()))
	more.wait(w)
	spread := map[int32]bool{}
	for _, r := range more.all {
		spread[r.Partition] = true
	}
	if len(spread) != 5 {
		w.Errorf("40 keys use %d of 5 partitions", len(spread))
	}
	y.waitFor(w, len(s.all)+len(more.all))
	r.leave()
	y.checkNoRepeats(w)
}

// reportAssigned is a hook that sends its positions to a channel.
func reportAssigned(to chan<- []broker.Position) func(context.Context, []broker.Position) ([]broker.Position, error) {
	return func(_ context.Context, all []broker.Position) ([]broker.Position, error) {
		to <- append([]broker.Position(nil), all...)
		return nil, nil
	}
}

// hookMember is a member whose hooks check the order of their calls. It writes its own number
// as mark and note of every partition that it leaves.
type hookMember struct {
	*testWorld
	number int64
	c      *broker.Consumer
	t      *broker.Transactor

	mu    sync.Mutex
	state map[int32]string
	found map[int32]int64 // mark of each partition at its assignment
}

func (w *testWorld) tenant(number int64) *hookMember {
	w.Helper()
	n := &hookMember{testWorld: w, number: number, state: map[int32]string{}, found: map[int32]int64{}}
	ready := make(chan struct{})
	defer close(ready)
	n.c, n.t = w.transactorOf(broker.ConsumerOptions{Group: "g", Streams: []string{"in"}, SessionTimeout: 3 * time.Second,
		Assigned: n.assigned, Gone: n.gone,
		Leaving: func(ctx context.Context, all []broker.Position) { <-ready; n.leaving(ctx, all) }})
	return n
}

func (n *hookMember) step(all []broker.Position, to string, from ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range all {
		before, ok := n.state[p.Partition], false
		for _, f := range from {
			ok = ok || f == before
		}
		if !ok {
			n.Errorf("partition %d of tenant %d is %s after it was %q", p.Partition, n.number, to, before)
		}
		n.state[p.Partition] = to
	}
}

func (n *hookMember) assigned(ctx context.Context, all []broker.Position) ([]broker.Position, error) {
	var parked []broker.Position
	for _, p := range all {
		parked = append(parked, broker.Position{Stream: inParked, Partition: p.Partition})
	}
	marked, err := n.b.Committed(ctx, "g", parked)
	n.mu.Lock()
	for i, p := range marked {
		if note := strings.TrimPrefix(all[i].Note, "left by "); p.Offset != -1 && note != strconv.FormatInt(p.Offset, 10) || p.Offset == -1 && note != "" {
			n.Errorf("tenant %d gets %+v, and finds the mark %d", n.number, all[i], p.Offset)
		}
		n.found[p.Partition] = p.Offset
	}
	n.mu.Unlock()
	n.step(all, "assigned", "", "gone", "assigned")
	return nil, err
}

func (n *hookMember) leaving(ctx context.Context, all []broker.Position) {
	n.step(all, "leaving", "assigned")
	err := n.t.Do(ctx, func(x *broker.Tx) error {
		for _, p := range all {
			x.Mark(broker.Position{Stream: inParked, Partition: p.Partition, Offset: n.number})
			x.Note(p.Stream, p.Partition, "left by "+strconv.FormatInt(n.number, 10))
		}
		return nil
	})
	if err != nil {
		n.Errorf("tenant %d cannot say where it left: %v", n.number, err)
	}
	n.step(all, "left", "leaving")
}

func (n *hookMember) gone(all []broker.Position) { n.step(all, "gone", "assigned", "leaving", "left") }

// countInState counts the partitions in the given state.
func (n *hookMember) countInState(state string) (count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.state {
		if s == state {
			count++
		}
	}
	return count
}

// foundMarks returns the marks found in the partitions that are still assigned, with their counts.
func (n *hookMember) foundMarks() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	count := map[int64]int{}
	for p, at := range n.found {
		if n.state[p] == "assigned" {
			count[at]++
		}
	}
	return fmt.Sprint(count)
}

// The next owner of a partition finds the marks and notes that the former owner committed before it
// left. This holds after a rebalance and after Close, but not after an expulsion.
func tenures(w *testWorld) {
	w.stream("in", 6)
	w.stream(inParked, 6)
	a := w.tenant(1)
	w.pollUntil("the first has all", func() bool { return a.countInState("assigned") == 6 })
	b := w.tenant(2)
	w.pollUntil("they share", func() bool {
		return a.countInState("assigned") == 3 && a.countInState("gone") == 3 && b.countInState("assigned") == 3
	})
	if got := b.foundMarks(); got != "map[1:3]" {
		w.Errorf("the second finds %s", got)
	}
	w.close(a.c)
	if n := a.countInState("gone"); n != 6 {
		w.Errorf("the first has closed, and %d partitions are gone", n)
	}
	w.pollUntil("the second has all", func() bool { return b.countInState("assigned") == 6 })
	if got := b.foundMarks(); got != "map[1:6]" {
		w.Errorf("the second finds %s", got)
	}
	w.removeMembers("g")
	c := w.tenant(3)
	w.pollUntil("they share anew", func() bool { return b.countInState("assigned") == 3 && c.countInState("assigned") == 3 })
	w.close(b.c)
	w.pollUntil("the third has all", func() bool { return c.countInState("assigned") == 6 })
	if got := c.foundMarks(); got != "map[1:3 2:3]" && got != "map[2:6]" { // the third member joined before or after the second was back
		w.Errorf("the third finds %s", got)
	}
	w.close(c.c)
	if n := c.countInState("gone"); n != 6 {
		w.Errorf("the third has closed, and %d partitions are gone", n)
	}
}
