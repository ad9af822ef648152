package infer

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// What is held where Options say nothing.
const (
	DefaultMemory = 1 << 30
	DefaultDisk   = 10 << 30
)

// Options say how much may be held, and where models come from.
type Options struct {
	Memory int64  // bytes of loaded models; DefaultMemory if it is 0
	Dir    string // of files that were fetched, verified by digest when they are read; empty is none
	Disk   int64  // bytes there; DefaultDisk if it is 0
	// Fetch reads a file of an artifact. That there is no such file is an error that
	// is fs.ErrNotExist; that it is larger than limit, one that is ErrUnfit.
	Fetch func(ctx context.Context, artifact, file string, limit int64) ([]byte, error)
	// ONNXRuntime is the path of its library; empty is to look for it (ort.Open).
	ONNXRuntime string
	// Collect sets how much garbage may lie around, in percent of what is alive, and
	// returns what was set before: debug.SetGCPercent. Nil leaves the collector as it
	// is; see DESIGN.md.
	Collect    func(percent int) int
	Registerer prometheus.Registerer
	Logger     *slog.Logger
}

// Cache holds models. It is safe for concurrent use.
type Cache struct {
	o       Options
	log     *slog.Logger
	engines func(engine string, data []byte) (Program, string, error)
	shards  [shards]shard
	outside atomic.Int64
	policy  policy
	disk    *disk // nil is none
	metrics *metrics
	garbage *garbage

	fetches, loads, large chan struct{} // one for each that is under way
	said                  atomic.Int64  // when a model that has no place was logged last, in nanoseconds

	begin   sync.Mutex // held to begin a load, and to end
	closed  bool
	running sync.WaitGroup
	ctx     context.Context // of the loads, which outlive those who ask for them
	cancel  context.CancelFunc
}

const (
	shards = 64
	// fetchesAtOnce bounds what a store is asked at once.
	fetchesAtOnce = 16
	// largeFile takes long to make ready. Of such there are never as many at once
	// as processors, so that a small model does not wait for them.
	largeFile = 16 << 20
)

// Open makes a cache. It loads nothing yet.
func Open(o Options) (*Cache, error) {
	if o.Fetch == nil {
		return nil, errors.New("open the cache of models: it needs to know where models come from (Options.Fetch)")
	}
	o.Memory, o.Disk = cmp.Or(o.Memory, DefaultMemory), cmp.Or(o.Disk, DefaultDisk)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Cache{o: o, log: o.Logger, engines: (&engines{path: o.ONNXRuntime}).load,
		fetches: make(chan struct{}, fetchesAtOnce)}
	atOnce := runtime.GOMAXPROCS(0)
	c.loads, c.large = make(chan struct{}, atOnce), make(chan struct{}, max(1, atOnce-1))
	c.policy = policy{sketch: newSketch(), budget: o.Memory}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	for i := range c.shards {
		s := &c.shards[i]
		s.entries, s.flights, s.outside = map[key]*entry{}, map[key]*flight{}, &c.outside
	}
	var err error
	if c.metrics, err = newMetrics(o.Registerer, c.Stats); err != nil {
		return nil, err
	}
	if o.Dir != "" {
		if c.disk, err = openDisk(o.Dir, o.Disk, c.log, &c.running); err != nil {
			return nil, err
		}
	}
	c.garbage = newGarbage(o.Collect)
	return c, nil
}

// Close ends what loads and lets all models go that nobody uses; the others go
// when they are released.
func (c *Cache) Close() error {
	c.begin.Lock()
	c.closed = true
	c.begin.Unlock()
	c.cancel()
	c.running.Wait()
	c.policy.end()
	c.garbage.end()
	return nil
}

func (c *Cache) shard(k key) *shard {
	h := uint(0)
	for i := max(0, len(k.artifact)-8); i < len(k.artifact); i++ { // digests: their ends are random
		h = h*31 + uint(k.artifact[i])
	}
	return &c.shards[h%shards]
}

// Use is a model that is in memory, nil if it is not. It counts as a use. Release
// it. It takes no lock that a load holds, and allocates nothing.
func (c *Cache) Use(r *Ref) *Model {
	k := r.key()
	s := c.shard(k)
	s.lock.Lock()
	e := s.entries[k]
	if e == nil {
		s.misses++
		s.lock.Unlock()
		c.policy.sketch.add(r.popularity())
		return nil
	}
	m := e.model(r)
	e.users++
	s.hits++
	s.lock.Unlock()
	if !e.touched.Load() {
		e.touched.Store(true)
	}
	c.policy.sketch.add(m.popular)
	return m
}

// Holds reports whether a model is in memory. It does not count as a use.
func (c *Cache) Holds(r *Ref) bool {
	k := r.key()
	s := c.shard(k)
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.entries[k] != nil
}

// Drop says that nobody will ask for a model by this name again. It goes when its
// users have left, unless it has other names.
func (c *Cache) Drop(r *Ref) {
	k := r.key()
	s := c.shard(k)
	s.lock.Lock()
	e := s.entries[k]
	last := e != nil && e.unname(r)
	s.lock.Unlock()
	if last {
		c.policy.leave(e)
	}
}

// Stats are what the cache has done since it was opened.
type Stats struct {
	Models  int   // kept in memory
	Bytes   int64 // of them
	Budget  int64 // that those never exceed
	Outside int64 // bytes of models that are used and not kept: they go when they are released
	Hits    uint64
	Misses  uint64
	Evicted uint64 // were kept, and made room for others
	Refused uint64 // were loaded and not kept, as they are asked for less than the others
}

// Stats tells them.
func (c *Cache) Stats() Stats {
	p := &c.policy
	p.lock.Lock()
	st := Stats{Models: p.count, Bytes: p.window.bytes + p.main.bytes, Budget: p.budget, Evicted: p.evicted, Refused: p.refused}
	p.lock.Unlock()
	st.Outside = c.outside.Load()
	for i := range c.shards {
		s := &c.shards[i]
		s.lock.Lock()
		st.Hits += s.hits
		st.Misses += s.misses
		s.lock.Unlock()
	}
	return st
}
