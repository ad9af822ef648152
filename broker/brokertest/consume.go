package brokertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"tidemill.dev/broker"
)

// receiveIDs polls until n events have come, ends these events, and returns their ids.
func (w *testWorld) receiveIDs(c *broker.Consumer, n int) []string {
	w.Helper()
	var all []string
	for len(all) < n {
		d, err := c.Poll(w.testContext())
		w.must(err)
		for i := range d.Events {
			all = append(all, string([]byte(d.Events[i].ID)))
		}
		d.Done()
	}
	return all
}

func (w *testWorld) wantIDs(got []string, key string, from, to int) {
	w.Helper()
	if len(got) != to-from {
		w.Fatalf("%d events have come, want %s/%d to %d: %v", len(got), key, from, to-1, got)
	}
	for i, id := range got {
		if want := fmt.Sprintf("%s/%d", key, from+i); id != want {
			w.Fatalf("event %d is %s, want %s", i, id, want)
		}
	}
}

func consumeStarts(w *testWorld) {
	w.stream("events", 1)
	p := w.producer(broker.ProducerOptions{})
	put := func(from, to int) {
		for n := from; n < to; n++ {
			_, err := p.Publish(w.testContext(), "events", testEvent("a", n))
			w.must(err)
		}
	}
	put(0, 5)
	before, middle := w.lastTime("events"), time.Time{}
	w.pollUntil("the clock moves on", func() bool {
		middle = time.Now().Truncate(time.Millisecond)
		return middle.After(before)
	})
	put(5, 10)
	at := func(group string, s broker.Start) *broker.Consumer {
		return w.consumer(broker.ConsumerOptions{Group: group, Streams: []string{"events"}, Start: s})
	}
	for _, group := range []string{"", "g"} {
		in := func(name string) string {
			if group == "" {
				return ""
			}
			return group + name
		}
		w.wantIDs(w.receiveIDs(at(in("earliest"), broker.Earliest()), 10), "a", 0, 10)
		w.wantIDs(w.receiveIDs(at(in("offset"), broker.AtOffset(7)), 3), "a", 7, 10)
		w.wantIDs(w.receiveIDs(at(in("time"), broker.Since(middle)), 5), "a", 5, 10)
	}
	latest, beyond, future := at("", broker.Latest()), at("", broker.AtOffset(1000)), at("", broker.Since(time.Now().Add(time.Hour)))
	put(10, 12)
	for _, c := range []*broker.Consumer{latest, beyond, future} {
		w.wantIDs(w.receiveIDs(c, 2), "a", 10, 12)
	}
	w.deleteBelow("events", 0, 3)
	w.wantIDs(w.receiveIDs(at("", broker.Earliest()), 9), "a", 3, 12)
	w.wantIDs(w.receiveIDs(at("trimmed", broker.Earliest()), 9), "a", 3, 12)
}

// lastTime returns when the newest event reached the log.
func (w *testWorld) lastTime(stream string) time.Time {
	w.Helper()
	c := w.consumer(broker.ConsumerOptions{Streams: []string{stream}})
	defer w.close(c)
	end := w.streamInfo(stream).Partitions[0].End
	for {
		d, err := c.Poll(w.testContext())
		w.must(err)
		e := &d.Events[len(d.Events)-1]
		at, offset := e.Time, e.Offset
		d.Done()
		if offset == end-1 {
			return at
		}
	}
}

// A group that begins at the newest event keeps that start position, even if its first
// member commits nothing.
func consumeLatestKept(w *testWorld) {
	w.stream("events", 1)
	w.publish("events", 1, 3)
	first := w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"events"}, Start: broker.Latest()})
	w.pollUntil("the group has begun", func() bool { return w.groupLag("events", "g").Lag == 0 })
	p := w.producer(broker.ProducerOptions{})
	for n := range 4 {
		_, err := p.Publish(w.testContext(), "events", testEvent("later", n))
		w.must(err)
	}
	_, err := first.Poll(w.testContext()) // these events are never ended
	w.must(err)
	ctx, cancel := context.WithCancel(w.testContext())
	cancel()
	_ = first.Close(ctx)
	second := w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"events"}, Start: broker.Latest()})
	w.wantIDs(w.receiveIDs(second, 4), "later", 0, 4)
}

func consumeOutOfOrder(w *testWorld) {
	w.stream("events", 3)
	s := w.publish("events", 5, 60)
	c := w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"events"}, CommitEvery: 5 * time.Millisecond})
	var open []*broker.Incoming
	for len(open) < len(s.all) {
		d, err := c.Poll(w.testContext())
		w.must(err)
		for i := range d.Events {
			open = append(open, &d.Events[i])
		}
	}
	rand.Shuffle(len(open), func(i, j int) { open[i], open[j] = open[j], open[i] })
	for _, e := range open[1:] {
		e.Done()
	}
	held := open[0]
	id := string([]byte(held.ID))
	w.pollUntil("the others are committed", func() bool { return w.groupLag("events", "g").Lag == w.countFrom("events", s, id) })
	held.Done()
	w.pollUntil("all is committed", func() bool { return w.groupLag("events", "g").Lag == 0 })
	w.close(c)
}

// countFrom counts the events of a partition from the given event on, that event included.
func (w *testWorld) countFrom(stream string, s *sentEvents, id string) (n int64) {
	at := s.all[id]
	for _, r := range s.all {
		if r.Partition == at.Partition && r.Offset >= at.Offset {
			n++
		}
	}
	return n
}

