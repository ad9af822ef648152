package lineage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// shownAsked is how many of the facts that asked for a run are read, the newest.
const shownAsked = 5

// errGone says that a fact is not where it lay.
var errGone = errors.New("the fact is no longer on the log")

// factAt reads the data of one fact, a request to Kafka.
func (s *Sources) factAt(ctx context.Context, partition int32, offset int64, to any) error {
	from := broker.Position{Stream: tidemill.StreamFacts, Partition: partition, Offset: offset}
	failed := errGone
	_, err := s.Broker.Read(ctx, from, 1, func(e *broker.Incoming) bool {
		if e.Offset < offset {
			return true // the batch that holds it may begin before it
		}
		if e.Offset == offset {
			failed = json.Unmarshal(e.Data, to)
		}
		return false
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return fmt.Errorf("read the fact at offset %d of partition %d: %w", offset, partition, err)
	}
	return nil
}

// planOf is what a run is or was to do: nil before it has begun, and where the
// fact that says so is gone.
func (s *Sources) planOf(ctx context.Context, r *tidemill.Run) (plan *tidemill.Plan, gone bool, err error) {
	switch {
	case r.Plan != nil:
		plan = &tidemill.Plan{}
		return plan, false, json.Unmarshal(r.Plan, plan)
	case len(r.Attempts) == 0:
		return nil, false, nil
	}
	var d tidemill.RunStarted
	err = s.factAt(ctx, r.Partition, r.Attempts[0].Offset, &d)
	if errors.Is(err, errGone) {
		return nil, true, nil
	}
	return d.Plan, false, err
}

// askedFor reads the events that asked for a run, the newest first and the first
// last, as far as they are shown.
func (s *Sources) askedFor(ctx context.Context, r *tidemill.Run) (all []*thing, err error) {
	newest := max(0, len(r.Asked)-shownAsked)
	for _, offset := range slices.Backward(append(r.Asked[:min(newest, 1):min(newest, 1)], r.Asked[newest:]...)) {
		var d tidemill.RunRequested
		err := s.factAt(ctx, r.Partition, offset, &d)
		if errors.Is(err, errGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, eventsOf(&d)...)
	}
	return all, nil
}

// eventsOf are the newest events of a fact that asked for a run. What cannot be
// read is left to its name.
func eventsOf(d *tidemill.RunRequested) (all []*thing) {
	for _, text := range slices.Backward(d.Events[max(0, len(d.Events)-shownAsked):]) {
		var v broker.View
		if broker.UnmarshalStructured(text, &v) == nil {
			all = append(all, ofEvent(&v))
		}
	}
	return all
}
