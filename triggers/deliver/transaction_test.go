package deliver

import (
	"testing"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
)

// Records that no rebuild reads are deleted, and the next owner begins where the log begins.
func TestRecordsBelowTheMarkAreDeleted(t *testing.T) {
	t.Parallel()
	testTrim(newInstall(t, 1))
}

func testTrim(w *install) {
	w.Helper()
	to := newSink(w, func(_ string, try int) int {
		if try == 1 {
			return 503
		}
		return 200
	})
	w.trigger("a", to.url, func(t *config.Trigger) { t.Delivery.Backoff.First = 2 * defaultBounds().patience })
	d := w.open()
	l := d.pipelineOf(tidemill.StreamEvents)
	start := func() int64 {
		at, err := w.b.Places(w.ctx, tidemill.Parked(tidemill.StreamEvents), broker.Earliest())
		w.must(err)
		return at[0].Offset
	}
	var marks []broker.Position
	turn := func() {
		var denied bool
		if marks, denied = l.trim(marks); denied {
			w.Fatal("it may not delete")
		}
	}
	turn()
	w.publish(20, 5)
	w.waitFor("all have come, and their records are ended", func() bool { return to.count() == 20 && parkedOf(d, "a") == 0 && w.committed() })
	s := l.assignment(0)
	mark := func() (at int64) {
		s.apply(func(p *partition, _ millis) { at = p.mark })
		return at
	}
	s.apply(func(p *partition, _ millis) { p.begunOn = 0 }) // so that its record is written again
	w.publish(20, 5)
	w.waitFor("the mark has moved", func() bool { return to.count() == 40 && parkedOf(d, "a") == 0 && w.committed() && mark() > 20 })
	turn()
	old := marks[0].Offset
	turn()
	if got := start(); got != old {
		w.Errorf("the log begins at %d, want the mark %d of the turn before", got, old)
	}
	w.close(d)
	w.publish(1, 1)
	w.open()
	w.waitFor("the next owner delivers", func() bool { return to.count() == 41 })
	if n := len(w.letters()); n != 0 {
		w.Errorf("%d dead letters", n)
	}
}
