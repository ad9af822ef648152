package served

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tidemill.dev/internal/champions"
	"tidemill.dev/internal/infer"
)

// Options say what stands behind it.
type Options struct {
	Cache     *infer.Cache
	Champions *champions.Table
	Engine    string
	// Unloadable is told that a version cannot be loaded and which one answers in its
	// place (0 is none), once for each.
	Unloadable func(model string, version, kept int, reason error)
	Logger     *slog.Logger
}

// table is what is known of champions.
type table interface {
	Champion(model string) (champions.Champion, bool)
	Artifact(ctx context.Context, model string, version int) (string, error)
}

var _ table = (*champions.Table)(nil)

// Models are the models that were asked for.
type Models struct {
	cache      *infer.Cache
	table      table
	engine     string
	unloadable func(model string, version, kept int, reason error)
	log        *slog.Logger
	said       atomic.Int64 // when a load that failed was logged last, in nanoseconds
	failed     atomic.Pointer[failure]
	ready      chan struct{} // closed: for those who need not wait

	lock  sync.RWMutex
	slots map[string]*Slot

	begin   sync.Mutex // held to begin a load, and to end
	closed  bool
	running sync.WaitGroup
	ctx     context.Context // of the loads
	cancel  context.CancelFunc
}

// Open makes it. Close it before the cache.
func Open(o Options) (*Models, error) {
	if o.Cache == nil || o.Champions == nil {
		return nil, errors.New("open the models that are served: it needs a cache and a table of champions")
	}
	return open(o, o.Champions), nil
}

func open(o Options, t table) *Models {
	m := &Models{cache: o.Cache, table: t, engine: o.Engine, unloadable: o.Unloadable, log: o.Logger,
		ready: make(chan struct{}), slots: map[string]*Slot{}}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	if m.unloadable == nil {
		m.unloadable = func(string, int, int, error) {}
	}
	close(m.ready)
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m
}

// Close ends what loads. Whoever waits for a model waits no more, and finds it
// loading.
func (m *Models) Close() error {
	m.begin.Lock()
	m.closed = true
	m.begin.Unlock()
	m.cancel()
	m.running.Wait()
	for _, s := range m.all() {
		s.end()
	}
	return nil
}

// Slot is a model's. It costs little, and is the same for everybody who asks. One
// without a champion is not remembered: names may come from anybody.
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

// Known tells whether a model has a champion. Who is asked for models by anybody
// looks here first: a slot stays.
func (m *Models) Known(model string) bool {
	_, ok := m.table.Champion(model)
	return ok
}

// slot makes a slot. It is found by Changed before it looks at the table, so that
// a change is either told to it or seen by it.
func (m *Models) slot(model string) *Slot {
	model = strings.Clone(model) // it may be part of an event
	m.lock.Lock()
	s := m.slots[model]
	if s == nil {
		s = &Slot{models: m, name: model}
		m.slots[model] = s
	}
	m.lock.Unlock()
	s.look()
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

// Changed has a champion loaded that takes the place of one in memory. It is what
// champions.Options.Changed calls, and does not wait. What it is told is only that
// there is something new: the table says what, which is never older.
func (m *Models) Changed(model string, _ champions.Champion) {
	m.lock.RLock()
	s := m.slots[model]
	m.lock.RUnlock()
	if s != nil {
		s.look()
	}
}

// Settle has no version answer from now on that is older than the champion which
// the table has now. Whoever takes a partition over calls it when the table has
// reached the place that its owner before had: that one may have been answered by
// the champion already, while the older version still answers here because the
// champion is being loaded.
func (m *Models) Settle() {
	for _, s := range m.all() {
		s.settle()
	}
}

// At loads a version of a model, whatever the champion. Release it.
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

// run runs something in the background, unless all is being closed.
func (m *Models) run(f func()) {
	m.begin.Lock()
	defer m.begin.Unlock()
	if !m.closed {
		m.running.Go(f)
	}
}

// failure is a load that failed and is tried again.
type failure struct {
	err error
	at  time.Time
}

// Failure is the last load that failed and is tried again, and when that was; nil
// if none has. Those of versions that are unfit are told by Unloadable.
func (m *Models) Failure() (at time.Time, err error) {
	if f := m.failed.Load(); f != nil {
		return f.at, f.err
	}
	return time.Time{}, nil
}

// sayEvery keeps a store that is away from filling the log with its models.
const sayEvery = 10 * time.Second

func (m *Models) sayFailed(s *Slot, version int, after time.Duration, err error) {
	f := &failure{err, time.Now()}
	m.failed.Store(f)
	now, last := f.at.UnixNano(), m.said.Load()
	if now-last > int64(sayEvery) && m.said.CompareAndSwap(last, now) {
		m.log.Warn("a model cannot be loaded now, and perhaps others; it is tried again", "model", s.name, "version", version, "after", after, "reason", err)
	}
}
