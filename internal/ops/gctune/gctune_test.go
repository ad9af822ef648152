package gctune

import (
	"context"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"testing/synctest"
	"time"
	"weak"
)

// A process that allocates much holds the block. Once it is at rest, the block and the garbage are
// gone. The collector is off, so only Keep can collect.
func TestKeep(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	synctest.Test(t, func(t *testing.T) {
		const block = 512 << 20
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			Keep(ctx, block)
		}()
		synctest.Wait()
		before := allocated()
		garbage := weak.Make(makeGarbage())
		time.Sleep(lookEvery + lookEvery/2)
		if now := allocated(); now < before+block {
			t.Errorf("the heap has %d bytes, and had %d: it holds no block of %d", now, before, block)
		}
		if garbage.Value() == nil {
			t.Fatal("the garbage has gone by itself, so this shows nothing")
		}
		time.Sleep(2 * calmLooks * lookEvery)
		if now := allocated(); now >= before+block {
			t.Errorf("the heap has %d bytes and had %d: the block of %d is still held", now, before, block)
		}
		if garbage.Value() != nil {
			t.Error("the garbage has not been collected")
		}
		stop()
		<-ended
	})
}

// makeGarbage allocates much garbage and returns a pointer by which a test can observe it.
//
//go:noinline
func makeGarbage() *[2 * muchAllocated]byte { return new([2 * muchAllocated]byte) }

func allocated() uint64 {
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	return now.HeapAlloc
}

const mib = 1 << 20

// testLooks is a number of looks and the bytes allocated at each.
type testLooks struct {
	looks int
	made  uint64
}

func TestPace(t *testing.T) {
	for name, c := range map[string]struct {
		alive uint64
		began uint64
		spans []testLooks
		want  []lookAction // moves other than stay
		at    []int        // looks at which they are returned
	}{
		"nothing happens":                        {spans: []testLooks{{100, 0}}},
		"a start leaves garbage":                 {began: 5 * mib, spans: []testLooks{{100, 0}}, want: []lookAction{rest}, at: []int{10}},
		"a small start is nothing":               {began: 3 * mib, spans: []testLooks{{100, 0}}},
		"a load, and then none":                  {spans: []testLooks{{30, 20 * mib}, {60, 0}}, want: []lookAction{hold, rest}, at: []int{1, 40}},
		"a load that pauses":                     {spans: []testLooks{{30, 20 * mib}, {9, 0}, {30, 20 * mib}}, want: []lookAction{hold}, at: []int{1}},
		"a load again":                           {spans: []testLooks{{2, 20 * mib}, {20, 0}, {2, 20 * mib}, {20, 0}}, want: []lookAction{hold, rest, hold, rest}, at: []int{1, 12, 23, 34}},
		"a little all the time":                  {spans: []testLooks{{100, 100 << 10}}, want: []lookAction{rest, rest}, at: []int{41, 82}},
		"not too often":                          {spans: []testLooks{{35, 10 * mib}}, want: []lookAction{rest, rest, rest}, at: []int{10, 20, 30}},
		"much is alive, so little is not worth":  {alive: 800 * mib, spans: []testLooks{{90, 1 * mib}}},
		"much is alive, and much comes together": {alive: 80 * mib, spans: []testLooks{{25, 1 * mib}}, want: []lookAction{rest, rest}, at: []int{10, 20}},
		"much is alive behind a load":            {alive: 800 * mib, spans: []testLooks{{1, 20 * mib}, {20, 0}}, want: []lookAction{hold, rest}, at: []int{1, 11}},
	} {
		t.Run(name, func(t *testing.T) {
			p, allocated, look := newPace(c.began), c.began, 0
			var moves []lookAction
			var at []int
			for _, s := range c.spans {
				for range s.looks {
					look++
					allocated += s.made
					if m := p.observe(allocated, c.alive); m != stay {
						moves, at = append(moves, m), append(at, look)
					}
				}
			}
			if !slices.Equal(moves, c.want) || !slices.Equal(at, c.at) {
				t.Errorf("moves %v at looks %v, want %v at %v", moves, at, c.want, c.at)
			}
		})
	}
}
