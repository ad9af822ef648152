//go:build !race

// Not with the race detector: it allocates, and makes pools drop their content.

package score

import (
	"fmt"
	"runtime"
	"testing"
)

// An event causes no allocation: all allocations belong to fetches, batches and transactions.
// The test counts the whole process; the broker runs in another one.
func TestEventsCostNoAllocation(t *testing.T) {
	for _, atLeastOnce := range []bool{false, true} {
		t.Run(fmt.Sprint("at least once: ", atLeastOnce), func(t *testing.T) {
			const warm, n = 4_000, 40_000
			w := newSeparateWorld(t)
			w.bots(20)
			conf := scorer()
			conf.AtLeastOnce = atLeastOnce
			p := &process{w: w}
			p.open(conf)
			p.load(20)
			w.publish(batchOf(0, warm+n, 20)...)
			w.must(w.p.Flush(t.Context()))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			p.score(conf)
			w.poll("all are scored", func() bool { return p.s.counts.scored.Load() == warm+n }) // Standing would allocate
			runtime.ReadMemStats(&after)
			if each := float64(after.Mallocs-before.Mallocs) / n; each > .25 {
				t.Errorf("%.2f allocations an event", each)
			}
			p.close()
		})
	}
}
