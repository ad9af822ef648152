package deliver

import (
	"context"
	"hash/fnv"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/config"
)

func TestDeliver(t *testing.T) {
	w := newInstall(t, 3)
	to := newSink(t, nil)
	w.trigger("a", to.url, nil)
	d := w.open()
	w.publish(200, 10)
	w.waitFor("all have come", func() bool { return to.count() == 200 })
	to.inOrder()
	if to.attempts() != 200 {
		t.Errorf("%d attempts for 200 events", to.attempts())
	}
	w.close(d)
	w.open()
	w.publish(1, 1)
	w.waitFor("it goes on", func() bool { return to.count() == 201 })
	if to.attempts() != 201 {
		t.Errorf("%d attempts for 201 events", to.attempts())
	}
}

// flaky fails the first tries of many events; the choice depends only on the event.
func flaky(id string, try int) int {
	h := fnv.New32()
	h.Write([]byte(id))
	if n := int(h.Sum32() % 7); n < 4 && try <= n {
		return 500
	}
	return 200
}

func TestOrderHoldsThroughFailures(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 2)
	to := newSink(t, flaky)
	w.trigger("a", to.url, func(t *config.Trigger) { t.Delivery.Backoff.First = 150 * time.Millisecond })
	w.open()
	w.publish(300, 20)
	w.waitFor("all have come", func() bool { return to.count() == 300 })
	to.inOrder()
}

// A dead subscriber does not delay the other triggers, and gets its events when it is back.
func TestADeadSubscriberDelaysNobody(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(string, int) int{
		"refuses": func(string, int) int { return 503 },
		"hangs":   func(string, int) int { return 0 },
	} {
		t.Run(name, func(t *testing.T) {
			w := newInstall(t, 2)
			dead, well := newSink(t, answer), newSink(t, nil)
			w.trigger("dead", dead.url, func(t *config.Trigger) {
				t.Delivery.Attempts, t.Delivery.Timeout, t.Delivery.Concurrency = 1000, 300*time.Millisecond, 4
				t.Delivery.Backoff.First = 400 * time.Millisecond
			})
			w.trigger("well", well.url, nil)
			d := w.open()
			w.publish(500, 50)
			w.waitFor("the other has all", func() bool { return well.count() == 500 })
			well.inOrder()
			w.waitFor("all is parked and committed", func() bool { return parkedOf(d, "dead") == 500 && w.committed() })
			dead.set(nil)
			w.waitFor("all have come", func() bool { return dead.count() == 500 })
			dead.inOrder()
			w.waitFor("nothing is parked", func() bool { return parkedOf(d, "dead") == 0 })
		})
	}
}

func parkedOf(d *Dispatcher, name string) int64 {
	for _, s := range d.Standing() {
		if s.Name == name {
			return s.Parked
		}
	}
	return -1
}

// committed reports whether the group has reached the end of the events.
func (w *install) committed() bool {
	ends, err := w.b.Ends(w.ctx, "events")
	w.must(err)
	at, err := w.b.Committed(w.ctx, tidemill.TriggersGroup("events"), ends)
	w.must(err)
	for n := range ends {
		if at[n].Offset < ends[n].Offset {
			return false
		}
	}
	return true
}

func TestParkedEventsOutliveTheDispatcher(t *testing.T) {
	t.Parallel()
	for name, abandon := range map[string]bool{"closed": false, "abandoned": true} {
		t.Run(name, func(t *testing.T) {
			w := newInstall(t, 2)
			w.session = 2 * time.Second // time after which an abandoned dispatcher counts as dead
			to := newSink(t, func(string, int) int { return 500 })
			w.trigger("a", to.url, func(t *config.Trigger) {
				t.Delivery.Attempts = 1000
				t.Delivery.Backoff.First = 300 * time.Millisecond
			})
			d := w.open()
			w.publish(100, 10)
			w.waitFor("all is parked", func() bool { return parkedOf(d, "a") == 100 })
			if abandon {
				d.abandon()
			} else {
				w.close(d)
			}
			w.publish(50, 10)
			to.set(nil)
			d = w.open()
			w.waitFor("all have come", func() bool { return to.count() == 150 })
			to.inOrder()
			w.waitFor("nothing is parked", func() bool { return parkedOf(d, "a") == 0 && w.committed() })
		})
	}
}

// abandon ends a dispatcher as a kill of its process does.
func (d *Dispatcher) abandon() {
	d.stop()
	d.running.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	for _, l := range d.pipelines {
		l.stop()
		_ = l.c.Close(gone)
		for _, s := range l.assignmentsNow() {
			s.stopDelivery()
		}
		l.running.Wait()
	}
}

func TestTwoDispatchersShareAndTakeOver(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 4)
	to := newSink(t, flaky)
	w.trigger("a", to.url, func(t *config.Trigger) { t.Delivery.Backoff.First = 150 * time.Millisecond })
	one := w.open()
	w.publish(100, 20)
	two := w.open()
	w.publish(100, 20)
	w.waitFor("both have partitions", func() bool { return one.partitions() == 2 && two.partitions() == 2 })
	w.publish(100, 20)
	w.close(one)
	w.publish(100, 20)
	w.waitFor("all have come", func() bool { return to.count() == 400 })
	to.inOrder()
	w.waitFor("nothing is parked", func() bool { return parkedOf(two, "a") == 0 && w.committed() })
}

func (d *Dispatcher) partitions() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.pipelines {
		n += len(l.assignmentsNow())
	}
	return n
}

// logState logs the state of the partitions, for a test that has waited too long.
func (d *Dispatcher) logState(t testing.TB) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.pipelines {
		for _, s := range l.assignmentsNow() {
			s.mu.Lock()
			p := s.p
			t.Logf("%s/%d: opened %v closed %v leaving %v window %d (%d events) backlog %d flying %d resting %d rewrites %d settled %d writing %v wanted %v next %d: %s",
				p.stream, p.number, p.opened, p.closed, p.leaving, len(p.window), p.events, len(p.backlog), p.flying, len(p.resting), len(p.rewrites), len(p.settled), p.writing != nil, p.wanted != nil, p.next, shape(p))
			for name, l := range p.states {
				for _, c := range l.heap {
					t.Logf("  %s: %d records, due in %d ms", name, len(c.refs), c.due-millisOf(time.Now()))
				}
			}
			s.mu.Unlock()
		}
	}
	for _, r := range d.ranges.running {
		r.mu.Lock()
		for at, s := range r.shards {
			s.mu.Lock()
			t.Logf("replay of %s/%d: closed %v leaving %v paused %v window %d (%d events) flying %d resting %d next %d: %s", at.stream, at.number, s.p.closed, s.p.leaving, s.p.paused, len(s.p.window), s.p.events, s.p.flying, len(s.p.resting), s.p.next, shape(s.p))
			s.mu.Unlock()
		}
		t.Logf("it has %v, %d wait, pace %+v, %+v", r.ours, r.queue.n, r.pace, r.c.Stats())
		r.mu.Unlock()
	}
	for name, s := range *d.senders.Load() {
		t.Logf("%s: fresh %d parked %d past %d workers %d reserved %d hungry %d in flight %d", name, s.fresh.n, s.parked.n, s.past.n, s.workers, s.reserved, len(s.hungry), s.inFlight.Load())
	}
}
