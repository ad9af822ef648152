package parked

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// A list behaves as a sorted slice does.
func TestList(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var l List
		var want []Ref
		at := int64(0)
		newRef := func() Ref {
			at++
			r := Ref{Order: at, Other: at + int64(rng.IntN(3)), Extra: uint32(1000 + at/100), Copy: uint32(rng.IntN(2))}
			if rng.IntN(20) == 0 {
				r.Order = int64(rng.IntN(int(at) + 1))
			}
			return r
		}
		for range 400 {
			switch n := rng.IntN(100); {
			case n < 60:
				for range rng.IntN(20) {
					r := newRef()
					if _, found := slices.BinarySearchFunc(want, r, Ref.Compare); found {
						continue
					}
					l.Add(r)
					place, _ := slices.BinarySearchFunc(want, r, Ref.Compare)
					want = slices.Insert(want, place, r)
				}
			case n < 80:
				n := rng.IntN(30)
				for range min(n, len(want)) {
					if got, ok := l.Pop(); !ok || got != want[0] {
						t.Fatalf("popped %v, want %v", got, want[0])
					}
					want = want[1:]
				}
			default:
				type entry struct {
					Ref
					over bool
				}
				entries := map[Ref]entry{}
				for range rng.IntN(40) {
					r := newRef()
					if len(want) > 0 && rng.IntN(2) == 0 {
						r = want[rng.IntN(len(want))]
						r.Other = at
					}
					entries[Ref{Order: r.Order, Copy: r.Copy}] = entry{r, rng.IntN(2) == 0}
				}
				var all []entry
				for _, e := range entries {
					all = append(all, e)
					want = slices.DeleteFunc(want, func(r Ref) bool { return r.Compare(e.Ref) == 0 })
					if !e.over {
						want = append(want, e.Ref)
					}
				}
				slices.SortFunc(all, func(a, b entry) int { return a.Compare(b.Ref) })
				slices.SortFunc(want, Ref.Compare)
				l.Merge(len(all), func(n int) (Ref, bool) { return all[n].Ref, all[n].over })
			}
			var got []Ref
			l.Each(func(r Ref) { got = append(got, r) })
			if !slices.Equal(got, want) || l.Len() != len(want) {
				t.Fatalf("seed %d: it has %d records, %v, want %d, %v", seed, l.Len(), got, len(want), want)
			}
		}
	}
}

func TestListedRecordsTakeFewBytes(t *testing.T) {
	var l List
	const n = 100_000
	for at := range int64(n) {
		l.Add(Ref{Order: at, Other: at + at/500, Extra: uint32(1_700_000_000 + at/1000)})
	}
	bytes := 0
	for _, b := range l.blocks {
		bytes += len(b.data)
	}
	if each := float64(bytes) / n; each > 2.1 {
		t.Errorf("%.1f bytes a record", each)
	}
}
