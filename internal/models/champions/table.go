package champions

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
)

// Champion is the version that a model serves.
type Champion struct {
	Version  int // 0 if there is none
	Previous int // previous champion
	Turn     int64
	Artifact string // tree; empty if it must be looked up (Table.Artifact)
	Key      string
	Unserved bool // whether a scorer has reported that it cannot serve the champion
}

// ErrNoVersion reports that a model has no such version.
var ErrNoVersion = errors.New("it is not kept, or was never registered")

// Options configure a Table.
type Options struct {
	Broker *broker.Broker
	Ledger *ledger.Ledger // source of the first table, and of artifacts
	Logger *slog.Logger
	// Changed is called for each model whose champion has changed since Open, after the change. The
	// goroutine that follows the facts calls it, so it must not wait. Open may call it before it
	// returns.
	Changed func(model string, now Champion)
}

// Table holds the champion of each model. It is safe for concurrent use.
//
// The goroutine of run reads the facts and owns the states of the cells. This goroutine replaces a
// champion at once, so other goroutines never read half of a change. progress is the position of
// this goroutine.
type Table struct {
	o          Options
	cells      *cells
	progress   progress
	consumer   *broker.Consumer // consumer of run
	partitions atomic.Int32     // number of partitions of the facts when they were last opened; 0 before
	filling    string           // filling of Redis after which the log was compared with last; only run uses both
	last       ledger.LastFacts // last facts of the table

	stop    context.CancelFunc
	running sync.WaitGroup
}

// Open reads the table together with its position in the facts, and follows the facts from there.
// It returns when it has read the facts that exist. It waits while the ledger does not have all
// facts. The caller must close the Table.
func Open(ctx context.Context, o Options) (*Table, error) {
	if o.Broker == nil || o.Ledger == nil {
		return nil, errors.New("open the table of champions: it needs a broker and a ledger")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Changed == nil {
		o.Changed = func(string, Champion) {}
	}
	t := &Table{o: o, cells: newCells(), last: ledger.LastFacts{}}
	t.progress.changed = make(chan struct{})
	if err := t.begin(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("read the champions of all models: %w", err), t.leave(ctx))
	}
	life, stop := context.WithCancel(context.Background())
	t.stop = stop
	t.running.Go(func() { t.run(life) })
	return t, nil
}

// Close stops following the facts.
func (t *Table) Close(ctx context.Context) error {
	t.stop()
	t.running.Wait()
	t.progress.fail(ledger.ErrClosed)
	return t.leave(ctx)
}

// leave closes the consumer.
func (t *Table) leave(ctx context.Context) error {
	if t.consumer == nil {
		return nil
	}
	return t.consumer.Close(ctx)
}

// Canary is a version that answers a share of the events beside the champion.
type Canary struct {
	Version int
	Share   float64
	By      string    // as in [tidemill.Canary]
	Known   time.Time // time at which the table learned of it

	artifact string // empty if it is not known here
	unserved bool   // whether a scorer has reported that it cannot serve it
}

// Canary returns the canary of a model; nil if it has none. The caller must not change it.
func (t *Table) Canary(model string) *Canary {
	if c := t.cells.find(model); c != nil {
		return c.canary.Load()
	}
	return nil
}

// Takes reports whether the canary of a model answers an event, given the value that decides.
func (c *Canary) Takes(model string, value []string) bool {
	return tidemill.CanaryTakes(model, c.Version, value, c.Share)
}

// canarySuffix marks the name under which [Table.Champion] returns the canary of a model. No model has such a name,
// because names have no spaces.
const canarySuffix = " canary"

// CanaryName returns the name under which [Table.Champion] returns the canary of a model: whatever serves champions
// serves canaries, too.
func CanaryName(model string) string { return model + canarySuffix }

// CutCanary returns the model of such a name.
func CutCanary(name string) (model string, is bool) { return strings.CutSuffix(name, canarySuffix) }

