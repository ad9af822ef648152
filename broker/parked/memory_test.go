package parked

import (
	"math/rand/v2"
	"testing"
)

func TestOffsets(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var l Offsets
	held := map[int64]bool{}
	for n := range 20_000 {
		at := int64(5000 + n)
		if n < 100 {
			at = int64(rng.IntN(5000)) // a rebuild also adds offsets in any order
		}
		if !held[at] {
			l.Add(at)
			held[at] = true
		}
		for len(held) > 300 {
			for at := range held {
				l.Remove(at)
				delete(held, at)
				break
			}
		}
		if n%97 == 0 {
			low := int64(1 << 40)
			for at := range held {
				low = min(low, at)
			}
			if got := l.Low(1 << 40); got != low || l.Len() != len(held) || !l.Has(low) || l.Has(low-1) {
				t.Fatalf("low is %d of %d, want %d of %d", got, l.Len(), low, len(held))
			}
		}
	}
}
