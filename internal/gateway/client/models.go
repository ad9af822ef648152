package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"tidemill.dev"
	"tidemill.dev/api"
)

// ModelQuery selects models. An empty field excludes nothing.
type ModelQuery struct {
	Recipe, Key, Prefix string
	Stale               string // a duration such as 7d
	Awaiting, Pinned    bool
	Drifting            bool
	After               string // Next of the previous page
	Limit               int
}

func (q *ModelQuery) values() url.Values {
	values := toQuery("recipe", q.Recipe, "key", q.Key, "prefix", q.Prefix, "stale", q.Stale, "after", q.After)
	for name, yes := range map[string]bool{"awaiting": q.Awaiting, "pinned": q.Pinned, "drifting": q.Drifting} {
		if yes {
			values.Set(name, "true")
		}
	}
	if q.Limit > 0 {
		values.Set("limit", strconv.Itoa(q.Limit))
	}
	return values
}

// Models returns a page of models.
func (g *Gateway) Models(ctx context.Context, q ModelQuery) (page api.Models, err error) {
	return page, g.get(ctx, "list the models", &page, q.values(), "models")
}

// Fleet returns the numbers of keys by recipe and state, of one recipe or of all. The age from which
// a champion is stale is a duration such as 7d; if it is empty, the gateway's own counts.
func (g *Gateway) Fleet(ctx context.Context, recipe, stale string) (all api.Fleet, err error) {
	return all, g.get(ctx, "count the keys of the fleet", &all, toQuery("recipe", recipe, "stale", stale), "fleet")
}

// Model returns a model and its versions. If a version is given, such as 7 or champion, only that
// version is returned, with its measurements.
func (g *Gateway) Model(ctx context.Context, name, version string) (whole api.ModelWhole, err error) {
	return whole, g.get(ctx, "show model "+name, &whole, toQuery("model", name, "version", version), "model")
}

// Trials returns the running trials, of one recipe or model or of all.
func (g *Gateway) Trials(ctx context.Context, recipe, model string) (all api.TrialList, err error) {
	query := toQuery("recipe", recipe, "model", model)
	for {
		var page api.TrialList
		if err := g.get(ctx, "list the trials", &page, query, "trials"); err != nil {
			return all, err
		}
		page.Trials = append(all.Trials, page.Trials...)
		all = page
		if page.Next == "" {
			return all, nil
		}
		query.Set("after", page.Next)
	}
}

// Rejudge returns the verdict of a version's trial, computed again.
func (g *Gateway) Rejudge(ctx context.Context, model, version string) (done api.Rejudged, err error) {
	return done, g.get(ctx, "judge "+model+"@"+version+" again", &done, toQuery("model", model, "version", version), "model", "rejudge")
}

// Promote sends an action for a model, such as a promotion. A retried action has one effect.
func (g *Gateway) Promote(ctx context.Context, action tidemill.Action, ask api.PromotionAsked) (done api.PromotionDone, err error) {
	return done, g.postNamed(ctx, NewAsking(), string(action)+" model "+ask.Model, ask, &done, "model", string(action))
}

// RollbackModels rolls models back, up to the limit of one request.
func (g *Gateway) RollbackModels(ctx context.Context, named Asking, ask api.RollbackAsked) (done api.PromotionsDone, err error) {
	return done, g.postNamed(ctx, named, "roll models back", ask, &done, "models", "rollback")
}

// Promotions returns the recipes whose promotions are frozen.
func (g *Gateway) Promotions(ctx context.Context) (all api.Promotions, err error) {
	return all, g.get(ctx, "list frozen promotions", &all, nil, "promotions")
}

// FreezePromotions stops promotions by gates, of one recipe or of all.
func (g *Gateway) FreezePromotions(ctx context.Context, ask api.FreezeAsked) (done api.Rested, err error) {
	return done, g.postUntilFinal(ctx, "freeze promotions", ask, &done, "promotions", "freeze")
}

