package ledger

import (
	"testing"
	"testing/synctest"
	"time"
)

// Folded facts count before Redis has them, but nothing may be decided before the ledger has caught up.
func TestProgressOfAFilling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProgress()
		is := func(behind int64, left time.Duration) {
			t.Helper()
			if s := p.status(); s.Behind != behind || s.Left != left || s.Total != 100_000 {
				t.Errorf("%+v, want %d facts left and %s", s, behind, left)
			}
		}
		p.restart("one", map[int32]int64{}, map[int32]int64{0: 60_000, 1: 40_000})
		time.Sleep(10 * time.Second)
		is(100_000, 0)
		p.fold(0, estimateFrom-1)
		is(100_001-estimateFrom, 0)
		p.fold(0, 60_000)
		is(40_000, 10*time.Second*40/60)
		if p.reached(0) != 0 {
			t.Error("facts count as written that are only folded")
		}

		p.restart("one", map[int32]int64{1: 40_000}, map[int32]int64{0: 60_000, 1: 40_000}) // what was not written is lost
		is(60_000, 0)
		p.advance(step{partition: 0, next: 60_000})
		is(1, 0)
		p.setCaught(true)
		is(0, 0)
	})
}
