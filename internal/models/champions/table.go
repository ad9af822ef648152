package champions

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
)

// Champion is the version that a model serves.
type Champion struct {
	Version  int // 0 is none
	Previous int // the champion before it
	Turn     int64
	Artifact string // tree; empty if it has to be looked up (Table.Artifact)
	Key      string
}

// ErrNoVersion says that a model has no such version.
var ErrNoVersion = errors.New("it is not kept, or was never registered")

// Options say what is followed.
type Options struct {
	Broker *broker.Broker
	Ledger *ledger.Ledger // for the table at the beginning, and for artifacts
	Logger *slog.Logger
	// Changed is told of each model whose champion has changed since Open, by the
	// goroutine that follows, behind the change: it must not wait. It may be called
	// before Open has returned.
	Changed func(model string, now Champion)
}

// Table is which version of each model is the champion. It is safe for concurrent
// use.
//
// Who owns what: the goroutine of run reads the facts and owns the states of the
// cells; what everybody reads of them is put in their place as a whole. progress
// is how far it has come.
type Table struct {
	o          Options
	cells      *cells
	progress   progress
	consumer   *broker.Consumer // of run
	partitions atomic.Int32     // of the facts, when they were opened last; 0 before

	stop    context.CancelFunc
	running sync.WaitGroup
}

// Open reads the table and the place among the facts that it is of in one look,
// and follows the facts from there. It returns when it has read what there was.
// While the ledger does not hold all facts it waits. Close it.
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
	t := &Table{o: o, cells: newCells()}
	t.progress.changed = make(chan struct{})
	if err := t.begin(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("read the champions of all models: %w", err), t.leave(ctx))
	}
	life, stop := context.WithCancel(context.Background())
	t.stop = stop
	t.running.Go(func() { t.run(life) })
	return t, nil
}

// Close ends the following.
func (t *Table) Close(ctx context.Context) error {
	t.stop()
	t.running.Wait()
	t.progress.fail(ledger.ErrClosed)
	return t.leave(ctx)
}

// leave ends the reading.
func (t *Table) leave(ctx context.Context) error {
	if t.consumer == nil {
		return nil
	}
	return t.consumer.Close(ctx)
}

// Champion is that of a model; false if the model has none.
func (t *Table) Champion(model string) (Champion, bool) {
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

// Artifact finds the files of a version. Where the facts that were read do not
// tell, the ledger does, and is waited for while it does not hold all facts.
func (t *Table) Artifact(ctx context.Context, model string, version int) (string, error) {
	if now, ok := t.Champion(model); ok && now.Version == version && now.Artifact != "" {
		return now.Artifact, nil
	}
	for {
		all, err := t.o.Ledger.Versions(ctx, model, version)
		switch {
		case errors.Is(err, ledger.ErrCatchingUp):
			if err = t.o.Ledger.CaughtUp(ctx); err == nil {
				continue
			}
		case err == nil && len(all) == 0:
			err = ErrNoVersion
		}
		if err != nil {
			return "", fmt.Errorf("find the files of %s: %w", tidemill.VersionName(model, version), err)
		}
		return all[0].Artifact, nil
	}
}

// Err is why the table may be older than it should be, as long as it may; nil if
// it comes on. What it tells is right for its Places all the same.
func (t *Table) Err() error { return t.progress.why() }

// shards are as many as keep each map small: it is copied for every new name, so
// that nobody who reads waits.
const shards = 256

// cells are the models by name. One goroutine changes them, and anybody reads.
type cells struct {
	seed   maphash.Seed
	shards [shards]atomic.Pointer[map[string]*cell]
}

// cell is one model.
type cell struct {
	now   atomic.Pointer[Champion] // nil is none
	state state                    // of the goroutine that changes it
}

func newCells() *cells { return &cells{seed: maphash.MakeSeed()} }

func (c *cells) shard(name string) *atomic.Pointer[map[string]*cell] {
	return &c.shards[maphash.String(c.seed, name)%shards]
}

// find is a model's cell; nil if no fact has been about it.
func (c *cells) find(name string) *cell {
	if all := c.shard(name).Load(); all != nil {
		return (*all)[name]
	}
	return nil
}

// of is a model's cell, which is made if need be.
func (c *cells) of(name string) *cell {
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

// add makes many cells at once.
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

// each calls fn with every cell.
func (c *cells) each(fn func(name string, of *cell)) {
	for i := range c.shards {
		if all := c.shards[i].Load(); all != nil {
			for name, of := range *all {
				fn(name, of)
			}
		}
	}
}

// show lets everybody see who is the champion. It tells whether that is another
// version.
func (c *cell) show(m *fold.Model) (now Champion, changed bool) {
	var before Champion
	if old := c.now.Load(); old != nil {
		before = *old
	}
	if m.Champion != 0 {
		now = Champion{Version: m.Champion, Previous: m.Previous, Turn: m.Turn, Artifact: c.state.artifact(m.Champion), Key: m.Key}
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