// ThawPromotions ends a freeze of promotions.
func (g *Gateway) ThawPromotions(ctx context.Context, ask api.FreezeAsked) (done api.Rested, err error) {
	return done, g.postUntilFinal(ctx, "thaw promotions", ask, &done, "promotions", "thaw")
}

// Rollouts returns the recipes that have rollouts, and their state.
func (g *Gateway) Rollouts(ctx context.Context) (all api.Rollouts, err error) {
	return all, g.get(ctx, "list the rollouts", &all, nil, "rollouts")
}

// Rollout returns the rollout of a recipe.
func (g *Gateway) Rollout(ctx context.Context, recipe string) (one api.Rollout, err error) {
	return one, g.get(ctx, "show the rollout of recipe "+recipe, &one, nil, "rollouts", recipe)
}

// PauseRollout keeps further keys from taking part in a rollout.
func (g *Gateway) PauseRollout(ctx context.Context, recipe string, ask api.RolloutAsked) (done api.Rested, err error) {
	return done, g.postUntilFinal(ctx, "pause the rollout of recipe "+recipe, ask, &done, "rollouts", recipe, "pause")
}

// ResumeRollout continues a rollout that is paused or has stopped.
func (g *Gateway) ResumeRollout(ctx context.Context, recipe string, ask api.RolloutAsked) (done api.Rested, err error) {
	return done, g.postUntilFinal(ctx, "resume the rollout of recipe "+recipe, ask, &done, "rollouts", recipe, "resume")
}

// AbortRollout ends a rollout and rolls its keys back.
func (g *Gateway) AbortRollout(ctx context.Context, recipe string, ask api.RolloutAsked) (done api.Rested, err error) {
	return done, g.postUntilFinal(ctx, "abort the rollout of recipe "+recipe, ask, &done, "rollouts", recipe, "abort")
}

// Why returns the causes and results of a run, model, commit or event.
func (g *Gateway) Why(ctx context.Context, of string) (graph api.Graph, err error) {
	return graph, g.get(ctx, "trace "+of, &graph, url.Values{"of": {of}}, "why")
}

// Scorers returns the scorers of the config and their state.
func (g *Gateway) Scorers(ctx context.Context) (all api.Scorers, err error) {
	return all, g.get(ctx, "list the scorers", &all, nil, "scorers")
}

// Scorer returns one scorer with its swaps and its processes.
func (g *Gateway) Scorer(ctx context.Context, name string) (s api.ScorerShown, err error) {
	return s, g.get(ctx, "show scorer "+name, &s, nil, "scorers", name)
}

// Score scores an event's data with a scorer's champion, or with the champion of the given key.
// Score publishes nothing, so it may be retried.
func (g *Gateway) Score(ctx context.Context, scorer, key string, data []byte) (done api.ScoreDone, err error) {
	what := fmt.Sprintf("ask scorer %s", scorer)
	a, err := g.patience(askWithin).sendUntilFinal(ctx, request{method: http.MethodPost, path: []string{"api", "v1", "scorers", scorer, "score"},
		query: toQuery("key", key), header: http.Header{"Content-Type": {"application/json"}}, body: data})
	return done, g.read(what, a, err, &done)
}

// Rescore scores a part of a scorer's stream again; one call takes some seconds. The caller repeats
// the call with the returned id until nothing is left.
func (g *Gateway) Rescore(ctx context.Context, named Asking, scorer string, ask api.RescoreAsk) (done api.Rescored, err error) {
	return done, g.postNamed(ctx, named, "rescore the stream of "+scorer, ask, &done, "scorers", scorer, "rescore")
}

// Label publishes the truth of an answer to the stream of the scorer's labels.
func (g *Gateway) Label(ctx context.Context, scorer string, ask api.LabelAsk) (done api.LabelDone, err error) {
	return done, g.postNamed(ctx, NewAsking(), "label "+ask.Event, ask, &done, "scorers", scorer, "labels")
}
