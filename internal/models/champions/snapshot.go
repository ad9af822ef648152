package champions

import (
	"context"
	"errors"
	"fmt"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/retry"
	"tidemill.dev/internal/data/ledger"
)

// snapshot puts in the table what the ledger has. Of what the table has already it
// takes the newer: both are what the facts before some place make of a model, and
// Redis may be behind. If the facts were begun anew everything is the ledger's.
func (t *Table) snapshot(ctx context.Context, anew bool) error {
	all, places, err := t.read(ctx)
	if err != nil {
		return err
	}
	if anew {
		t.progress.restart()
		t.cells.each(func(name string, _ *cell) {
			if _, still := all[name]; !still {
				all[name] = state{}
			}
		})
	}
	for _, p := range places {
		t.progress.tell(p.Partition, p.Offset)
	}
	t.cells.add(all)
	var changes []change
	for name, s := range all {
		c := t.cells.find(name)
		if !anew && s.next <= c.state.next {
			continue
		}
		c.state = s
		if now, changed := c.show(s.model(name)); changed || anew { // the same number is another version then
			changes = append(changes, change{name, now})
		}
	}
	for _, p := range places {
		t.progress.reach(p.Partition, p.Offset)
	}
	t.announce(changes)
	return nil
}

// model is the state unpacked.
func (s *state) model(name string) *tidemill.Model {
	if s.packed == nil {
		return &tidemill.Model{Name: name}
	}
	return unpack(name, s.packed)
}

// read reads the ledger as soon as it holds all facts, and as often as it takes
// until it forgets none meanwhile.
func (t *Table) read(ctx context.Context) (map[string]state, []broker.Position, error) {
	for {
		if err := t.o.Ledger.CaughtUp(ctx); err != nil {
			return nil, nil, err
		}
		all := map[string]state{}
		places, err := t.o.Ledger.EachModel(ctx, func(m *tidemill.Model) { all[m.Name] = state{packed: pack(m), next: m.Next} })
		if err == nil {
			err = t.onLog(ctx, places)
		}
		switch {
		case err == nil:
			return all, places, nil
		case errors.Is(err, errLost): // which the ledger will notice
			if err := t.pause(ctx); err != nil {
				return nil, nil, err
			}
		case !errors.Is(err, ledger.ErrCatchingUp):
			return nil, nil, err
		}
	}
}

// pause waits a while, and says what for.
func (t *Table) pause(ctx context.Context) error {
	t.progress.fail(fmt.Errorf("the ledger has facts that stream %s has not; it has to fill in what the stream has now", tidemill.StreamFacts))
	return retry.Sleep(ctx, firstPause)
}

// onLog is an error if the log ends before some places. It is asked behind them, so
// that what comes meanwhile does not make it one.
func (t *Table) onLog(ctx context.Context, places []broker.Position) error {
	ends, err := t.o.Broker.Ends(ctx, tidemill.StreamFacts)
	if err != nil {
		return err
	}
	at := map[int32]int64{}
	for _, end := range ends {
		at[end.Partition] = end.Offset
	}
	for _, p := range places {
		if p.Offset > at[p.Partition] {
			return back(p.Partition, at[p.Partition], p.Offset)
		}
	}
	return nil
}
