package brokertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker"
)

const moment = 300 * time.Millisecond

// copyAll sends each event of a delivery to another stream, under the same id.
func copyAll(ctx context.Context, x *broker.Tx, d *broker.Delivery, to string) {
	for i := range d.Events {
		x.Send(ctx, to, &d.Events[i].View)
	}
	x.Done(d)
}

// wantCopies checks that a stream holds each event sent to another stream, once and in the order of
// its key.
func (w *testWorld) wantCopies(stream string, s *sentEvents) {
	w.Helper()
	last, count := map[string]int{}, map[string]int{}
	for _, e := range w.committedLog(stream) {
		count[e.id]++
		k, n := keyAndNumber(e.id)
		if before, ok := last[k]; ok && before >= n {
			w.Errorf("%s comes after number %d of its key", e.id, before)
		}
		last[k] = n
	}
	for id := range s.all {
		if count[id] != 1 {
			w.Errorf("%s is there %d times", id, count[id])
		}
	}
	if len(count) != len(s.all) {
		w.Errorf("%d events are there, %d were sent", len(count), len(s.all))
	}
}

func transactCopy(w *testWorld) {
	w.stream("in", 3)
	w.stream("out", 5)
	s := w.publish("in", 10, 60)
	c, t := w.newTransactor("g", "in")
	copied := 0
	for n := 0; copied < len(s.all); n++ {
		d, err := c.Poll(w.testContext())
		w.must(err)
		events := len(d.Events)
		err = t.Do(w.testContext(), func(x *broker.Tx) error {
			copyAll(w.testContext(), x, d, "out")
			if n%4 == 1 {
				return errNo
			}
			return nil
		})
		switch {
		case err == nil:
			copied += events
		case !errors.Is(err, errNo) || !errors.Is(err, broker.ErrAborted):
			w.Fatal(err)
		}
	}
	w.wantCopies("out", s)
	w.close(c)
	if lag := w.groupLag("in", "g").Lag; lag != 0 {
		w.Errorf("the lag is %d", lag)
	}
}

// copier is a member that copies a stream in transactions until leave is called.
type copier struct {
	w    *testWorld
	c    *broker.Consumer
	t    *broker.Transactor
	stop context.CancelFunc
	gone chan struct{}
}

func (w *testWorld) copier(group, from, to string) *copier {
	w.Helper()
	c, err := w.reopen().Consumer(w.testContext(), broker.ConsumerOptions{Group: group, Streams: []string{from}, SessionTimeout: max(w.srv.Session, 3*time.Second)})
	w.must(err)
	t, err := c.Transactor(broker.ProducerOptions{})
	w.must(err)
	ctx, cancel := context.WithCancel(w.Context())
	k := &copier{w: w, c: c, t: t, stop: cancel, gone: make(chan struct{})}
	w.Cleanup(func() { <-k.gone }) // a failure that ends the case also ends the copier, which may still report an error
	go func() {
		defer close(k.gone)
		for ctx.Err() == nil { // Poll ignores the context while it has events to return
			d, err := c.Poll(ctx)
			if err != nil {
				if ctx.Err() == nil {
					w.Errorf("poll: %v", err)
				}
				return
			}
			if err := k.copy(d, to); err != nil {
				if w.Context().Err() == nil {
					w.Errorf("transaction: %v", err)
				}
				return
			}
		}
	}()
	return k
}

// copy copies a delivery. After an abort the consumer reads the delivery again. If the transaction
// could not begin, the copier keeps the delivery and copy tries again.
func (k *copier) copy(d *broker.Delivery, to string) error {
	for begun := false; !begun; {
		err := k.t.Do(k.w.Context(), func(x *broker.Tx) error {
			begun = true
			copyAll(k.w.Context(), x, d, to)
			return nil
		})
		if err != nil && (!errors.Is(err, broker.ErrAborted) || k.w.Context().Err() != nil) {
			return err
		}
	}
	return nil
}

func (k *copier) leave() {
	k.w.Helper()
	k.stop()
	<-k.gone
	k.w.must(k.t.Close(k.w.testContext()))
	k.w.must(k.c.Close(k.w.testContext()))
}

// waitCopied waits until a group has copied all events.
func (w *testWorld) waitCopied(stream, group string) {
	w.Helper()
	w.pollUntil("all is copied", func() bool { return w.groupLag(stream, group).Lag == 0 })
}

