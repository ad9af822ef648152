package serving

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tidemill.dev/internal/models/champions"
	"tidemill.dev/internal/scoring/infer"
)

// Options configure Models.
type Options struct {
	Cache     *infer.Cache
	Champions *champions.Table
	Engine    string
	// Unloadable is called once for each version that cannot be loaded, with the
	// version that answers in its place (0 means none). A version that only lacks
	// ONNX Runtime is tried again after the call.
	Unloadable func(model string, version, kept int, reason error)
	// Loaded is called for each version that is loaded. told says that Unloadable was called
	// for this load.
	Loaded func(model string, version int, told bool)
	Logger *slog.Logger
}

// table is the view of the champions that this package needs.
type table interface {
	Champion(model string) (champions.Champion, bool)
	Artifact(ctx context.Context, model string, version int) (string, error)
	Each(fn func(model string, now champions.Champion))
}

var _ table = (*champions.Table)(nil)

// Models holds a slot for each requested model.
type Models struct {
	cache      *infer.Cache
	table      table
	engine     string
	unloadable func(model string, version, kept int, reason error)
	loaded     func(model string, version int, told bool)
	log        *slog.Logger
	said       atomic.Int64 // time of the last log line about a failed load, in nanoseconds
	failed     atomic.Pointer[failure]
	ready      chan struct{} // always closed, for callers that need not wait

	lock  sync.RWMutex
	slots map[string]*Slot

	begin   sync.Mutex // guards the begin of loads against Close
	closed  bool
	running sync.WaitGroup
	ctx     context.Context // context of the loads
	cancel  context.CancelFunc
}

// Open makes Models. Close it before the cache.
func Open(o Options) (*Models, error) {
	if o.Cache == nil || o.Champions == nil {
		return nil, errors.New("open the models that are served: it needs a cache and a table of champions")
	}
	return open(o, o.Champions), nil
}

func open(o Options, t table) *Models {
	m := &Models{cache: o.Cache, table: t, engine: o.Engine, unloadable: o.Unloadable, loaded: o.Loaded, log: o.Logger,
		ready: make(chan struct{}), slots: map[string]*Slot{}}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	if m.unloadable == nil {
		m.unloadable = func(string, int, int, error) {}
	}
	if m.loaded == nil {
		m.loaded = func(string, int, bool) {}
	}
	close(m.ready)
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m
}

// Close stops the loads. Callers that wait for a model are woken and find it loading.
func (m *Models) Close() error {
	m.begin.Lock()
	m.closed = true
	m.begin.Unlock()
	m.cancel()
	m.running.Wait()
	for _, s := range m.all() {
		s.releaseModels()
	}
	return nil
}

// Slot returns the slot of a model. The call is cheap, and all callers get the same slot. The slot
// of a model without a champion is not remembered, because any client can ask for any name.
func (m *Models) Slot(model string) *Slot {
	m.lock.RLock()
	s := m.slots[model]
	m.lock.RUnlock()
	switch {
	case s != nil:
		return s
	case m.hasChampion(model):
		return m.slot(model)
	}
	return &Slot{models: m, name: strings.Clone(model), loose: true}
}

func (m *Models) hasChampion(model string) bool {
	c, ok := m.table.Champion(model)
	return ok && c.Version > 0
}

// Known reports whether a model has a champion. A caller with untrusted names checks
// this first, because a slot is kept for ever.
func (m *Models) Known(model string) bool {
	_, ok := m.table.Champion(model)
	return ok
}

// slot makes a slot. It registers the slot before it reads the table. So a concurrent
// change is either reported to the slot by Changed or seen in the table.
func (m *Models) slot(model string) *Slot {
	model = strings.Clone(model) // the caller's string may point into an event
	m.lock.Lock()
	s := m.slots[model]
	if s == nil {
		s = &Slot{models: m, name: model}
		m.slots[model] = s
	}
	m.lock.Unlock()
	s.readChampion()
	return s
}

func (m *Models) all() []*Slot {
	m.lock.RLock()
	defer m.lock.RUnlock()
	all := make([]*Slot, 0, len(m.slots))
	for _, s := range m.slots {
		all = append(all, s)
	}
	return all
}

// Changed loads a champion that replaces one in memory. champions.Options.Changed calls
// it, and it does not wait. The call only means that something is new. The slot reads
// the champion from the table, which is never older.
func (m *Models) Changed(model string, _ champions.Champion) {
	m.lock.RLock()
	s := m.slots[model]
	m.lock.RUnlock()
	if s != nil {
		s.readChampion()
	}
}

// Settle makes sure that no version older than the table's champion answers from now
// on. A scorer that takes over a partition calls it once the table has caught up with
// the previous owner. That owner may already have answered with the champion, while
// this process is still loading it and answers with the older version.
func (m *Models) Settle() {
	for _, s := range m.all() {
		s.stopOlder()
	}
}

// At loads a given version of a model, champion or not. The caller releases it.
func (m *Models) At(ctx context.Context, model string, version int) (*infer.Model, error) {
	artifact, err := m.table.Artifact(ctx, model, version)
	if err != nil {
		return nil, fmt.Errorf("find version %d of model %s: %w", version, model, err)
	}
	r := &infer.Ref{Model: model, Version: version, Artifact: artifact, Engine: m.engine}
	if use := m.cache.Use(r); use != nil {
		return use, nil
	}
	return m.cache.Load(ctx, r)
}

// Each calls fn with every model that has a champion, in no order. The version answers, or would answer
// after it has been loaded.
func (m *Models) Each(fn func(model string, version int, loaded bool)) {
	m.table.Each(func(model string, now champions.Champion) {
		m.lock.RLock()
		s := m.slots[model]
		m.lock.RUnlock()
		if s != nil {
			if version := s.inMemory(); version != 0 {
				fn(model, version, true)
				return
			}
		}
		fn(model, now.Version, false)
	})
}

// Unload takes a model out of memory. The next request loads it again.
func (m *Models) Unload(model string) {
	m.lock.RLock()
	s := m.slots[model]
	m.lock.RUnlock()
	if s != nil {
		s.unload()
	}
}

// runInBackground starts a function in the background, unless Close has been called.
func (m *Models) runInBackground(f func()) {
	m.begin.Lock()
	defer m.begin.Unlock()
	if !m.closed {
		m.running.Go(f)
	}
}

// failure is a failed load.
type failure struct {
	model string
	err   error
	at    time.Time
}

// Failure returns the last failed load, and its time; nil if there is none, or if the model was
// loaded since.
func (m *Models) Failure() (at time.Time, err error) {
	if f := m.failed.Load(); f != nil {
		return f.at, f.err
	}
	return time.Time{}, nil
}

// sayEvery limits the log lines while the store is unreachable.
const sayEvery = 10 * time.Second

func (m *Models) sayFailed(s *Slot, version int, after time.Duration, err error) {
	now, last := m.noteFailure(s.name, err).UnixNano(), m.said.Load()
	if now-last > int64(sayEvery) && m.said.CompareAndSwap(last, now) {
		m.log.Warn("models: loading a model failed; retrying", "model", s.name, "version", version, "after", after, "reason", err)
	}
}

// noteFailure notes a failed load, and returns its time.
func (m *Models) noteFailure(model string, err error) time.Time {
	f := &failure{model, err, time.Now()}
	m.failed.Store(f)
	return f.at
}

// forgetFailure forgets a failed load of a model that is loaded now.
func (m *Models) forgetFailure(model string) {
	if f := m.failed.Load(); f != nil && f.model == model {
		m.failed.CompareAndSwap(f, nil)
	}
}
