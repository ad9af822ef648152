package brokertest

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"tidemill.dev/broker"
)

// flow publishes under some keys until stopped, and tells what it has sent.
func (w *world) flow(stream string, keys int) (stop func() *sent) {
	return w.flowOf(stream, keys, math.MaxInt)
}

// flowOf is flow that ends after so many of each key: on a slow machine one who
// takes them has no more to do than on a quick one.
func (w *world) flowOf(stream string, keys, each int) (stop func() *sent) {
	p := w.producer(broker.ProducerOptions{Timeout: 2 * patience}) // a restart may take its time
	s := newSent()
	ctx, cancel := context.WithCancel(w.ctx())
	var wg sync.WaitGroup
	wg.Go(func() {
		beat := time.NewTicker(25 * time.Millisecond)
		defer beat.Stop()
		for n := range each {
			for k := range keys {
				s.send(w.Context(), p, stream, event(key(k), n))
			}
			select {
			case <-beat.C:
			case <-ctx.Done():
				return
			}
		}
	})
	return func() *sent {
		cancel()
		wg.Wait()
		s.wait(w)
		return s
	}
}

// more waits until a group has been given more, so that what happens next
// happens in the middle.
func (y *tally) more(w *world) {
	w.Helper()
	y.mu.Lock()
	have := len(y.count)
	y.mu.Unlock()
	t0 := time.Now()
	y.wait(w, have+100)
	w.Logf("100 more events came within %s", time.Since(t0).Round(time.Millisecond))
}

// Members join and leave in order: every event comes exactly once.
func groupChurn(w *world) {
	w.stream("events", 8)
	stop := w.flow("events", 20)
	y := newTally()
	var members []*reader
	for range 4 {
		members = append(members, w.reader("g", "events", y))
		y.more(w)
	}
	members[0].leave()
	y.more(w)
	members[2].leave()
	y.more(w)
	members = append(members, w.reader("g", "events", y))
	y.more(w)
	s := stop()
	y.wait(w, len(s.all))
	for _, i := range []int{1, 3, 4} {
		members[i].leave()
	}
	y.once(w)
	if lag := w.lag("events", "g").Lag; lag != 0 {
		w.Errorf("all have come and gone, and the lag is %d", lag)
	}
}

// A member that keeps its partitions through a rebalance goes on reading them.
func groupStall(w *world) {
	w.stream("events", 8)
	y := newTally()
	stop := w.flow("events", 32)
	a := w.reader("g", "events", y)
	y.more(w)
	for range 3 {
		t0 := time.Now()
		b := w.reader("g", "events", y)
		w.soon("the new member has its share", func() bool { return b.reads() == 4 })
		w.Logf("a new member had its share %s after it began to join", time.Since(t0).Round(time.Millisecond))
		b.leave()
		y.more(w)
	}
	s := stop()
	y.wait(w, len(s.all))
	a.leave()
	y.once(w)
	var all []time.Duration
	for _, d := range a.longest {
		all = append(all, d.Round(time.Millisecond))
	}
	slices.Sort(all)
	w.Logf("longest wait for the next event of each partition over six rebalances, those that were kept first: %v", all)
}

// A group notices partitions that are added, and reads them from their start.
func groupGrowth(w *world) {
	w.stream("events", 2)
	y := newTally()
	r := w.reader("g", "events", y)
	s := w.publish("events", 6, 10)
	y.wait(w, len(s.all))
	w.stream("events", 5)
	p, err := w.open().Producer(broker.ProducerOptions{})
	w.must(err)
	more := newSent()
	for k := range 40 {
		more.send(w.ctx(), p, "events", event("grown-"+key(k), 0))
	}
	w.must(p.Close(w.ctx()))
	more.wait(w)
	spread := map[int32]bool{}
	for _, r := range more.all {
		spread[r.Partition] = true
	}
	if len(spread) != 5 {
		w.Errorf("40 keys use %d of 5 partitions", len(spread))
	}
	y.wait(w, len(s.all)+len(more.all))
	r.leave()
	y.once(w)
}
