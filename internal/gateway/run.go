package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/gateway/access"
)

// shortestID is how much of a run's id has to be given.
const shortestID = 6

// showRun answers with all that is known of one run.
func (g *Gateway) showRun(w http.ResponseWriter, r *request) *api.Problem {
	if p := g.runsThere(); p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	run, p := g.findRun(ctx, r, access.Read, r.value)
	if p != nil {
		return p
	}
	shown, p := g.showRuns(ctx, []tidemill.Run{*run})
	if p != nil {
		return p
	}
	whole := api.RunWhole{RunShown: shown[0]}
	if err := g.recall(ctx, run, &whole); err != nil {
		return g.unseen(r.Context(), err)
	}
	writeJSON(w, http.StatusOK, whole)
	return nil
}

// findRun finds a run by its id, or the beginning of it. One that the caller may
// not touch is as unknown as one that there is not.
func (g *Gateway) findRun(ctx context.Context, r *request, role access.Role, id string) (*tidemill.Run, *api.Problem) {
	if len(id) < shortestID {
		return nil, badParameter("run", "give the id of a run, or six letters or more of its beginning")
	}
	run, err := g.opt.Ledger.Find(ctx, id)
	switch {
	case errors.Is(err, ledger.ErrUnknown):
		return nil, unknownRun(id)
	case errors.Is(err, ledger.ErrAmbiguous):
		return nil, badParameter("run", err.Error())
	case err != nil:
		return nil, g.unled(r.Context(), err)
	case !r.caller.MayTouch(role, run.Key) && !r.caller.AllKeys(role):
		return nil, unknownRun(id)
	}
	return run, nil
}

// recall reads from the log what the ledger does not keep: what asked for the
// run and, once it has ended, what it was to do.
func (g *Gateway) recall(ctx context.Context, run *tidemill.Run, whole *api.RunWhole) (err error) {
	asked, err := g.whatAsked(ctx, run, shownEvents)
	if err != nil {
		return err
	}
	whole.Events = asked.events
	whole.Plan, err = g.planOf(ctx, run)
	return err
}

// planOf is what a run does; nil before it has begun.
func (g *Gateway) planOf(ctx context.Context, run *tidemill.Run) (*tidemill.Plan, error) {
	switch {
	case run.Plan != nil:
		var plan tidemill.Plan
		return &plan, json.Unmarshal(run.Plan, &plan)
	case len(run.Attempts) == 0:
		return nil, nil
	}
	return g.planAt(ctx, run.Partition, run.Attempts[0].Offset)
}

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
