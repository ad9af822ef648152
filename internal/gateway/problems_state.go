package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/models/registry"
)

// The problems of runs, recipes and pools.

func noRuns() *api.Problem {
	return problem(api.NoRuns, http.StatusNotImplemented, "this gateway has no runs",
		"runs need a Redis and a store, and it was started without: start it with --redis, or ask another gateway")
}

func unknownRun(id string) *api.Problem {
	return problem(api.UnknownRun, http.StatusNotFound, "there is no such run",
		fmt.Sprintf("no run's id is %q or begins so, or you may not see it, or its key has had so many since that it is on the stream facts alone; GET /api/v1/runs lists those there are", clip(id)))
}

func unknownRecipe(name string) *api.Problem {
	return problem(api.UnknownRecipe, http.StatusNotFound, "there is no such recipe",
		fmt.Sprintf("recipe %q is not in the config; GET /api/v1/recipes lists those there are", clip(name)))
}

func unknownPool(name string) *api.Problem {
	return problem(api.UnknownPool, http.StatusNotFound, "there is no such pool",
		fmt.Sprintf("pool %q is not in the config; GET /api/v1/pools lists those there are", clip(name)))
}

func catchingUp(behind int64) *api.Problem {
	return unavailable(fmt.Sprintf("catching up with the facts: %s left; ask again a little later", strconv.FormatInt(behind, 10)))
}

// unled is the problem of what the ledger did not tell.
func (g *Gateway) unled(ctx context.Context, err error) *api.Problem {
	switch {
	case errors.Is(err, ledger.ErrCatchingUp):
		return catchingUp(g.opt.Ledger.Status().Behind)
	case errors.Is(err, ledger.ErrNoPlace):
		return badParameter("after", "it is no place in the list; give a page's next, or leave it out")
	}
	if ctx.Err() == nil {
		g.log.Warn("it cannot be told how the runs stand", "reason", err)
	}
	return unavailable("how the runs stand cannot be told now: Redis or Kafka is away; ask again a little later")
}

// unasked is the problem of a wish that did not come onto the log.
func (g *Gateway) unasked(ctx context.Context, run string, err error, began time.Time) *api.Problem {
	if errors.Is(err, broker.ErrInDoubt) {
		p := inDoubt(run, time.Since(began))
		p.Detail = fmt.Sprintf("run %q: Kafka did not say within %s whether it has what you ask for; ask again, under the same %s where you gave one: what was written is not written twice",
			clip(run), roughly(time.Since(began)), api.HeaderIdempotencyKey)
		return p
	}
	return g.unled(ctx, err)
}

// The problems of models and their promotions.

func number(n int) string { return strconv.Itoa(n) }

func unknownModel(name string) *api.Problem {
	return problem(api.UnknownModel, http.StatusNotFound, "there is no such model or version",
		fmt.Sprintf("no model's name is %q, or you may not touch it; GET /api/v1/models lists those there are", clip(name)))
}

func unknownVersion(name, which string) *api.Problem {
	return problem(api.UnknownModel, http.StatusNotFound, "there is no such model or version",
		fmt.Sprintf("model %q has no version %s, or it is no longer kept; GET /api/v1/model?model=%s lists those there are", clip(name), clip(which), clip(name)))
}

func notPromoted(name, why string) *api.Problem {
	return problem(api.NotPromoted, http.StatusConflict, "the log refuses it",
		fmt.Sprintf("%s; GET /api/v1/model?model=%s shows how it stands", why, clip(name)))
}

func championMoved(why string) *api.Problem {
	return problem(api.ChampionMoved, http.StatusConflict, "the champion is not the one that you saw",
		why+", and ask once more if you still want it")
}

// unwished is the problem of a wish that has not come to be. Whoever asked knows
// what, so that it is not said again.
func (g *Gateway) unwished(ctx context.Context, model string, err error, began time.Time) *api.Problem {
	if inner := errors.Unwrap(err); inner != nil {
		err = inner
	}
	switch {
	case errors.Is(err, registry.ErrUnknown):
		return problem(api.UnknownModel, http.StatusNotFound, "there is no such model or version",
			fmt.Sprintf("%s; GET /api/v1/model?model=%s lists those that are kept", err, clip(model)))
	case errors.Is(err, registry.ErrMoved):
		return championMoved(err.Error())
	case errors.Is(err, registry.ErrRefused):
		return notPromoted(model, err.Error())
	case errors.Is(err, broker.ErrInDoubt):
		p := inDoubt(model, time.Since(began))
		p.Detail = fmt.Sprintf("model %q: Kafka did not say within %s whether it has what you ask for; look at the model, or ask again under the same %s: what was written is not written twice",
			clip(model), roughly(time.Since(began)), api.HeaderIdempotencyKey)
		return p
	}
	return g.unled(ctx, err)
}

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
