//go:build slow

package deliver

import (
	"testing"
	"time"

	"tidemill.dev/config"
)

// A subscriber is away for ten minutes while ten thousand events wait for it.
func TestTenMinutesOfOutageOfTenThousandEvents(t *testing.T) {
	x := &quiet{p: lonePartition(config.Forever), now: 1_000_000, backoff: config.Backoff{Kind: config.Exponential, First: time.Second, Cap: time.Minute, Jitter: true}}
	back := x.now.add(10 * time.Minute)
	last := map[int64]int64{}
	n := 0
	x.fails = func(_ *item, now millis) bool { return now < back }
	x.ended = func(i *item) {
		if key := i.ref.source % 500; last[key] > i.ref.source {
			t.Errorf("offset %d came after %d", i.ref.source, last[key])
		} else {
			last[key] = i.ref.source
		}
		n++
	}
	x.take(10_000, 500)
	x.run(t, func() bool { return n == 10_000 })
	if x.now < back || x.now > back.add(2*time.Minute) {
		t.Errorf("the last came %s after the subscriber was back", time.Duration(x.now-back)*time.Millisecond)
	}
}
