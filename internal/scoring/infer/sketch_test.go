package infer

import (
	"math/rand/v2"
	"sync"
	"testing"
)

// The counts are never too low, rarely too high, and end at 16.
func TestTheSketchCounts(t *testing.T) {
	s := newSketch()
	r := rand.New(rand.NewPCG(1, 1))
	s.hold(1 << 30)
	const keys = 30_000
	uses := make([]int, keys)
	for range 4 * keys {
		k := int(r.ExpFloat64() * keys / 8)
		if k < keys {
			uses[k]++
			s.add(mix(uint64(k)))
		}
	}
	high := 0
	for k, n := range uses {
		switch got := s.uses(mix(uint64(k))); {
		case got < min(n, most+1):
			t.Fatalf("%d was used %d times, and the estimate is %d", k, n, got)
		case got > min(n, most+1)+1:
			high++
		}
	}
	if high > keys/50 {
		t.Errorf("%d of %d estimates are too high by more than one", high, keys)
	}
}

func TestTheSketchForgets(t *testing.T) {
	s := newSketch()
	for range 20 {
		s.add(1)
	}
	for k := range uint64(2 * leastModel * perModel) {
		s.add(mix(k + 2))
	}
	if got := s.uses(1); got > 5 || got == 0 {
		t.Errorf("after three halvings it was used %d times", got)
	}
	// A model that is used all the time does not age the others.
	before := s.added.Load()
	for range 100_000 {
		s.add(1)
	}
	if grown := s.added.Load() - before; grown > most+1 {
		t.Errorf("it counted %d times", grown)
	}
}

// With fewer models in memory, fewer uses are remembered.
func TestTheSketchFollowsHowManyAreHeld(t *testing.T) {
	s := newSketch()
	s.hold(100_000)
	for k := range uint64(20_000) {
		s.add(mix(k))
	}
	s.hold(10)
	s.add(mix(1 << 40))
	if n := s.added.Load(); n > leastModel*perModel {
		t.Errorf("%d are remembered", n)
	}
}

func TestTheSketchTakesAllAtOnce(t *testing.T) {
	s := newSketch()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100_000 {
				s.add(7)
			}
		})
	}
	all.Wait()
	if s.uses(7) != most+1 {
		t.Error(s.uses(7))
	}
}
