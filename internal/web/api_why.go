package web

import (
	"context"
	"errors"
	"net/http"

	"tidemill.dev/internal/access"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/ledger"
	"tidemill.dev/internal/store"
	"tidemill.dev/internal/why"
)

// showWhy answers with what a thing came from and what came of it.
func (g *Gateway) showWhy(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.query([]string{"of"})
	if p != nil {
		return p
	}
	of := values.Get("of")
	if of == "" {
		return badParameter("of", "name a thing: run/ID, model/NAME or model/NAME@VERSION, commit/DATASET@COMMIT, or event/ID")
	}
	if p := g.runsThere(); p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	graph, err := why.Of(ctx, g.whySources(r.caller), of)
	if err != nil {
		return g.untold(r.Context(), err)
	}
	writeJSON(w, http.StatusOK, graph)
	return nil
}

func (g *Gateway) whySources(caller *access.Caller) why.Sources {
	all := caller.AllKeys(access.Read)
	return why.Sources{Ledger: g.opt.Ledger, Broker: g.opt.Broker, Store: g.opt.Store, Names: g.names(), Config: g.opt.Config(),
		MayRead:     func(key string) bool { return all || caller.MayTouch(access.Read, key) },
		MayReadData: func(dataset string) bool { return g.touches(caller, access.Read, dataset) }}
}

// untold is the problem of a why that could not be told.
func (g *Gateway) untold(ctx context.Context, err error) *api.Problem {
	switch {
	case errors.Is(err, why.ErrRef), errors.Is(err, ledger.ErrAmbiguous), errors.Is(err, store.ErrInvalid):
		return badParameter("of", err.Error())
	case errors.Is(err, why.ErrUnknown):
		return problem(api.NotFound, http.StatusNotFound, "there is nothing here", err.Error())
	}
	return g.unled(ctx, err)
}