// After a group closes with one open event, only that event is delivered again: the later
// events that ended are recorded with the committed offset.
func consumeOpenEvent(w *testWorld) {
	w.stream("events", 1)
	w.publish("events", 1, 20)
	c := w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"events"}, CommitEvery: 5 * time.Millisecond})
	n := 0
	for n < 20 {
		d, err := c.Poll(w.testContext())
		w.must(err)
		for i := range d.Events {
			if n++; n != 13 {
				d.Events[i].Done()
			}
		}
	}
	w.pollUntil("what ended is committed", func() bool { return w.groupLag("events", "g").Lag == 8 })
	ctx, cancel := context.WithCancel(w.testContext())
	cancel()
	_ = c.Close(ctx) // does not wait for the open event
	c = w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"events"}})
	w.wantIDs(w.receiveIDs(c, 1), key(0), 12, 13)
	w.close(c)
	if lag := w.groupLag("events", "g").Lag; lag != 0 {
		w.Errorf("closed, and the lag is %d", lag)
	}
}

func consumePause(w *testWorld) {
	w.stream("events", 2)
	s := w.publish("events", 8, 20)
	c := w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"events"}})
	d, err := c.Poll(w.testContext())
	w.must(err)
	y := newTally()
	paused := d.Partition
	c.Pause("events", paused)
	count := func(d *broker.Delivery) {
		for i := range d.Events {
			y.add(string([]byte(d.Events[i].ID)))
		}
		d.Done()
	}
	count(d)
	short, cancel := context.WithTimeout(w.testContext(), 300*time.Millisecond)
	defer cancel()
	for {
		d, err := c.Poll(short)
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		w.must(err)
		if d.Partition == paused {
			w.Fatalf("partition %d is paused", paused)
		}
		count(d)
	}
	c.Resume("events", paused)
	for len(y.count) < len(s.all) {
		d, err := c.Poll(w.testContext())
		w.must(err)
		count(d)
	}
	y.checkNoRepeats(w)
	w.close(c)
}

// Fetched events of a paused partition do not use up the memory that other partitions need.
func consumePausedSmall(w *testWorld) {
	w.stream("events", 2)
	p := w.producer(broker.ProducerOptions{})
	s := newSent()
	for n := range 40 {
		v := testEvent(key(n%8), n)
		v.Data = randomBytes(20_000)
		s.send(w.testContext(), p, "events", v)
	}
	s.wait(w)
	c := w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"events"}, MaxBytes: 10_000})
	d, err := c.Poll(w.testContext())
	w.must(err)
	n, paused := len(d.Events), d.Partition
	c.Pause("events", paused)
	d.Done()
	want := 0
	for _, r := range s.all {
		if r.Partition != paused {
			want++
		}
	}
	for got := 0; got < want; {
		d, err := c.Poll(w.testContext())
		w.must(err)
		got += len(d.Events)
		d.Done()
	}
	c.Resume("events", paused)
	for got := want + n; got < len(s.all); {
		d, err := c.Poll(w.testContext())
		w.must(err)
		got += len(d.Events)
		d.Done()
	}
	w.close(c)
}

func consumeBounded(w *testWorld) {
	w.stream("events", 24)
	s := w.publish("events", 100, 30)
	c := w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"events"}, MaxBytes: 4 << 10})
	y := newTally()
	for len(y.count) < len(s.all) {
		d, err := c.Poll(w.testContext())
		w.must(err)
		for i := range d.Events {
			y.add(string([]byte(d.Events[i].ID)))
		}
		d.Done()
	}
	y.checkNoRepeats(w)
	w.close(c)
}

// disturb restarts the server, and kills it too if the server can be killed, while other
// work is going on.
func (w *testWorld) disturb() {
	w.Helper()
	for range 2 {
		w.srv.Restart(w.T)
	}
	if w.srv.Kill != nil {
		w.srv.Kill(w.T)
	}
}

func restartPublish(w *testWorld) {
	w.stream("events", 4)
	stop := w.publishUntilStopped("events", 30)
	w.disturb()
	w.wantOnLog("events", stop())
}

func restartConsume(w *testWorld) {
	w.stream("events", 4)
	stop := w.publishUntilStopped("events", 30)
	y := newTally()
	a, b := w.reader("g", "events", y), w.reader("g", "events", y)
	y.waitMore(w)
	t0 := time.Now()
	w.disturb()
	w.Logf("restarted within %s", time.Since(t0).Round(time.Millisecond))
	s := stop()
	y.waitFor(w, len(s.all))
	a.leave()
	b.leave()
	c := w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"events"}})
	w.publish("events", 1, 1)
	d, err := c.Poll(w.testContext())
	w.must(err)
	if len(d.Events) != 1 {
		w.Errorf("%d events come after all had been read", len(d.Events))
	}
	d.Done()
}

func restartTransact(w *testWorld) {
	w.stream("in", 3)
	w.stream("out", 3)
	stop := w.publishUntilStopped("in", 10)
	k := w.copier("g", "in", "out")
	w.pollUntil("copies arrive", func() bool { return w.endOffset("out") > 50 })
	w.disturb()
	s := stop()
	w.waitCopied("in", "g")
	k.leave()
	w.wantCopies("out", s)
}
