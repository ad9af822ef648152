package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/ledger"
)

const (
	mostAsking  = 100       // facts that asked for a run, of which the events are read again
	askingBytes = 512 << 10 // and that go into one fact
)

// Again asks for a run anew, with the events that had asked for it: what it made
// has come to nothing through no fault of its own. The cause names the wish. There
// is nobody to ask for where the run is not known any more, as ten newer ones have
// ended since, or where its recipe has gone.
func (f *Foreman) Again(ctx context.Context, id string, c tidemill.Cause, correlation, trace string) error {
	run, err := f.ledger.Run(ctx, id)
	if errors.Is(err, ledger.ErrUnknown) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("ask for run %s again: %w", id, err)
	}
	events, err := f.whatAsked(ctx, run)
	if err != nil {
		return fmt.Errorf("ask for run %s again: %w", id, err)
	}
	_, err = f.Request(ctx, Request{Recipe: run.Recipe, Key: run.Key, Cause: c, Events: events, Priority: run.Priority,
		Again: run.ID, Correlation: correlation, Trace: trace})
	if errors.Is(err, ErrNoRecipe) {
		f.log.Info("a run is not asked for again, for its recipe has gone", "recipe", run.Recipe, "key", run.Key, "run", run.ID)
		return nil
	}
	return err
}

// whatAsked are the events that asked for a run, oldest first; of many, the
// newest.
func (f *Foreman) whatAsked(ctx context.Context, run *tidemill.Run) (events []json.RawMessage, err error) {
	bytes := 0
	for _, offset := range slices.Backward(run.Asked[max(0, len(run.Asked)-mostAsking):]) {
		d, err := f.requestAt(ctx, run.Partition, offset)
		if err != nil {
			return nil, err
		}
		for _, e := range slices.Backward(d.Events) {
			if bytes += len(e); bytes > askingBytes && len(events) > 0 {
				slices.Reverse(events)
				return events, nil
			}
			events = append(events, e)
		}
	}
	slices.Reverse(events)
	return events, nil
}

func (f *Foreman) requestAt(ctx context.Context, partition int32, offset int64) (d tidemill.RunRequested, err error) {
	from := broker.Position{Stream: tidemill.StreamFacts, Partition: partition, Offset: offset}
	found := fmt.Errorf("read stream %s, partition %d: there is nothing at offset %d", from.Stream, partition, offset)
	_, err = f.opt.Broker.Read(ctx, from, 1, func(e *broker.Incoming) bool {
		if e.Offset == offset {
			found = json.Unmarshal(e.Data, &d)
		}
		return e.Offset < offset
	})
	return d, errors.Join(err, found)
}
