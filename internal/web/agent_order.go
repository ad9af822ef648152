package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"tidemill.dev"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/store"
)

// beatSeconds is how often an agent is to say that it is there: five times
// within the silence after which it is taken for lost.
const beatSeconds = 2

// agentOrder tells an agent what to do.
func (g *Gateway) agentOrder(w http.ResponseWriter, r *request) *api.Problem {
	run, number := r.attempt.run, r.attempt.number
	o := api.Order{Run: run.ID, Recipe: run.Recipe, Key: run.Key, Attempt: number,
		Causes: run.Causes, Event: run.Event, BeatSeconds: beatSeconds}
	if p := g.orderedPlan(r, &o.Plan); p != nil {
		return p
	}
	var p *api.Problem
	if o.Checkpoint, p = g.checkpointFor(r.Context(), run.ID, number); p != nil {
		return p
	}
	if o.Champion, p = g.championFor(r.Context(), run.ID, o.Plan.Champion); p != nil {
		return p
	}
	g.hasBegun(r)
	writeJSON(w, http.StatusOK, o)
	return nil
}

// championFor is what an attempt measures beside its own. It is the one that the
// run began with: all of its attempts see the same.
func (g *Gateway) championFor(ctx context.Context, run string, c *tidemill.Champion) (*api.TreeRef, *api.Problem) {
	if c == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	t, err := g.opt.Store.TreeRef(ctx, c.Artifact)
	switch {
	case errors.Is(err, store.ErrNotFound): // it does without, as a run does that begins now
		g.log.Warn("the champion's files are lost, and an attempt is given none to measure", "run", run, "version", c.Version, "reason", err)
		return nil, nil
	case err != nil:
		return nil, g.storeFault(fmt.Sprintf("look up version %d, which the run is given to measure", c.Version), err)
	}
	return &t, nil
}

// orderedPlan is what the run does.
func (g *Gateway) orderedPlan(r *request, to *tidemill.Plan) *api.Problem {
	if err := json.Unmarshal(r.attempt.run.Plan, to); err != nil {
		g.log.Error("the plan of a run cannot be read", "run", r.attempt.run.ID, "reason", err)
		return internalFault()
	}
	return nil
}

// checkpointFor is what an attempt goes on from. A first attempt has nothing to
// go on from, and most runs have no other: the store is not asked.
func (g *Gateway) checkpointFor(ctx context.Context, run string, number int) (*api.TreeRef, *api.Problem) {
	if number == 1 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	t, err := g.opt.Store.Checkpoint(ctx, run)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, g.storeFault("read the checkpoint of run "+run, err)
	}
	return &t, nil
}
