package web

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"tidemill.dev"
	"tidemill.dev/broker"
)

const (
	mostFacts = 100      // that asked for a run, of which the events are read
	factBytes = 16 << 10 // of the log that are read at a time

	shownEvents   = 4 << 20   // bytes of events that are shown of a run
	retriedEvents = 512 << 10 // and that a retry takes along: they go into one fact
)

// asking is what asked for a run, as the log tells it.
type asking struct {
	events      []json.RawMessage // oldest first; of many, the newest
	correlation string            // of the newest fact

	most, bytes int
}

// whatAsked reads the facts that asked for a run, the newest of them, as far as
// their events fit.
func (g *Gateway) whatAsked(ctx context.Context, run *tidemill.Run, bytes int) (*asking, error) {
	a := &asking{events: []json.RawMessage{}, most: bytes}
	offsets := run.Asked[max(0, len(run.Asked)-mostFacts):]
	return a, g.factsAt(ctx, run.Partition, offsets, a.take)
}

func (a *asking) take(e *broker.Incoming) error {
	var d tidemill.RunRequested
	if err := json.Unmarshal(e.Data, &d); err != nil {
		return fmt.Errorf("read the fact at offset %d: %w", e.Offset, err)
	}
	if chain, ok := e.Attribute(tidemill.AttrCorrelationID); ok {
		a.correlation = strings.Clone(chain)
	}
	for _, event := range d.Events {
		a.events, a.bytes = append(a.events, event), a.bytes+len(event)
	}
	for len(a.events) > mostFacts || len(a.events) > 1 && a.bytes > a.most {
		a.bytes -= len(a.events[0])
		a.events = a.events[1:]
	}
	return nil
}

func (g *Gateway) planAt(ctx context.Context, partition int32, offset int64) (plan *tidemill.Plan, err error) {
	err = g.factsAt(ctx, partition, []int64{offset}, func(e *broker.Incoming) error {
		var d tidemill.RunStarted
		if err := json.Unmarshal(e.Data, &d); err != nil {
			return fmt.Errorf("read the fact at offset %d: %w", offset, err)
		}
		plan = d.Plan
		return nil
	})
	return plan, err
}

// factsAt hands the facts at some offsets of a partition to take, in order. Kafka
// has a while for each read of them.
func (g *Gateway) factsAt(ctx context.Context, partition int32, offsets []int64, take func(*broker.Incoming) error) error {
	for len(offsets) > 0 {
		var failed error
		from := broker.Position{Stream: tidemill.StreamFacts, Partition: partition, Offset: offsets[0]}
		limited, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
		next, err := g.opt.Broker.Read(limited, from, worthReading(offsets), func(e *broker.Incoming) bool {
			offsets = notBefore(offsets, e.Offset)
			if len(offsets) > 0 && offsets[0] == e.Offset {
				offsets = offsets[1:]
				failed = take(e)
			}
			return len(offsets) > 0 && failed == nil
		})
		cancel()
		if err = cmp.Or(failed, err); err != nil {
			return err
		}
		if offsets = notBefore(offsets, next); next == from.Offset && len(offsets) > 0 {
			return fmt.Errorf("read stream %s, partition %d: there is nothing at offset %d", from.Stream, partition, next)
		}
	}
	return nil
}

// worthReading is how much of the log to read at once. Where more of the facts
// lie near, what lies between is read too; else it is the batch that holds the
// first, for all behind it would be read for nothing.
func worthReading(offsets []int64) int {
	const near = 100
	if len(offsets) > 1 && offsets[1]-offsets[0] < near {
		return factBytes
	}
	return 1
}

// notBefore leaves out what lies before an offset.
func notBefore(offsets []int64, at int64) []int64 {
	for len(offsets) > 0 && offsets[0] < at {
		offsets = offsets[1:]
	}
	return offsets
}