// canaryOf returns the canary of a model as a champion.
func (t *Table) canaryOf(model string) (Champion, bool) {
	cell := t.cells.find(model)
	if cell == nil {
		return Champion{}, false
	}
	now, canary := cell.now.Load(), cell.canary.Load()
	if now == nil || canary == nil {
		return Champion{}, false
	}
	return Champion{Version: canary.Version, Turn: now.Turn, Artifact: canary.artifact, Key: now.Key, Unserved: canary.unserved}, true
}

// Champion returns the champion of a model; false if the model has none.
func (t *Table) Champion(model string) (Champion, bool) {
	if of, is := CutCanary(model); is {
		return t.canaryOf(of)
	}
	c := t.cells.find(model)
	if c == nil {
		return Champion{}, false
	}
	now := c.now.Load()
	if now == nil {
		return Champion{}, false
	}
	return *now, true
}

// Artifact returns the artifact of a version. If the table does not know it, Artifact asks the
// ledger, and waits while the ledger does not have all facts.
func (t *Table) Artifact(ctx context.Context, model string, version int) (string, error) {
	model, _ = CutCanary(model)
	if now, ok := t.Champion(model); ok && now.Version == version && now.Artifact != "" {
		return now.Artifact, nil
	}
	var of *lookups
	if c := t.cells.find(model); c != nil {
		of = c.lookups.Load()
	}
	if artifact := of.artifact(version); artifact != "" {
		return artifact, nil
	}
	for {
		artifact, next, err := t.lookUp(ctx, model, version)
		if errors.Is(err, ledger.ErrCatchingUp) {
			if err = t.o.Ledger.CaughtUp(ctx); err == nil {
				continue
			}
		}
		if err != nil {
			return "", fmt.Errorf("find the files of %s: %w", tidemill.VersionName(model, version), err)
		}
		if of != nil && next == of.next {
			of.add(files{version, artifact})
		}
		return artifact, nil
	}
}

// lookUp asks the ledger for the artifact of a version. It also returns the offset after the last fact
// about the model that the ledger has folded.
func (t *Table) lookUp(ctx context.Context, model string, version int) (artifact string, next int64, err error) {
	m, err := t.o.Ledger.Model(ctx, model)
	if err != nil {
		return "", 0, err
	}
	h := m.Find(version)
	if h == nil {
		return "", 0, ErrNoVersion
	}
	all, err := t.o.Ledger.VersionsOf(ctx, []ledger.HeldBy{{Model: model, Held: *h}})
	switch {
	case err != nil:
		return "", 0, err
	case len(all) == 0:
		return "", 0, ErrNoVersion
	}
	return all[0].Artifact, m.Next, nil
}

// lookups holds the artifacts of a model that the ledger has answered. The next fact about the model
// replaces it, because the fact may drop a version, or number other files as it. An answer counts only if the
// ledger had folded the same facts as the table.
type lookups struct {
	next int64 // offset after the last fact about the model
	all  atomic.Pointer[[]files]
}

// mostLookups is the number of versions of a model that are remembered.
const mostLookups = 64

func (l *lookups) artifact(version int) string {
	if l == nil {
		return ""
	}
	all := l.all.Load()
	if all == nil {
		return ""
	}
	for _, f := range *all {
		if f.version == version {
			return f.artifact
		}
	}
	return ""
}

// add remembers an answer. Of two concurrent ones, one may be lost; it is then looked up again.
func (l *lookups) add(f files) {
	all := []files{f}
	if before := l.all.Load(); before != nil {
		all = append(all, (*before)[:min(len(*before), mostLookups-1)]...)
	}
	l.all.Store(&all)
}

// Each calls fn with the champion of every model that has one.
func (t *Table) Each(fn func(model string, now Champion)) {
	t.cells.forEach(func(name string, of *cell) {
		if now := of.now.Load(); now != nil {
			fn(name, *now)
		}
	})
}

// Err returns why the table may be out of date now; nil if it follows the facts. The table's
// content is still right for the table's Places.
func (t *Table) Err() error { return t.progress.why() }

