package deliver

import (
	"fmt"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/parked"
	"tidemill.dev/config"
)

// The parked events of a paused trigger do not keep the mark from moving while events of
// another trigger come and go. They are delivered in order when the trigger is resumed.
func TestAPausedTriggersRecordsAreRenewed(t *testing.T) {
	t.Parallel()
	testRenewed(newInstall(t, 1))
}

func testRenewed(w *install) {
	w.Helper()
	paused, flaky := newSink(w, nil), newSink(w, func(_ string, try int) int {
		if try == 1 {
			return 500
		}
		return 200
	})
	w.trigger("a", paused.url, nil)
	w.trigger("b", flaky.url, func(t *config.Trigger) { t.Delivery.Backoff.First = 300 * time.Millisecond })
	d := w.open()
	w.pause("a", true)
	w.waitFor("it is paused", func() bool { return d.pauses("a") })
	w.publish(8, 2)
	w.waitFor("its events are parked", func() bool { return parkedOf(d, "a") == 8 })
	l := d.pipelineOf(tidemill.StreamEvents)
	s := l.assignment(0)
	last := int64(0)
	s.apply(func(p *partition, _ millis) {
		p.bounds.renewal = parked.Renewal{Least: 20, Share: 2}
		last = p.logEnd
	})
	published := 8
	w.waitFor("the records are written again", func() bool {
		if flaky.count() == published {
			w.publish(10, 5)
			published += 10
		}
		low := int64(0)
		s.apply(func(p *partition, _ millis) { low = p.lowest("a") })
		notify(l.due)
		return low >= last
	})
	w.pause("a", false)
	w.waitFor("all have come", func() bool { return paused.count() == published && flaky.count() == published })
	paused.inOrder()
	if n := paused.attempts(); n != published {
		w.Errorf("%d attempts for %d events", n, published)
	}
}

// lowest returns the lowest offset of a trigger's records on the parked log.
func (p *partition) lowest(trigger string) int64 {
	low := p.logEnd
	for _, c := range p.triggerState(trigger).heap {
		for _, r := range c.refs {
			low = min(low, r.at)
		}
	}
	return low
}

// One event of a paused trigger waits while all events of a slow trigger go through the parked log.
// A take-over reads few records more than wait: less than in a second of the load.
func TestOnePinnedRecordDoesNotPinTheLog(t *testing.T) {
	delivery := config.Delivery{Ordered: true, Attempts: 5}
	p := newPartition("s", 0, defaultBounds(), 0)
	settings := &triggerSettings{triggers: map[string]*config.Trigger{"paused": {Name: "paused", Delivery: delivery}, "slow": {Name: "slow", Delivery: delivery}},
		paused: func(name string) bool { return name == "paused" },
		plan: &plan{triggers: []string{"slow", "paused"}, match: func(v *broker.View, dst []int) []int {
			if v.ID == "0" {
				return append(dst, 0, 1)
			}
			return append(dst, 0)
		}}}
	newRebuiltState(p, settings).finish(0, 0, 0)
	p.open(0)
	now, log, most := millis(1_700_000_000_000), int64(0), int64(0)
	views := map[int64]recordWrite{}
	transact := func() {
		w := p.plan(newAllowance(), now, false)
		if w == nil {
			return
		}
		begunAt := none
		if w.begun != nil {
			begunAt = log
			log++
		}
		for n := range w.parks {
			w.parks[n].at = log
			views[log] = recordWrite{item: &item{event: &sourceEvent{view: w.parks[n].item.event.view}}, record: w.parks[n].record}
			log++
		}
		if len(w.settled) > 0 {
			log++
		}
		p.commit(w, begunAt, log, now)
		most = max(most, log-p.needed.Low(p.logEnd))
	}
	transact()
	for round := range int64(2000) {
		s := &sourceBatch{next: 20 * (round + 1), end: func(int) {}}
		for o := 20 * round; o < s.next; o++ {
			s.events = append(s.events, broker.Incoming{View: broker.View{ID: fmt.Sprint(o), Source: "/x", Type: "t", Key: fmt.Appendf(nil, "k%d", o%50)}, Offset: o})
		}
		p.acceptBatch(s, now)
		var flying []*item
		start := func() {
			for _, i := range p.handOut() {
				if p.start(i, now) {
					flying = append(flying, i)
				}
			}
		}
		start()
		now = now.add(300 * time.Millisecond) // longer than the patience
		p.wake(now)
		transact()
		for len(flying) > 0 {
			i := flying[0]
			flying = flying[1:]
			p.reportEnd(i, now)
			start()
		}
		for _, d := range p.renew(renewAtOnce) {
			r := views[d.ref.at]
			p.renewed(d, &r.record, &r.item.event.view)
		}
		p.wake(now)
		transact()
	}
	if waiting := int64(p.states["paused"].parked + p.states["slow"].parked); waiting != 1 || most > 4*waiting+4096 {
		t.Errorf("a take-over read up to %d records, and %d waits", most, waiting)
	}
}
