package infer

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
)

// A sweep over all models must not evict the models that are used regularly.
func TestASweepLeavesThoseThatAreAskedFor(t *testing.T) {
	const models, hot, size = 6000, 1400, 16 << 10
	s := newToys()
	c := s.open(t, Options{Memory: 1500 * size})
	r := rand.New(rand.NewPCG(1, 2))
	popular := rand.NewZipf(r, 1.01, 20, hot-1)
	refs := make([]*Ref, models)
	for i := range refs {
		refs[i] = s.put(i, size)
	}
	for range 20 * hot {
		useModel(t, c, refs[popular.Uint64()])
	}
	hits, asked := 0, 0
	for i := range models { // the sweep: one use after every three others
		for range 3 {
			if asked++; useModel(t, c, refs[popular.Uint64()]) {
				hits++
			}
		}
		useModel(t, c, refs[i])
	}
	if rate := float64(hits) / float64(asked); rate < 0.98 {
		t.Errorf("of the models that are asked for %.1f%% were there during the sweep", rate*100)
	}
}

// Models that become popular replace models that no longer are.
func TestThePopularChange(t *testing.T) {
	const size = 16 << 10
	s := newToys()
	c := s.open(t, Options{Memory: 600 * size})
	r := rand.New(rand.NewPCG(3, 4))
	for era := range 4 {
		hits := 0
		const asked = 20_000
		for i := range asked {
			if hit := useModel(t, c, s.put(era*500+r.IntN(500), size)); hit && i >= asked/2 {
				hits++
			}
		}
		if rate := float64(hits) / (asked / 2); rate < 0.98 {
			t.Errorf("era %d: only %.1f%% of the popular models are in memory", era, rate*100)
		}
	}
}

// A large model is kept only if it is worth more than all the small ones that it would replace.
func TestALargeModelIsWorthItsPlace(t *testing.T) {
	const size = 16 << 10
	s := newToys()
	c := s.open(t, Options{Memory: 64 * size})
	for range 3 {
		for i := range 64 {
			useModel(t, c, s.put(i, size))
		}
	}
	large := s.put(1000, 4*size)
	for range 8 {
		useModel(t, c, large)
	}
	if c.Holds(large) {
		t.Error("asked for 8 times, it took the places of 4 that were asked for 3 times each")
	}
	small := s.put(2000, size)
	for range 8 {
		useModel(t, c, small)
	}
	if !c.Holds(small) {
		t.Error("a small one that was asked for as often did not find a place")
	}
}

// Evicting a model in use would free nothing.
func TestWhatIsUsedIsNotPushedOut(t *testing.T) {
	const size = 16 << 10
	s := newToys()
	c := s.open(t, Options{Memory: 64 * size})
	var used []*Model
	for i := range 64 {
		m, err := c.Load(t.Context(), s.put(i, size)) // not used often
		if err != nil {
			t.Fatal(err)
		}
		if i >= 4 {
			used = append(used, m)
		} else {
			m.Release()
		}
	}
	large := s.put(1000, 10*size) // fewer than ten models could be evicted for it
	for range 30 {
		useModel(t, c, large)
	}
	books(t, c, s)
	if st := c.Stats(); c.Holds(large) || st.Evicted != 0 || st.Outside != 0 {
		t.Errorf("%+v", st)
	}
	for _, m := range used {
		m.Release()
	}
}

// Among models of equal worth, those leave that were not used lately.
func TestWhatWasUsedLatelyStays(t *testing.T) {
	const size, fit = 16 << 10, 19
	s := newToys()
	c := s.open(t, Options{Memory: 20 * size}) // too little for a window
	for i := range fit * 3 {
		useModel(t, c, s.put(i%fit, size))
	}
	enter := func(n int) { // loads a model that was requested often
		r := s.put(n, size)
		for range 12 {
			c.Use(r)
		}
		useModel(t, c, r)
		if !c.Holds(r) {
			t.Fatalf("%d did not find a place", n)
		}
	}
	enter(100) // moves the hand once around the ring
	const idle = fit / 2
	for i := range fit {
		if r := s.put(i, size); i != idle && c.Holds(r) {
			useModel(t, c, r)
		}
	}
	enter(101)
	if c.Holds(s.put(idle, size)) || c.Stats().Evicted != 2 {
		t.Errorf("another one left than the one that was not used: %+v", c.Stats())
	}
}

func TestWhatIsLargerThanAllIsServedAndNotKept(t *testing.T) {
	s := newToys()
	log := new(bytes.Buffer)
	c := s.open(t, Options{Memory: 1 << 20, Logger: slog.New(slog.NewTextHandler(log, nil))})
	r := s.put(1, 2<<20)
	m, err := c.Load(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if again := c.Use(r); again == nil {
		t.Error("somebody has it, and others did not find it")
	} else {
		again.Release()
	}
	if st := c.Stats(); st.Bytes != 0 || st.Outside != 2<<20 || st.Refused != 1 {
		t.Errorf("%+v", st)
	}
	m.Release()
	if c.Holds(r) {
		t.Error("it was kept")
	}
	useModel(t, c, r)
	if n := strings.Count(log.String(), "--model-memory"); n != 1 {
		t.Errorf("it was said %d times: %s", n, log)
	}
}

// After any sequence of calls, the rings match their counts and never exceed the budget.
func TestThePolicyKeepsItsBooks(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 9))
			s := newToys()
			c := s.open(t, Options{Memory: 1 << 20})
			var used []*Model
			for range 3000 {
				switch ref := s.put(int(r.ExpFloat64()*40), 1<<(11+r.IntN(7))); r.IntN(5) {
				case 0:
					if m := c.Use(ref); m != nil {
						used = append(used, m)
					}
				case 1, 2:
					useModel(t, c, ref)
				case 3:
					if len(used) > 0 {
						i := r.IntN(len(used))
						used[i].Release()
						used = append(used[:i], used[i+1:]...)
					}
				case 4:
					if r.IntN(5) == 0 {
						c.Drop(ref)
					}
				}
				books(t, c, s)
			}
			for _, m := range used {
				m.Release()
			}
		})
	}
}

func books(t *testing.T, c *Cache, s *toys) {
	t.Helper()
	p := &c.policy
	count, bytes := 0, int64(0)
	for _, r := range []*ring{&p.window, &p.main} {
		sum := int64(0)
		for e := r.hand; e != nil; e = e.next {
			if e.in != r || e.next.prev != e || !e.kept || e.chosen {
				t.Fatal("an entry is not where it says")
			}
			count++
			if sum += e.bytes; e.next == r.hand {
				break
			}
		}
		if sum != r.bytes {
			t.Fatalf("a ring says %d bytes and holds %d", r.bytes, sum)
		}
		bytes += sum
	}
	used, all := int64(0), int64(0)
	for i := range c.shards {
		for _, e := range c.shards[i].entries {
			all += e.bytes
			if !e.kept {
				if used += e.bytes; e.users == 0 {
					t.Fatal("an entry is in the map that is neither used nor kept")
				}
			}
		}
	}
	switch {
	case count != p.count || bytes > p.budget:
		t.Fatalf("%d entries, %d are said; %d bytes of %d", count, p.count, bytes, p.budget)
	case used != c.outside.Load() || all != used+bytes:
		t.Fatalf("%d bytes are used and not kept, %d are said; %d of all are there and %d kept", used, c.outside.Load(), all, bytes)
	}
}