// shards is so large that each map is small. A map is copied for every new name, so that readers
// need no lock.
const shards = 256

// cells holds the models by name. One goroutine changes it, and all goroutines read it.
type cells struct {
	seed   maphash.Seed
	shards [shards]atomic.Pointer[map[string]*cell]
}

// cell is one model.
type cell struct {
	now     atomic.Pointer[Champion] // nil if there is none
	canary  atomic.Pointer[Canary]   // nil if there is none
	lookups atomic.Pointer[lookups]  // nil before the first fact
	state   state                    // state for the goroutine that changes it
}

func newCells() *cells { return &cells{seed: maphash.MakeSeed()} }

func (c *cells) shard(name string) *atomic.Pointer[map[string]*cell] {
	return &c.shards[maphash.String(c.seed, name)%shards]
}

// find returns a model's cell; nil if no fact has named the model.
func (c *cells) find(name string) *cell {
	if all := c.shard(name).Load(); all != nil {
		return (*all)[name]
	}
	return nil
}

// findOrCreate returns a model's cell, and creates it if it does not exist.
func (c *cells) findOrCreate(name string) *cell {
	if found := c.find(name); found != nil {
		return found
	}
	shard := c.shard(name)
	grown := map[string]*cell{}
	if all := shard.Load(); all != nil {
		grown = maps.Clone(*all)
	}
	made := &cell{}
	grown[name] = made
	shard.Store(&grown)
	return made
}

// add creates many cells at once.
func (c *cells) add(all map[string]state) {
	var fresh [shards]map[string]*cell
	for name := range all {
		if c.find(name) != nil {
			continue
		}
		i := maphash.String(c.seed, name) % shards
		if fresh[i] == nil {
			fresh[i] = map[string]*cell{}
			if old := c.shards[i].Load(); old != nil {
				fresh[i] = maps.Clone(*old)
			}
		}
		fresh[i][name] = &cell{}
	}
	for i := range fresh {
		if fresh[i] != nil {
			c.shards[i].Store(&fresh[i])
		}
	}
}

// forEach calls fn with every cell.
func (c *cells) forEach(fn func(name string, of *cell)) {
	for i := range c.shards {
		if all := c.shards[i].Load(); all != nil {
			for name, of := range *all {
				fn(name, of)
			}
		}
	}
}

// showCanary publishes the canary to all readers, after a fact. It reports whether the version has changed.
func (c *cell) showCanary(m *fold.Model) (now Champion, changed bool) {
	var is *Canary
	if m.Canary != nil && m.Champion != 0 {
		is = &Canary{Version: m.Canary.Version, Share: m.Canary.Share, By: m.Canary.By, Known: time.Now(), artifact: c.state.artifact(m.Canary.Version),
			unserved: m.Canary.Unserved != nil}
		now = Champion{Version: is.Version, Turn: m.Turn, Artifact: is.artifact, Key: m.Key, Unserved: is.unserved}
	}
	before := c.canary.Load()
	if is != nil && before != nil && before.Version == is.Version {
		is.Known = before.Known
	}
	c.canary.Store(is) // one goroutine calls this
	return now, (before == nil) != (is == nil) || is != nil && before.Version != is.Version
}

// show publishes the champion to all readers, after a fact. It reports whether the version has changed.
func (c *cell) show(m *fold.Model) (now Champion, changed bool) {
	var before Champion
	if old := c.now.Load(); old != nil {
		before = *old
	}
	c.lookups.Store(&lookups{next: m.Next})
	if m.Champion != 0 {
		now = Champion{Version: m.Champion, Previous: m.Previous, Turn: m.Turn, Artifact: c.state.artifact(m.Champion), Key: m.Key, Unserved: m.Unserved != nil}
	}
	switch {
	case now == before:
	case now.Version == 0:
		c.now.Store(nil)
	default:
		c.now.Store(&now)
	}
	return now, now.Version != before.Version
}
