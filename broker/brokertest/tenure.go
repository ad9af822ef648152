package brokertest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"tidemill.dev/broker"
)

// tellAssigned is a hook that tells what it is asked.
func tellAssigned(to chan<- []broker.Position) func(context.Context, []broker.Position) ([]broker.Position, error) {
	return func(_ context.Context, all []broker.Position) ([]broker.Position, error) {
		to <- append([]broker.Position(nil), all...)
		return nil, nil
	}
}

// tenant is a member whose hooks check their order, and which marks and notes a
// number of its own for every partition it leaves.
type tenant struct {
	*world
	number int64
	c      *broker.Consumer
	t      *broker.Transactor

	mu    sync.Mutex
	state map[int32]string
	found map[int32]int64 // what was marked when a partition was assigned
}

func (w *world) tenant(number int64) *tenant {
	w.Helper()
	n := &tenant{world: w, number: number, state: map[int32]string{}, found: map[int32]int64{}}
	ready := make(chan struct{})
	defer close(ready)
	n.c, n.t = w.transactorOf(broker.ConsumerOptions{Group: "g", Streams: []string{"in"}, SessionTimeout: 3 * time.Second,
		Assigned: n.assigned, Gone: n.gone,
		Leaving: func(ctx context.Context, all []broker.Position) { <-ready; n.leaving(ctx, all) }})
	return n
}

func (n *tenant) step(all []broker.Position, to string, from ...string) {
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

func (n *tenant) assigned(ctx context.Context, all []broker.Position) ([]broker.Position, error) {
	var parked []broker.Position
	for _, p := range all {
		parked = append(parked, broker.Position{Stream: inParked, Partition: p.Partition})
	}
	marked, err := n.b.Committed(ctx, "g", parked)
	n.mu.Lock()
	for i, p := range marked {
		if note := strings.TrimPrefix(all[i].Note, "left by "); p.Offset != -1 && note != strconv.FormatInt(p.Offset, 10) || p.Offset == -1 && note != "" {
			n.Errorf("tenant %d is told %+v, and finds the mark %d", n.number, all[i], p.Offset)
		}
		n.found[p.Partition] = p.Offset
	}
	n.mu.Unlock()
	n.step(all, "assigned", "", "gone", "assigned")
	return nil, err
}

func (n *tenant) leaving(ctx context.Context, all []broker.Position) {
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

func (n *tenant) gone(all []broker.Position) { n.step(all, "gone", "assigned", "leaving", "left") }

// has counts the partitions that are in a state.
func (n *tenant) has(state string) (count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.state {
		if s == state {
			count++
		}
	}
	return count
}

// finds tells what was marked when partitions were assigned that still are.
func (n *tenant) finds() string {
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

// Whoever takes a partition over finds what its former reader has committed when
// it left: in a rebalance, at Close, but not when it was put out.
func tenures(w *world) {
	w.stream("in", 6)
	w.stream(inParked, 6)
	a := w.tenant(1)
	w.soon("the first has all", func() bool { return a.has("assigned") == 6 })
	b := w.tenant(2)
	w.soon("they share", func() bool { return a.has("assigned") == 3 && a.has("gone") == 3 && b.has("assigned") == 3 })
	if got := b.finds(); got != "map[1:3]" {
		w.Errorf("the second finds %s", got)
	}
	w.close(a.c)
	if n := a.has("gone"); n != 6 {
		w.Errorf("the first has closed, and %d partitions are gone", n)
	}
	w.soon("the second has all", func() bool { return b.has("assigned") == 6 })
	if got := b.finds(); got != "map[1:6]" {
		w.Errorf("the second finds %s", got)
	}
	w.expel("g")
	c := w.tenant(3)
	w.soon("they share anew", func() bool { return b.has("assigned") == 3 && c.has("assigned") == 3 })
	w.close(b.c)
	w.soon("the third has all", func() bool { return c.has("assigned") == 6 })
	if got := c.finds(); got != "map[1:3 2:3]" && got != "map[2:6]" { // as it came in before the second was back or behind it
		w.Errorf("the third finds %s", got)
	}
	w.close(c.c)
	if n := c.has("gone"); n != 6 {
		w.Errorf("the third has closed, and %d partitions are gone", n)
	}
}
