package trials

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
)

// remembered is how long an ended trial counts for the budget of its recipe.
const remembered = 30 * 24 * time.Hour

// entry is a model that has a trial, or has had one.
type entry struct {
	model  *fold.Model
	onTest *ledger.VersionRecord // version on trial; nil if there is none
}

// table has all models with trials. It follows the facts, and reads the models that they name from the
// ledger again.
type table struct {
	ledger   *ledger.Ledger
	follower *follow.Follower
	models   map[string]*entry

	mu      sync.Mutex
	dirty   map[string]bool
	next    map[int32]int64 // next offsets of the facts that were taken, by partition
	changed chan struct{}   // has a value after a new fact
}

func openTable(ctx context.Context, b *broker.Broker, l *ledger.Ledger, logger *slog.Logger) (*table, error) {
	t := &table{ledger: l, models: map[string]*entry{}, dirty: map[string]bool{}, next: map[int32]int64{}, changed: make(chan struct{}, 1)}
	var err error
	t.follower, err = follow.Open(ctx, b, follow.Options{Stream: tidemill.StreamFacts, Logger: logger, Latest: true, Take: t.take})
	if err != nil {
		return nil, err
	}
	_, _, err = l.EachModel(ctx, func(m *fold.Model) {
		if m.OnTrial() != nil || len(m.Trials) > 0 {
			t.mark(m.Name)
		}
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("find the models on trial: %w", err), t.close(ctx))
	}
	return t, nil
}

// take marks the models that facts may have changed.
func (t *table) take(d *broker.Delivery) {
	for i := range d.Events {
		e := &d.Events[i]
		if e.Err != nil || !strings.HasPrefix(e.Type, "tidemill.model.") && e.Type != tidemill.TypeTrialBegun {
			continue
		}
		if model, ok := e.Attribute(tidemill.AttrModel); ok {
			t.mark(strings.Clone(model))
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next[d.Partition] = d.Next()
}

func (t *table) mark(model string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dirty[model] = true
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

func (t *table) markAll(models []string) {
	for _, name := range models {
		t.mark(name)
	}
}

// refresh reads the models that have changed, and returns their names.
func (t *table) refresh(ctx context.Context) ([]string, error) {
	t.mu.Lock()
	names := make([]string, 0, len(t.dirty))
	for name := range t.dirty {
		names = append(names, name)
	}
	clear(t.dirty)
	next := maps.Clone(t.next)
	t.mu.Unlock()
	slices.Sort(names)
	for partition, offset := range next { // the ledger folds the facts by itself, perhaps later
		if err := t.ledger.AwaitFolded(ctx, partition, offset); err != nil {
			t.markAll(names)
			return nil, err
		}
	}
	for some := range slices.Chunk(names, 500) {
		if err := t.read(ctx, some); err != nil {
			t.markAll(names)
			return nil, err
		}
	}
	return names, nil
}

func (t *table) read(ctx context.Context, names []string) error {
	models, err := t.ledger.ModelsOf(ctx, names)
	if err != nil {
		return err
	}
	var held []ledger.HeldBy
	for _, m := range models {
		if h := m.OnTrial(); h != nil {
			held = append(held, ledger.HeldBy{Model: m.Name, Held: *h})
		}
	}
	records, err := t.ledger.VersionsOf(ctx, held)
	if err != nil {
		return fmt.Errorf("look up %d versions on trial: %w", len(held), err)
	}
	for _, name := range names {
		m := models[name]
		e := &entry{model: m}
		for i := range records {
			if records[i].Model == name && records[i].Judge.Trial != nil {
				e.onTest = &records[i]
			}
		}
		t.models[name] = e
		if m.OnTrial() == nil && len(m.Trials) == 0 {
			delete(t.models, name)
		}
	}
	return nil
}

// families returns the trials of each recipe that share a budget.
func (t *table) families(now time.Time) map[string]*family {
	all := map[string]*family{}
	of := func(recipe string) *family {
		if all[recipe] == nil {
			all[recipe] = &family{}
		}
		return all[recipe]
	}
	for _, e := range t.models {
		if v := e.onTest; v != nil {
			f := of(v.Recipe)
			f.trials, f.alpha = f.trials+1, v.Judge.Trial.Alpha
		}
		for _, end := range e.model.Trials {
			if now.Sub(end.At) > remembered {
				continue
			}
			f := of(end.Recipe)
			f.trials++
			if end.Level > 0 {
				f.levels = append(f.levels, end.Level)
			}
		}
	}
	return all
}

func (t *table) close(ctx context.Context) error { return t.follower.Close(ctx) }
