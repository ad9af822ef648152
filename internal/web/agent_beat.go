package web

import (
	"context"
	"net/http"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/api"
)

// agentBeat notes that an agent is there, and tells it whether it is to end. Of
// several that work on an attempt the first worker is the attempt: that others
// are there does not keep it from being lost.
func (g *Gateway) agentBeat(w http.ResponseWriter, r *request) *api.Problem {
	hangUp(w, r) // a body has nothing to say here
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	one, p := g.oneOf(r)
	if p != nil {
		return p
	}
	if one.isFirst() {
		if err := g.opt.Ledger.Beat(ctx, r.attempt.run.ID, r.attempt.number, time.Now()); err != nil {
			return g.unled(ctx, err)
		}
	}
	b := api.Beat{Cancel: whyCancelled(r.attempt.run)}
	if p := g.gather(ctx, r, &one, &b); p != nil {
		return p
	}
	writeJSON(w, http.StatusOK, b)
	return nil
}

// whyCancelled is why a run is to end; empty if it is not. Who asked need not
// have said why.
func whyCancelled(run *tidemill.Run) string {
	switch c := run.Cancel; {
	case c == nil:
		return ""
	case c.Reason != "":
		return c.Reason
	case c.By != "":
		return c.By + " has asked for it"
	}
	return "somebody has asked for it"
}
