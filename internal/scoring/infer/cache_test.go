package infer

import (
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"tidemill.dev/internal/scoring/infer/tensor"
)

func TestAModelIsLoadedOnceForAllWhoAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newToys()
		gate := make(chan struct{})
		s.before = func(context.Context, string, string) error { <-gate; return nil }
		c := s.open(t, Options{})
		r := s.put(1, 4096)
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				ref := *r
				ref.Version = 1 + i%2 // the same files as two versions
				m, err := c.Load(t.Context(), &ref)
				if err != nil {
					t.Error(err)
					return
				}
				if *m.Ref() != ref {
					t.Errorf("asked for %s, got %s", &ref, m.Ref())
				}
				m.Release()
			})
		}
		synctest.Wait()
		if m := c.Use(r); m != nil {
			t.Error("it is there before it is loaded")
		}
		close(gate)
		all.Wait()
		if n := s.fetches(r); n != 1 {
			t.Errorf("it was fetched %d times", n)
		}
	})
}

// If a caller leaves, the load continues for the others. If the last caller leaves, it ends.
func TestALoadEndsWhenAllHaveLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newToys()
		ended := 0
		gate := make(chan struct{})
		s.before = func(ctx context.Context, _, _ string) error {
			select {
			case <-gate:
				return nil
			case <-ctx.Done():
				ended++
				return ctx.Err()
			}
		}
		c := s.open(t, Options{})
		r := s.put(1, 4096)
		var errs [2]error
		var leave [2]context.CancelFunc
		for i := range errs {
			var ctx context.Context
			ctx, leave[i] = context.WithCancel(t.Context())
			go func() { _, errs[i] = c.Load(ctx, r) }()
		}
		synctest.Wait()
		leave[0]()
		synctest.Wait()
		if !errors.Is(errs[0], context.Canceled) || ended != 0 {
			t.Fatalf("%v; ended %d", errs[0], ended)
		}
		leave[1]()
		synctest.Wait()
		if !errors.Is(errs[1], context.Canceled) || ended != 1 {
			t.Fatalf("%v; ended %d", errs[1], ended)
		}
		close(gate)
		useModel(t, c, r) // a new load begins
	})
}

// A load that has lost all its callers may still succeed. It leaves nothing in memory, and does
// not replace the load that other callers have begun since.
func TestALoadThatAllHaveLeftBringsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newToys()
		c := s.open(t, Options{})
		deaf, first := make(chan struct{}), true
		c.engines = func(from source) (Program, string, error) {
			if first {
				first = false
				<-deaf // this load does not notice that its caller has left
			}
			return s.load(from)
		}
		r := s.put(1, 4096)
		ctx, leave := context.WithCancel(t.Context())
		go func() { _, _ = c.Load(ctx, r) }()
		synctest.Wait()
		leave()
		synctest.Wait()
		c.loads = make(chan struct{}, 1) // the first load holds the only place if there is one processor
		used, err := c.Load(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		close(deaf)
		synctest.Wait()
		used.Release()
		synctest.Wait()
		if st := c.Stats(); st.Models != 1 || s.alive.Load() != 4096-overhead {
			t.Errorf("%+v, %d bytes alive", st, s.alive.Load())
		}
	})
}

func TestAFailureIsToldToAllAndIsNotKept(t *testing.T) {
	s := newToys()
	c := s.open(t, Options{})
	away := errors.New("the store is away")
	s.before = func(context.Context, string, string) error { return away }
	r := s.put(1, 4096)
	if _, err := c.Load(t.Context(), r); !errors.Is(err, away) || unfit(err) || !strings.Contains(err.Error(), "toy/1 version 1") {
		t.Errorf("%v", err)
	}
	s.before = nil
	useModel(t, c, r)
	if _, err := c.Load(t.Context(), &Ref{Model: "toy/none", Version: 3, Artifact: "none"}); !unfit(err) || !strings.Contains(err.Error(), "has no model.onnx") {
		t.Errorf("an artifact without a model: %v", err)
	}
	s.files["torn/"+ModelFile] = "this is no toy"
	if _, err := c.Load(t.Context(), &Ref{Model: "toy/torn", Version: 3, Artifact: "torn"}); !unfit(err) {
		t.Errorf("a file that is no model: %v", err)
	}
	s.before = func(_ context.Context, _, file string) error {
		if file == CardFile {
			return away
		}
		return nil
	}
	if _, err := c.Load(t.Context(), s.put(2, 4096)); !errors.Is(err, away) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a model without its card: %v", err)
	}
}

func TestAClosedCacheLoadsNothing(t *testing.T) {
	s := newToys()
	c := s.open(t, Options{})
	used, err := c.Load(t.Context(), s.put(1, 4096))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Load(t.Context(), s.put(2, 4096)); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
	if err := used.Run(nil, nil); err != nil {
		t.Error(err)
	}
	used.Release()
}

func TestCloseEndsWhatLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newToys()
		s.before = func(ctx context.Context, _, _ string) error { <-ctx.Done(); return ctx.Err() }
		c := s.open(t, Options{})
		var err error
		go func() { _, err = c.Load(t.Context(), s.put(1, 4096)) }()
		synctest.Wait()
		_ = c.Close()
		synctest.Wait()
		if !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
}

