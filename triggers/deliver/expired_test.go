package deliver

import (
	"testing"
	"time"

	"tidemill.dev/config"
)

// A pause does not keep an event beyond its time: it would be lost.
func TestPausedEventsExpire(t *testing.T) {
	x := &quiet{p: lonePartition(time.Hour), now: 1_000_000}
	x.p.lines["t"].paused = true
	began, expired := x.now, 0
	x.fails = func(i *item, _ moment) bool { return !i.expired }
	x.ended = func(*item) { expired++ }
	x.take(10, 10)
	for range 10_000 {
		x.send()
		x.write(t)
		x.load(t)
		next := x.p.deadline(x.now)
		for _, l := range x.p.lines {
			next = min(next, l.nextLoad())
		}
		if x.now = max(x.now, next); expired == 10 {
			break
		}
		x.p.wake(x.now)
	}
	if waited := time.Duration(x.now-began) * time.Millisecond; expired != 10 || waited > 31*time.Minute {
		t.Errorf("%d have expired after %s", expired, waited)
	}
}

// So does what cannot be read any more.
func TestPausedEventsThatAreLost(t *testing.T) {
	x := &quiet{p: lonePartition(config.Forever), now: 1_000_000}
	x.p.lines["t"].paused = true
	x.fails = func(*item, moment) bool { return true }
	x.take(1, 1)
	for range 10 {
		x.now += 100
		x.send()
		x.write(t)
	}
	l := x.p.lines["t"]
	l.paused = false
	loads := x.p.load(l, 1, x.now)
	l.paused = true
	x.p.lost(loads[0], "it is gone", x.now)
	if out := x.p.handOut(); len(out) != 1 || !x.p.start(out[0], x.now) {
		t.Error("nobody is told")
	}
}

// A stream that is kept for less long has its events expire earlier.
func TestAShorterRetentionHoldsForWhatWaits(t *testing.T) {
	x := &quiet{p: lonePartition(48 * time.Hour), now: 1_000_000, backoff: config.Backoff{Kind: config.Constant, First: 40 * time.Hour}}
	began, expired := x.now, 0
	x.fails = func(i *item, _ moment) bool { return !i.expired }
	x.ended = func(*item) { expired++ }
	x.take(10, 10)
	for x.p.lines["t"].parked < 10 {
		x.send()
		x.write(t)
		x.now += 10
	}
	x.p.retain(4 * time.Hour)
	x.run(t, func() bool { return expired == 10 })
	if waited := time.Duration(x.now-began) * time.Millisecond; waited > 3*time.Hour {
		t.Errorf("they expired after %s, want half of four hours", waited)
	}
}
