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
	"tidemill.dev/internal/models"
)

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
	case errors.Is(err, models.ErrUnknown):
		return problem(api.UnknownModel, http.StatusNotFound, "there is no such model or version",
			fmt.Sprintf("%s; GET /api/v1/model?model=%s lists those that are kept", err, clip(model)))
	case errors.Is(err, models.ErrMoved):
		return championMoved(err.Error())
	case errors.Is(err, models.ErrRefused):
		return notPromoted(model, err.Error())
	case errors.Is(err, broker.ErrInDoubt):
		p := inDoubt(model, time.Since(began))
		p.Detail = fmt.Sprintf("model %q: Kafka did not say within %s whether it has what you ask for; look at the model, or ask again under the same %s: what was written is not written twice",
			clip(model), roughly(time.Since(began)), api.HeaderIdempotencyKey)
		return p
	}
	return g.unled(ctx, err)
}
