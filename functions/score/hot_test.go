//go:build !race

// The race detector allocates, and has pools forget.

package score

import (
	"fmt"
	"runtime"
	"testing"
)

// An event costs no allocation: what there are belong to fetches, batches and
// transactions. The harness counts all of the process, the broker of the test
// being in another one.
func TestEventsCostNoAllocation(t *testing.T) {
	for _, atLeastOnce := range []bool{false, true} {
		t.Run(fmt.Sprint("at least once: ", atLeastOnce), func(t *testing.T) {
			const warm, n = 4_000, 40_000
			w := apart(t)
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
			w.soon("all are scored", func() bool { return p.s.counts.scored.Load() == warm+n }) // to ask for the standing would allocate
			runtime.ReadMemStats(&after)
			if each := float64(after.Mallocs-before.Mallocs) / n; each > .5 {
				t.Errorf("%.2f allocations an event", each)
			}
			p.close()
		})
	}
}
