package brokertest

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"tidemill.dev/broker"
)

// mixing ends events one by one and in transactions, on the same partitions.
type mixing struct {
	*world
	c        *broker.Consumer
	t        *broker.Transactor
	rnd      *rand.Rand
	open     map[int32][]opened
	singly   map[string]bool
	together map[string]bool
	notes    notebook
}

// opened is a delivery and those of its events that have not ended. It may be
// that none are left, and the delivery's memory is another's.
type opened struct {
	d    *broker.Delivery
	rest []broker.View
}

// ended is how many events have ended for good.
func (m *mixing) ended() int { return len(m.singly) + len(m.together) }

// waiting is how many have been handed out and have not ended.
func (m *mixing) waiting() (n int) {
	for _, some := range m.open {
		for _, o := range some {
			n += len(o.rest)
		}
	}
	return n
}

// take takes a delivery and ends some of its events at once.
func (m *mixing) take() {
	d, err := m.c.Poll(m.ctx())
	m.must(err)
	o := opened{d: d}
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

// end ends what is open of a partition in a transaction, or fails to.
func (m *mixing) end(partition int32, fail error) {
	some := m.open[partition]
	delete(m.open, partition)
	note := ""
	if m.rnd.IntN(2) == 0 {
		note = "behind " + strconv.Itoa(m.ended())
	}
	err := m.t.Do(m.ctx(), func(x *broker.Tx) error {
		for _, o := range some {
			for i := range o.rest {
				x.SendTo(m.ctx(), "out", 0, &o.rest[i], nil)
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

// some is a partition of which events are open; false if none are.
func (m *mixing) some() (int32, bool) {
	for partition := range m.open {
		return partition, true
	}
	return 0, false
}

// Ends one by one, the commits in the background and transactions on the same
// partitions neither undo nor overtake each other, whoever reads on, and the last
// note that was committed stays.
func transactMixed(w *world) {
	w.stream("in", 3)
	w.stream("out", 1)
	m := &mixing{world: w, rnd: rand.New(rand.NewPCG(1, 2)), singly: map[string]bool{}, together: map[string]bool{}}
	const keys, each = 12, 100
	stop := w.flowOf("in", keys, each)
	for m.ended() < keys*each {
		m.read(func() bool { return m.ended()+m.waiting() < keys*each })
	}
	stop()
	if lag := w.lag("in", "g").Lag; lag != 0 {
		w.Errorf("all have ended, and the lag is %d", lag)
	}
	if n := len(w.log("out")); n != len(m.together) {
		w.Errorf("%d events are on the log, %d have been committed", n, len(m.together))
	}
	if len(m.notes.of) == 0 {
		w.Error("nothing was noted")
	}
	w.Logf("%d events ended one by one, %d in transactions", len(m.singly), len(m.together))
}

// read is one member's life. Nothing is open when it leaves.
func (m *mixing) read(more func() bool) {
	m.c, m.t = m.transactorOf(broker.ConsumerOptions{Group: "g", Streams: []string{"in"}, CommitEvery: time.Millisecond,
		Assigned: m.notes.check(m.world)})
	m.open = map[int32][]opened{}
	for n := 0; n < 30 && more(); n++ {
		m.take()
		if partition, ok := m.some(); ok && m.rnd.IntN(3) == 0 {
			m.end(partition, []error{nil, errNo}[m.rnd.IntN(2)])
		}
	}
	for partition, ok := m.some(); ok; partition, ok = m.some() {
		m.end(partition, nil)
	}
	m.must(m.t.Close(m.ctx()))
	m.close(m.c)
}
