package infer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev/internal/scoring/infer/sandbox"
)

// Limits where Options give none.
const (
	DefaultMemory = 1 << 30
	DefaultDisk   = 10 << 30
)

// Options set the limits of a cache and the source of its models.
type Options struct {
	Memory int64  // bytes of loaded models; 0 means DefaultMemory
	Dir    string // folder of fetched files, verified by digest when they are read; empty means none
	Disk   int64  // bytes in that folder; 0 means DefaultDisk
	// Fetch reads a file of an artifact. Its error is fs.ErrNotExist if there is no
	// such file, and ErrUnfit if the file is larger than limit.
	Fetch func(ctx context.Context, artifact, file string, limit int64) ([]byte, error)
	// ONNXRuntime is the path of its library; ort.Open searches for it if this is empty.
	ONNXRuntime string
	// Child is the command of ONNX Runtime's process; this program with sandbox.Argument if it is
	// empty.
	Child []string
	// Collect sets how much garbage may accumulate, in percent of the live memory, and
	// returns the previous setting: debug.SetGCPercent. If it is nil, the collector
	// keeps its setting; see DESIGN.md.
	Collect    func(percent int) int
	Registerer prometheus.Registerer
	Logger     *slog.Logger
}

// Cache keeps models in memory. It is safe for concurrent use.
type Cache struct {
	o       Options
	log     *slog.Logger
	engines func(source) (Program, string, error)
	runtime *sandbox.Pool
	shards  [shards]shard
	outside atomic.Int64
	policy  policy
	disk    *disk // nil without a folder
	metrics *metrics
	garbage *garbage

	// semaphores of the running fetches, loads, large loads, and loads by ONNX Runtime
	fetches, loads, large, slow chan struct{}
	said                        atomic.Int64 // time of the last log line about a refused model, in nanoseconds

	begin   sync.Mutex // guards the begin of loads against Close
	closed  bool
	running sync.WaitGroup
	ctx     context.Context // context of the loads, which outlive the callers that wait for them
	cancel  context.CancelFunc
}

const (
	shards = 64
	// fetchesAtOnce bounds the concurrent requests to a store.
	fetchesAtOnce = 16
	// largeFile is a size that takes long to load. Fewer such files than processors are
	// loaded at once, so that small models do not wait for them.
	largeFile = 16 << 20
)