// The budget bounds the models that are kept, and models in use come on top of it. There is
// never more in memory. No model in use is closed; the toys would report that.
func TestMemoryIsTheBudgetAndWhatIsUsed(t *testing.T) {
	const budget, size, workers = 1 << 20, 32 << 10, 8
	s := newToys()
	c := s.open(t, Options{Memory: budget, Dir: t.TempDir()})
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 1))
			for range 2000 {
				ref := s.put(int(r.ExpFloat64()*30), size)
				m := c.Use(ref)
				if m == nil {
					var err error
					if m, err = c.Load(t.Context(), ref); err != nil {
						t.Error(err)
						return
					}
				}
				if err := m.Run(nil, make([]tensor.Tensor, 1)); err != nil {
					t.Error(err)
				}
				// Each worker may have one model in use and another that is being released.
				if alive := s.alive.Load(); alive > budget+2*workers*size {
					t.Errorf("%d bytes are alive", alive)
				}
				if r.IntN(50) == 0 {
					c.Drop(ref)
				}
				m.Release()
			}
		})
	}
	all.Wait()
	books(t, c, s)
	if st := c.Stats(); st.Hits == 0 || st.Evicted == 0 || st.Bytes > budget || st.Outside != 0 {
		t.Errorf("%+v", st)
	}
}

// A fetch that hangs does not delay loads of other models.
func TestFetchesDoNotStandInTheWayOfTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newToys()
		c := s.open(t, Options{Dir: t.TempDir(), Memory: 16 << 10})
		here := s.put(1, 32<<10) // too large to be kept in memory, but on the disk
		useModel(t, c, here)
		var atOnce atomic.Int32
		s.before = func(ctx context.Context, _, _ string) error { atOnce.Add(1); <-ctx.Done(); return ctx.Err() }
		ctx, leave := context.WithCancel(t.Context())
		for i := range 3 * fetchesAtOnce {
			go func() { _, _ = c.Load(ctx, s.put(10+i, 4096)) }()
		}
		synctest.Wait()
		useModel(t, c, here)
		if n := atOnce.Load(); n != fetchesAtOnce {
			t.Errorf("%d fetches were under way", n)
		}
		leave()
		synctest.Wait()
		if n := s.fetches(here); n != 1 {
			t.Errorf("fetched %d times", n)
		}
	})
}

func TestDropForgetsAModelUnlessItHasOtherNames(t *testing.T) {
	s := newToys()
	c := s.open(t, Options{})
	one := s.put(1, 4096)
	two := *one
	two.Model = "toy/copy"
	useModel(t, c, one)
	m := c.Use(&two)
	c.Drop(one)
	if st := c.Stats(); st.Models != 1 {
		t.Error("it is gone, and has another name")
	}
	c.Drop(&two)
	if st := c.Stats(); st.Models != 0 || st.Outside != 4096 {
		t.Errorf("%+v", st)
	}
	if err := m.Run(nil, nil); err != nil {
		t.Error(err)
	}
	m.Release()
	if c.Holds(&two) {
		t.Error("it is still there")
	}
}

func TestUseAllocatesNothing(t *testing.T) {
	s := newToys()
	c := s.open(t, Options{})
	r := s.put(1, 4096)
	useModel(t, c, r)
	gone := s.put(2, 4096)
	out := []tensor.Tensor{{Type: 1, Shape: []int{1, 1}, Floats: []float32{1}}}
	if n := testing.AllocsPerRun(1000, func() {
		m := c.Use(r)
		if a := m.Answer(out, 0); len(a.Values) != 1 {
			t.Error(a)
		}
		m.Release()
		c.Use(gone)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestTheCollectorIsToldHowMuchIsHeld(t *testing.T) {
	var set []int
	now := 80
	collect := func(p int) int { was := now; now = p; set = append(set, p); return was }
	s := newToys()
	c := s.open(t, Options{Collect: collect, Memory: 8 << 30})
	for i := range 8 {
		useModel(t, c, s.put(i, slack))
	}
	c.running.Wait() // the collector is set after the last caller has its model
	if now != percentFor(80, 8*slack) && now > 12 || now < 8 {
		t.Errorf("set to %v", set)
	}
	if len(set) > 12 {
		t.Errorf("set %d times", len(set))
	}
	_ = c.Close()
	if now != 80 {
		t.Errorf("left at %d", now)
	}
	now, set = -1, nil
	c = s.open(t, Options{Collect: collect})
	useModel(t, c, s.put(1, 256<<20))
	c.running.Wait()
	if now != -1 || len(set) != 2 {
		t.Errorf("it was switched off, and set to %v", set)
	}
}

func TestPercent(t *testing.T) {
	for bytes, want := range map[int64]int{0: 100, slack: 50, 3 * slack: 25, 1 << 40: 1} {
		if got := percentFor(100, bytes); got != want {
			t.Errorf("with %d bytes: %d, not %d", bytes, got, want)
		}
	}
}

// A file that is larger than the limit for all models is not fetched. A file that is only
// larger than a small budget is fetched, and leaves the memory after it has answered.
func TestHowLargeAFileMayBe(t *testing.T) {
	t.Parallel()
	for memory, want := range map[int64]int64{1 << 10: least, 256 << 20: 256 << 20, 16 << 30: maxModel} {
		var got int64
		c, err := Open(Options{Memory: memory, Fetch: func(_ context.Context, _, file string, limit int64) ([]byte, error) {
			if file == ModelFile {
				got = limit
			}
			return nil, ErrUnfit
		}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Load(t.Context(), &Ref{Model: "m", Version: 1, Artifact: "a"}); !errors.Is(err, ErrUnfit) || got != want {
			t.Errorf("with %d bytes of memory a file may have %d, want %d: %v", memory, got, want, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
