package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/ledger"
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
