package champions

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
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