// Open makes a cache. It loads nothing.
func Open(o Options) (*Cache, error) {
	if o.Fetch == nil {
		return nil, errors.New("open the cache of models: it needs to know where models come from (Options.Fetch)")
	}
	o.Memory, o.Disk = cmp.Or(o.Memory, DefaultMemory), cmp.Or(o.Disk, DefaultDisk)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	pool := sandbox.Open(sandbox.Options{Library: o.ONNXRuntime, Command: o.Child, Logger: o.Logger})
	c := &Cache{o: o, log: o.Logger, runtime: pool, engines: (&engines{pool}).load, fetches: make(chan struct{}, fetchesAtOnce)}
	atOnce := runtime.GOMAXPROCS(0)
	c.slow = make(chan struct{}, atOnce)
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

// Close stops the loads and drops all models without users. The others are dropped when
// they are released.
func (c *Cache) Close() error {
	c.begin.Lock()
	c.closed = true
	c.begin.Unlock()
	c.cancel()
	c.running.Wait()
	c.policy.evictAll()
	c.runtime.Close()
	c.garbage.end()
	return nil
}

func (c *Cache) shard(k key) *shard {
	h := uint(0)
	for i := max(0, len(k.artifact)-8); i < len(k.artifact); i++ { // a digest's end is random
		h = h*31 + uint(k.artifact[i])
	}
	return &c.shards[h%shards]
}

// Use returns a model that is in memory, or nil, and counts as a use. The caller
// releases it. Use takes no lock that a load holds, and allocates nothing.
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

// Drop removes a model's name. The entry is closed after its last user has released it,
// unless it has other names.
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

// Stats are counts since the cache was opened.
type Stats struct {
	Models  int   // number of models kept in memory
	Bytes   int64 // their bytes
	Budget  int64 // upper limit of Bytes
	Outside int64 // bytes of models that are in use but not kept; they are freed on release
	Hits    uint64
	Misses  uint64
	Evicted uint64 // models that were kept and then made room for others
	Refused uint64 // models that were loaded and not kept, because they are used less than the others
}

// Stats returns the current counts.
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

// entry is a model in memory, under all names by which it was requested.
//
// Its users are counted under the shard's lock. An entry lives while it is kept, which
// the policy decides, or while it has users. So no running program is closed, and an
// evicted entry can still be found until its last user has released it.
type entry struct {
	*loaded
	key   key
	shard *shard

	users  int      // guarded by the shard's lock, like the fields below
	models []*Model // one for each Ref; nearly always one
	kept   bool

	touched atomic.Bool // used since the policy last looked
	place               // position in the policy
}

// shard is a part of the models, by key. Its lock is held only as long as a look-up takes.
type shard struct {
	lock    sync.Mutex
	entries map[key]*entry
	flights map[key]*flight
	hits    uint64
	misses  uint64
	outside *atomic.Int64 // bytes that are in use but not kept
}

// model returns the entry under a name. The caller holds the shard's lock.
func (e *entry) model(r *Ref) *Model {
	for _, m := range e.models {
		if m.ref.Version == r.Version && m.ref.Model == r.Model {
			return m
		}
	}
	m := &Model{ref: *r, popular: r.popularity(), held: e}
	e.models = append(e.models, m)
	return m
}

// unname removes a name from an entry and reports whether it was the last one. Current
// users of the model go on. The caller holds the shard's lock.
func (e *entry) unname(r *Ref) bool {
	had := len(e.models)
	e.models = slices.DeleteFunc(e.models, func(m *Model) bool { return m.ref.Version == r.Version && m.ref.Model == r.Model })
	return len(e.models) < had && len(e.models) == 0
}

func (e *entry) release() {
	s := e.shard
	s.lock.Lock()
	e.users--
	last := e.users == 0 && !e.kept
	if last {
		s.forget(e)
	}
	s.lock.Unlock()
	if last {
		e.program.Close()
	}
}

// forget removes an entry from the map. The entry has no users and is not kept.
func (s *shard) forget(e *entry) {
	s.outside.Add(-e.bytes)
	if s.entries[e.key] == e {
		delete(s.entries, e.key)
	}
}

// setKept marks an entry as kept without users, or as no longer kept.
func (e *entry) setKept(kept bool) {
	s := e.shard
	s.lock.Lock()
	was := e.kept
	e.kept = kept
	if was != kept && kept {
		s.outside.Add(-e.bytes)
	} else if was != kept {
		s.outside.Add(e.bytes)
	}
	last := was && !kept && e.users == 0
	if last {
		s.forget(e)
	}
	s.lock.Unlock()
	if last {
		e.program.Close()
	}
}

func (e *entry) used() bool {
	e.shard.lock.Lock()
	defer e.shard.lock.Unlock()
	return e.users > 0
}

// garbage adjusts the collector to the weights in memory. Go lets garbage grow to the
// size of the live memory, so a gigabyte of weights would take two. But weights are
// plain numbers, which the collector does not scan. Weights cost the collector nothing, so it can
// run as often as it would without them.
type garbage struct {
	set     func(percent int) int // sets the percentage; nil leaves it alone
	percent int                   // setting before the cache was opened

	lock sync.Mutex
	now  int
}

// slack is the amount of garbage that may accumulate, however much memory is live.
const slack = 128 << 20

func newGarbage(set func(int) int) *garbage {
	g := &garbage{set: set}
	if set == nil {
		return g
	}
	g.percent = set(100)
	g.now = g.percent
	if set(g.percent); g.percent < 0 {
		g.set = nil // the collector was switched off on purpose
	}
	return g
}

// hold sets the percentage for the current bytes of models. It counts them under the
// lock: of two concurrent callers, the later one must not set an older count.
func (g *garbage) hold(bytes func() int64) {
	if g.set == nil {
		return
	}
	g.lock.Lock()
	defer g.lock.Unlock()
	// Each call stops the world for a moment, so small changes are skipped.
	if want := percentFor(g.percent, bytes()); want < g.now*9/10 || want > g.now*11/10+1 {
		g.set(want)
		g.now = want
	}
}

// percentFor returns the percentage for a number of bytes of models.
func percentFor(percent int, bytes int64) int {
	return max(1, int(int64(percent)*slack/(slack+bytes)))
}

func (g *garbage) end() {
	if g.set != nil {
		g.set(g.percent)
	}
}

// metrics are the cache's Prometheus metrics.
type metrics struct {
	loads    prometheus.Histogram
	failures *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer, stats func() Stats) (*metrics, error) {
	m := &metrics{
		loads: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tidemill_models_load_seconds",
			Help:    "How long it took to bring a model into memory, from the disk or the store to its golden request.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_models_failed_loads_total",
			Help: "Failed loads, by reason: unfit is permanent, away is tried again, left means that no caller waited any longer."}, []string{"reason"}),
	}
	if r == nil {
		return m, nil
	}
	errs := []error{r.Register(m.loads), r.Register(m.failures)}
	for _, c := range counted(stats) {
		errs = append(errs, r.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register the metrics of the cache of models: %w", err)
	}
	return m, nil
}

func counted(stats func() Stats) []prometheus.Collector {
	gauge := func(name, help string, value func(Stats) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tidemill_models_" + name, Help: help}, func() float64 { return value(stats()) })
	}
	counter := func(name, help string, value func(Stats) uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "tidemill_models_" + name, Help: help}, func() float64 { return float64(value(stats())) })
	}
	return []prometheus.Collector{
		gauge("kept", "Models kept in memory.", func(s Stats) float64 { return float64(s.Models) }),
		gauge("bytes", "Memory of the models that are kept.", func(s Stats) float64 { return float64(s.Bytes) }),
		gauge("budget_bytes", "Memory that models may take.", func(s Stats) float64 { return float64(s.Budget) }),
		gauge("outside_bytes", "Memory of models that are used and not kept.", func(s Stats) float64 { return float64(s.Outside) }),
		counter("hits_total", "Uses of models that were in memory.", func(s Stats) uint64 { return s.Hits }),
		counter("misses_total", "Uses of models that had to be loaded first.", func(s Stats) uint64 { return s.Misses }),
		counter("evictions_total", "Models that made room for others.", func(s Stats) uint64 { return s.Evicted }),
		counter("refused_total", "Models that were loaded and not cached, because they are used less than the others.", func(s Stats) uint64 { return s.Refused }),
	}
}

func (m *metrics) loaded(took time.Duration, err error) {
	switch {
	case err == nil:
		m.loads.Observe(took.Seconds())
	case errors.Is(err, ErrUnfit):
		m.failures.WithLabelValues("unfit").Inc()
	case isLeft(err):
		m.failures.WithLabelValues("left").Inc()
	default:
		m.failures.WithLabelValues("away").Inc()
	}
}
