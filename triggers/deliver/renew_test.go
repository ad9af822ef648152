package deliver

import (
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker/parked"
	"tidemill.dev/config"
)

// The parked events of a paused trigger do not keep the mark from moving while events of
// another trigger come and go. They are delivered in order when the trigger is resumed.
func TestAPausedTriggersRecordsAreRenewed(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 1)
	paused, flaky := newSink(t, nil), newSink(t, func(_ string, try int) int {
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
		t.Errorf("%d attempts for %d events", n, published)
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
