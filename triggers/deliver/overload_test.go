package deliver

import (
	"runtime"
	"testing"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/config"
)

// heldItems counts the items in memory that a partition's senders have.
func heldItems(all []*item) (n int) {
	for _, i := range all {
		if i.stage == ready || i.stage == waiting {
			n++
		}
	}
	return n
}

// One subscriber hangs and another fails: the items that a cut has parked only because of
// others leave memory when their patience is over.
func TestWhatIsParkedInPassingDoesNotStay(t *testing.T) {
	deliver := config.Delivery{Ordered: true}
	all := map[string]*config.Trigger{"dead": {Name: "dead", Delivery: deliver}, "slow": {Name: "slow", Delivery: deliver}}
	p := newPartition("s", 0, defaultBounds(), 0)
	newRebuiltState(p, &triggerSettings{plan: &plan{triggers: []string{"dead", "slow"}, match: func(_ *broker.View, dst []int) []int { return append(dst, 0, 1) }},
		triggers: all, paused: func(string) bool { return false }}).finish(0, 0, 0)
	p.open(0)
	x := &quiet{p: p, now: 1_000_000}
	x.write(t)
	var slow []*item
	most := 0
	for o := range int64(5000) {
		x.now += 5
		p.acceptBatch(&sourceBatch{next: o + 1, end: func(int) {}, events: []broker.Incoming{{Offset: o, View: broker.View{ID: "x", Source: "/x", Type: "t", Key: []byte{byte(o), byte(o >> 8)}}}}}, x.now)
		for _, i := range p.handOut() {
			if i.queue.trigger.name == "slow" { // its workers all hang
				slow = append(slow, i)
			} else if p.start(i, x.now) {
				p.failed(i, Attempt{}, time.Hour, x.now)
			}
		}
		p.wake(x.now)
		if o%10 == 0 {
			x.write(t)
		}
		most = max(most, heldItems(slow))
	}
	if most > 200 {
		t.Errorf("%d items of the slow trigger were in memory at once", most)
	}
}

// An overloaded sender keeps no events of items that only have their record left.
func TestAnOverloadedSenderForgets(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 1)
	to := newSink(t, func(string, int) int { return 0 })
	w.trigger("hangs", to.url, func(t *config.Trigger) {
		t.Delivery.Timeout, t.Delivery.Concurrency, t.Delivery.Attempts = time.Hour, 2, 1000
	})
	d := w.open()
	s := d.senderOf("hangs")
	queued := func() int { s.mu.Lock(); defer s.mu.Unlock(); return len(s.fresh.ring) }
	for n := range 30 {
		w.publish(200, 1_000_000)
		w.waitFor("all is parked", func() bool { return parkedOf(d, "hangs") == int64(200*(n+1)) && w.committed() })
		w.waitFor("it is let go of", func() bool { return d.parkedInMemory() == 0 })
	}
	if n := queued(); n > 1500 {
		t.Errorf("room for %d items is kept", n)
	}
	runtime.GC()
}

// parkedInMemory counts the items that are parked and still in memory.
func (d *Dispatcher) parkedInMemory() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.pipelines {
		for _, s := range l.assignmentsNow() {
			s.mu.Lock()
			n += len(s.p.kept)
			s.mu.Unlock()
		}
	}
	return n
}

// An item takes nothing from a trigger's rate if its event has left memory, or if it only needs a dead letter.
func TestTheRateIsForWhatIsSent(t *testing.T) {
	s := newSender(&Dispatcher{}, "t", &target{trigger: config.Trigger{Delivery: config.Delivery{Concurrency: 1, Rate: 1}}})
	s.workers = 1
	for n := range 5 {
		i := &item{part: &partition{}}
		if n < 4 {
			i.gone.Store(true)
		}
		s.fresh.push(i)
	}
	if i := s.nextItem(); i == nil || i.gone.Load() {
		t.Error("the item that is still in memory is not sent")
	}
	s.fresh.push(&item{part: &partition{}})
	s.doomed.push(&item{part: &partition{}, doomed: true})
	if i := s.nextItem(); i == nil || !i.doomed || s.fresh.n != 1 {
		t.Error("an item that is not sent waits for the rate")
	}
	s.offer(&item{part: &partition{}, doomed: true})
	if i := s.nextItem(); i == nil || !i.doomed || !s.waits {
		t.Error("an item that is not sent waits for the timer")
	}
}

// A sender whose low rate is raised does not wait for the old rate.
func TestAHigherRateHoldsAtOnce(t *testing.T) {
	s := newSender(&Dispatcher{}, "t", &target{trigger: config.Trigger{Delivery: config.Delivery{Concurrency: 1, Rate: 0.0001}}})
	s.workers = 1
	for range 3 {
		s.fresh.push(&item{part: &partition{}})
	}
	s.nextItem()
	if i := s.nextItem(); i != nil || !s.waits {
		t.Fatal("it does not keep to the rate")
	}
	s.to.Store(&target{trigger: config.Trigger{Delivery: config.Delivery{Concurrency: 1, Rate: 1000}}})
	s.mu.Lock()
	s.setPace()
	s.mu.Unlock()
	s.workers = 1
	if i := s.nextItem(); i == nil {
		t.Error("it still waits")
	}
}
