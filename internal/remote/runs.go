package remote

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"tidemill.dev"
	"tidemill.dev/internal/api"
)

// RunQuery says which runs are looked for. What is empty excludes none.
type RunQuery struct {
	States      []tidemill.RunState
	Recipe, Key string
	Since       string // a time, or one ago such as -1h
	After       string // a page's Next
	Limit       int
}

func (q *RunQuery) values() url.Values {
	var states []string
	for _, s := range q.States {
		states = append(states, string(s))
	}
	values := url.Values{}
	for name, value := range map[string]string{"state": strings.Join(states, ","), "recipe": q.Recipe, "key": q.Key, "since": q.Since, "after": q.After} {
		if value != "" {
			values.Set(name, value)
		}
	}
	if q.Limit > 0 {
		values.Set("limit", strconv.Itoa(q.Limit))
	}
	return values
}

// Runs are a page of runs, newest first.
func (g *Gateway) Runs(ctx context.Context, q RunQuery) (page api.Runs, err error) {
	return page, g.get(ctx, "list the runs", &page, q.values(), "runs")
}

// Run is all that is known of one run. The beginning of its id will do.
func (g *Gateway) Run(ctx context.Context, id string) (whole api.RunWhole, err error) {
	return whole, g.get(ctx, "show run "+id, &whole, nil, "runs", id)
}

// Asking names a request that starts or retries runs, through all of its parts
// and all of their tries.
type Asking string

// NewAsking is another name.
func NewAsking() Asking { return Asking(rand.Text()) }

// StartRuns starts runs, as many as one request does.
func (g *Gateway) StartRuns(ctx context.Context, named Asking, ask api.RunsAsked) (done api.RunsDone, err error) {
	return done, g.postNamed(ctx, named, "start runs of "+ask.Recipe, ask, &done, "runs")
}

// CancelRuns has runs end.
func (g *Gateway) CancelRuns(ctx context.Context, ask api.RunsSelected) (done api.RunsDone, err error) {
	return done, g.post(ctx, "cancel runs", ask, &done, "runs", "cancel")
}

// RetryRuns asks anew for runs that have ended.
func (g *Gateway) RetryRuns(ctx context.Context, named Asking, ask api.RunsSelected) (done api.RunsDone, err error) {
	return done, g.postNamed(ctx, named, "retry runs", ask, &done, "runs", "retry")
}

// postNamed is post for what would be done twice but for its name.
func (g *Gateway) postNamed(ctx context.Context, named Asking, what string, body, to any, path ...string) error {
	r, err := asking(body, path...)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	r.header[http.CanonicalHeaderKey(api.HeaderIdempotencyKey)] = []string{string(named)}
	a, err := g.patience(askWithin).ask(ctx, r)
	return g.read(what, a, err, to)
}

// Recipes are those of the config, as they stand now.
func (g *Gateway) Recipes(ctx context.Context) (all api.Recipes, err error) {
	return all, g.get(ctx, "list the recipes", &all, nil, "recipes")
}

// PauseRecipe has no run of a recipe begin.
func (g *Gateway) PauseRecipe(ctx context.Context, name string) (done api.Rested, err error) {
	return done, g.post(ctx, "pause recipe "+name, nil, &done, "recipes", name, "pause")
}

// ResumeRecipe ends that.
func (g *Gateway) ResumeRecipe(ctx context.Context, name string) (done api.Rested, err error) {
	return done, g.post(ctx, "resume recipe "+name, nil, &done, "recipes", name, "resume")
}

// Pools are those of the config, as they stand now.
func (g *Gateway) Pools(ctx context.Context) (all api.Pools, err error) {
	return all, g.get(ctx, "list the pools", &all, nil, "pools")
}

// PausePool has no attempt begin in a pool.
func (g *Gateway) PausePool(ctx context.Context, name string) (done api.Rested, err error) {
	return done, g.post(ctx, "pause pool "+name, nil, &done, "pools", name, "pause")
}

// ResumePool ends that.
func (g *Gateway) ResumePool(ctx context.Context, name string) (done api.Rested, err error) {
	return done, g.post(ctx, "resume pool "+name, nil, &done, "pools", name, "resume")
}
