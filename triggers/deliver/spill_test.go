package deliver

import (
	"sync/atomic"
	"testing"

	"tidemill.dev"
)

// More events wait than the index holds: they come in order, and so do those that are published
// before the last has come.
func TestSpilledEventsComeInOrder(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 2)
	var dead atomic.Bool
	dead.Store(true)
	to := newSink(t, func(string, int) int {
		if dead.Load() {
			return 503
		}
		return 200
	})
	w.trigger("a", to.url, nil)
	d := w.open()
	spilled := func() (n int) {
		for _, s := range d.pipelineOf(tidemill.StreamEvents).assignmentsNow() {
			s.apply(func(p *partition, _ millis) {
				p.bounds.index = 10
				n += p.triggerState("a").spilled.Len()
			})
		}
		return n
	}
	spilled()
	w.publish(100, 40) // they join their queues before the index is full
	w.waitFor("the first are parked", func() bool { return parkedOf(d, "a") == 100 && w.committed() })
	w.publish(300, 40)
	w.waitFor("all is parked", func() bool { return parkedOf(d, "a") == 400 && w.committed() })
	if n := spilled(); n != 300 {
		t.Errorf("%d are spilled", n)
	}
	dead.Store(false)
	for n := 400; n < 1000; n += 100 {
		w.waitFor("some have come", func() bool { return to.count() > n-400 })
		w.publish(100, 40)
	}
	w.waitFor("all have come", func() bool { return to.count() == 1000 && parkedOf(d, "a") == 0 })
	to.inOrder()
	if n := spilled(); n != 0 {
		t.Errorf("%d are still spilled", n)
	}
}