// Members that copy in transactions join and leave: each event is still copied once.
func transactChurn(w *testWorld) {
	w.stream("in", 6)
	w.stream("out", 3)
	stop := w.publishUntilStopped("in", 12)
	a := w.copier("g", "in", "out")
	ahead := func(n int64) {
		w.Helper()
		from := w.endOffset("out")
		w.pollUntil("copies arrive", func() bool { return w.endOffset("out") > from+n })
	}
	ahead(100)
	b := w.copier("g", "in", "out")
	ahead(200)
	c := w.copier("g", "in", "out")
	ahead(200)
	a.leave()
	ahead(200)
	s := stop()
	w.waitCopied("in", "g")
	var wg sync.WaitGroup
	for _, k := range []*copier{b, c} {
		wg.Go(k.leave)
	}
	wg.Wait()
	w.wantCopies("out", s)
}

func transactAbort(w *testWorld) {
	w.stream("in", 1)
	w.stream("out", 1)
	s := w.publish("in", 1, 6)
	c, t := w.newTransactor("g", "in")
	for try := range 3 {
		var all []string
		for len(all) < 6 {
			d, err := c.Poll(w.testContext())
			w.must(err)
			var ids []string
			for i := range d.Events {
				ids = append(ids, string([]byte(d.Events[i].ID)))
			}
			all = append(all, ids...)
			err = t.Do(w.testContext(), func(x *broker.Tx) error {
				copyAll(w.testContext(), x, d, "out")
				if try < 2 {
					return fmt.Errorf("try %d: %w", try, errNo)
				}
				return nil
			})
			if try < 2 {
				w.wantErr(err, broker.ErrAborted)
				break // all events come again
			}
			w.must(err)
		}
		if all[0] != key(0)+"/0" {
			w.Fatalf("try %d begins at %s", try, all[0])
		}
	}
	w.wantCopies("out", s)
}

// Another process takes the slot's transactional id while a transaction is open: the
// transaction cannot be committed, and its events come again.
func transactZombie(w *testWorld) {
	w.stream("in", 1)
	w.stream("out", 1)
	s := w.publish("in", 1, 4)
	c, t := w.newTransactor("g", "in")
	d, err := c.Poll(w.testContext())
	w.must(err)
	err = t.Do(w.testContext(), func(x *broker.Tx) error {
		copyAll(w.testContext(), x, d, "out")
		w.pollUntil("the outputs are on the log", func() bool { return w.endOffset("out") == 4 })
		w.takeSlot("g", 0)
		return nil
	})
	w.wantErr(err, broker.ErrAborted)
	for n := 0; n < 4; {
		d, err := c.Poll(w.testContext())
		w.must(err)
		n += len(d.Events)
		w.must(t.Do(w.testContext(), func(x *broker.Tx) error {
			copyAll(w.testContext(), x, d, "out")
			return nil
		}))
	}
	w.wantCopies("out", s)
}

// takeSlot initializes the slot's transactional id, as the next member with that slot does.
func (w *testWorld) takeSlot(group string, slot int) {
	w.Helper()
	w.pollUntil("the slot is taken", func() bool {
		res, err := w.client.InitProducerID(w.testContext(), &kafka.InitProducerIDRequest{TransactionalID: w.names.Transactional(group, slot),
			TransactionTimeoutMs: 10_000, ProducerID: -1, ProducerEpoch: -1})
		return err == nil && res.Error == nil
	})
}

// If the caller's context ends during a transaction, no event is lost, and the events come again to
// the same consumer.
func transactTimeUp(w *testWorld) {
	w.stream("in", 1)
	w.stream("out", 1)
	s := w.publish("in", 1, 4)
	c, t := w.newTransactor("g", "in")
	d, err := c.Poll(w.testContext())
	w.must(err)
	ctx, cancel := context.WithCancel(w.testContext())
	err = t.Do(ctx, func(x *broker.Tx) error {
		copyAll(ctx, x, d, "out")
		cancel()
		return ctx.Err()
	})
	w.wantErr(err, broker.ErrAborted)
	for n := 0; n < 4; {
		d, err := c.Poll(w.testContext())
		w.must(err)
		n += len(d.Events)
		w.must(t.Do(w.testContext(), func(x *broker.Tx) error {
			copyAll(w.testContext(), x, d, "out")
			return nil
		}))
	}
	w.wantCopies("out", s)
}

// mixedEnds ends events one by one and in transactions, on the same partitions.
type mixedEnds struct {
	*testWorld
	c        *broker.Consumer
	t        *broker.Transactor
	rnd      *rand.Rand
	open     map[int32][]openDelivery
	singly   map[string]bool
	together map[string]bool
	notes    noteStore
}

