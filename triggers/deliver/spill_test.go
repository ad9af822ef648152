package deliver

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"tidemill.dev"
)

// A list of spilled records behaves as a sorted slice does.
func TestSpillList(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var l spillList
		var want []recordRef
		at := int64(0)
		newRef := func() recordRef {
			at++
			r := recordRef{source: at, at: at + int64(rng.IntN(3)), first: uint32(1000 + at/100), replay: uint32(rng.IntN(2))}
			if rng.IntN(20) == 0 {
				r.source = int64(rng.IntN(int(at) + 1))
			}
			return r
		}
		for range 400 {
			switch n := rng.IntN(100); {
			case n < 60:
				for range rng.IntN(20) {
					r := newRef()
					if _, found := slices.BinarySearchFunc(want, r, compareRefs); found {
						continue
					}
					l.add(r)
					place, _ := slices.BinarySearchFunc(want, r, compareRefs)
					want = slices.Insert(want, place, r)
				}
			case n < 80:
				n := rng.IntN(30)
				got := l.take(n)
				n = min(n, len(want))
				if !slices.Equal(got, want[:n]) {
					t.Fatalf("took %v, want %v", got, want[:n])
				}
				want = slices.Clone(want[n:])
			default:
				entries := map[recordRef]foldEntry{}
				for range rng.IntN(40) {
					r := newRef()
					if len(want) > 0 && rng.IntN(2) == 0 {
						r = want[rng.IntN(len(want))]
						r.at = at
					}
					entries[recordRef{source: r.source, replay: r.replay}] = foldEntry{ref: r, over: rng.IntN(2) == 0}
				}
				var all []foldEntry
				for _, e := range entries {
					all = append(all, e)
					want = slices.DeleteFunc(want, e.ref.same)
					if !e.over {
						want = append(want, e.ref)
					}
				}
				slices.SortFunc(all, func(a, b foldEntry) int { return compareRefs(a.ref, b.ref) })
				slices.SortFunc(want, compareRefs)
				l.merge(all)
			}
			var got []recordRef
			l.each(func(r recordRef) { got = append(got, r) })
			if !slices.Equal(got, want) || l.n != len(want) {
				t.Fatalf("seed %d: it has %d records, %v, want %d, %v", seed, l.n, got, len(want), want)
			}
		}
	}
}

func TestSpilledRecordsTakeFewBytes(t *testing.T) {
	var l spillList
	const n = 100_000
	for at := range int64(n) {
		l.add(recordRef{source: at, at: at + at/500, first: uint32(1_700_000_000 + at/1000)})
	}
	bytes := 0
	for _, b := range l.blocks {
		bytes += len(b.data)
	}
	if each := float64(bytes) / n; each > 4.1 {
		t.Errorf("%.1f bytes a record", each)
	}
}

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
				n += p.triggerState("a").spilled.n
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
