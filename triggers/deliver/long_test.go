//go:build slow

package deliver

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"testing"
	"time"

	"tidemill.dev/broker"
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

// footprint returns the memory that the runtime has taken and not given back.
func footprint() uint64 {
	all := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(all)
	return all[0].Value.Uint64() - all[1].Value.Uint64()
}

// A million parked events of a partition are rebuilt with a tenth of the memory that ten million may
// take, whether they share keys or not. Then their index is filled.
func TestRebuildOfAMillionIsBounded(t *testing.T) {
	const n, limit = 1_000_000, 40 << 20
	debug.FreeOSMemory()
	before := footprint()
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(int64(before) + limit))
	for _, keys := range []int{2000, n} {
		debug.FreeOSMemory()
		most := uint64(0)
		p, _ := parkedMany(t, n, keys, func() { most = max(most, footprint()) })
		ts := p.states["t"]
		for ts.mayRefill() {
			for _, d := range p.refill(ts, 0) {
				v := broker.View{Key: strconv.AppendInt(nil, d.ref.source%int64(keys), 10)}
				p.refilled(d, &record{}, &v, 0)
			}
		}
		most = max(most, footprint())
		t.Logf("%d keys: %d MiB at most above %d MiB; %d of %d in the index", keys, (most-before)>>20, before>>20, ts.indexed(), ts.parked)
		if most > before+limit || ts.parked != n || ts.indexed() > p.bounds.index {
			t.Errorf("it took %d MiB; %d of %d are in the index", (most-before)>>20, ts.indexed(), ts.parked)
		}
		runtime.KeepAlive(p)
	}
}
