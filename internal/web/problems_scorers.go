package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"tidemill.dev/internal/api"
)

// The problems of scorers.

func unknownScorer(name string) *api.Problem {
	return problem(api.UnknownScorer, http.StatusNotFound, "there is no such scorer",
		fmt.Sprintf("scorer %q is not in the config; GET /api/v1/scorers lists those there are", clip(name)))
}

func noScoring() *api.Problem {
	return problem(api.NoScoring, http.StatusNotImplemented, "this gateway scores nothing",
		"scoring needs a Redis and a store, and it was started without: start it with --redis and --store, or ask another gateway")
}

// unscored is the problem of an event that no champion has answered for.
func (g *Gateway) unscored(ctx context.Context, scorer string, err error) *api.Problem {
	var u *Unanswered
	switch {
	case errors.As(err, &u) && u.NoChampion:
		return problem(api.UnknownModel, http.StatusNotFound, "there is no such model or version",
			err.Error()+"; GET /api/v1/models lists the models there are")
	case u != nil:
		return problem(api.Unscorable, http.StatusUnprocessableEntity, "the event cannot be scored", err.Error())
	}
	if ctx.Err() == nil {
		g.log.Warn("a scorer that was asked does not answer", "scorer", scorer, "reason", err)
	}
	return unavailable(fmt.Sprintf("scorer %q does not answer: %v; ask again a little later", clip(scorer), err))
}
