package web

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"tidemill.dev"
	"tidemill.dev/internal/access"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/ledger"
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