// openDelivery is a delivery and its open events. If no event is open, the delivery's memory may
// already be reused.
type openDelivery struct {
	d    *broker.Delivery
	rest []broker.View
}

// endedCount returns the number of events whose end is final.
func (m *mixedEnds) endedCount() int { return len(m.singly) + len(m.together) }

// openCount returns the number of delivered events that have not ended.
func (m *mixedEnds) openCount() (n int) {
	for _, some := range m.open {
		for _, o := range some {
			n += len(o.rest)
		}
	}
	return n
}

// takeDelivery takes a delivery and ends some of its events at once.
func (m *mixedEnds) takeDelivery() {
	d, err := m.c.Poll(m.testContext())
	m.must(err)
	o := openDelivery{d: d}
	for i := range d.Events {
		v := d.Events[i].View.Clone()
		switch {
		case m.singly[v.ID] || m.together[v.ID]:
			m.Errorf("%s has ended and comes again", v.ID)
		case m.rnd.IntN(3) > 0:
			o.rest = append(o.rest, v)
			continue
		}
		m.singly[v.ID] = true
		d.Events[i].Done()
	}
	if len(o.rest) > 0 || m.rnd.IntN(2) == 0 {
		m.open[d.Partition] = append(m.open[d.Partition], o)
	}
}

// endInTransaction ends the open events of a partition in a transaction. If fail is an error, it
// aborts the transaction.
func (m *mixedEnds) endInTransaction(partition int32, fail error) {
	some := m.open[partition]
	delete(m.open, partition)
	note := ""
	if m.rnd.IntN(2) == 0 {
		note = "behind " + strconv.Itoa(m.endedCount())
	}
	err := m.t.Do(m.testContext(), func(x *broker.Tx) error {
		for _, o := range some {
			for i := range o.rest {
				x.SendTo(m.testContext(), "out", 0, &o.rest[i], nil)
			}
			x.Done(o.d)
		}
		if note != "" {
			x.Note("in", partition, note)
		}
		return fail
	})
	if !errors.Is(err, fail) {
		m.Fatal(err)
	}
	if fail == nil && note != "" {
		m.notes.keep(partition, note)
	}
	for _, o := range some {
		for i := range o.rest {
			if fail == nil {
				m.together[o.rest[i].ID] = true
			}
		}
	}
}

// partitionWithOpen returns a partition with open events, or false if no partition has any.
func (m *mixedEnds) partitionWithOpen() (int32, bool) {
	for partition := range m.open {
		return partition, true
	}
	return 0, false
}

// Events that end one by one, background commits and transactions on the same partitions neither
// undo nor overtake each other, also across readers. The last committed note stays.
func transactMixed(w *testWorld) {
	w.stream("in", 3)
	w.stream("out", 1)
	m := &mixedEnds{testWorld: w, rnd: rand.New(rand.NewPCG(1, 2)), singly: map[string]bool{}, together: map[string]bool{}}
	const keys, each = 12, 100
	stop := w.flowOf("in", keys, each)
	for m.endedCount() < keys*each {
		m.runMember(func() bool { return m.endedCount()+m.openCount() < keys*each })
	}
	stop()
	if lag := w.groupLag("in", "g").Lag; lag != 0 {
		w.Errorf("all have ended, and the lag is %d", lag)
	}
	if n := len(w.committedLog("out")); n != len(m.together) {
		w.Errorf("%d events are on the log, %d have been committed", n, len(m.together))
	}
	if len(m.notes.of) == 0 {
		w.Error("nothing was noted")
	}
	w.Logf("%d events ended one by one, %d in transactions", len(m.singly), len(m.together))
}

// runMember runs one member from start to end. No event is open when it leaves.
func (m *mixedEnds) runMember(more func() bool) {
	m.c, m.t = m.transactorOf(broker.ConsumerOptions{Group: "g", Streams: []string{"in"}, CommitEvery: time.Millisecond,
		Assigned: m.notes.checkNote(m.testWorld)})
	m.open = map[int32][]openDelivery{}
	for n := 0; n < 30 && more(); n++ {
		m.takeDelivery()
		if partition, ok := m.partitionWithOpen(); ok && m.rnd.IntN(3) == 0 {
			m.endInTransaction(partition, []error{nil, errNo}[m.rnd.IntN(2)])
		}
	}
	for partition, ok := m.partitionWithOpen(); ok; partition, ok = m.partitionWithOpen() {
		m.endInTransaction(partition, nil)
	}
	m.must(m.t.Close(m.testContext()))
	m.close(m.c)
}
