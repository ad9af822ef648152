package remote

import (
	"context"
	"fmt"
	"net/http"

	"tidemill.dev/internal/api"
)

// Scorers are those of the config, as they stand now.
func (g *Gateway) Scorers(ctx context.Context) (all api.Scorers, err error) {
	return all, g.get(ctx, "list the scorers", &all, nil, "scorers")
}

// Scorer is one of them, with its swaps and the processes that have it.
func (g *Gateway) Scorer(ctx context.Context, name string) (s api.ScorerShown, err error) {
	return s, g.get(ctx, "show scorer "+name, &s, nil, "scorers", name)
}

// Score has a scorer's champion answer for an event's data, of the key if one is
// given. Nothing is published, so that it may be tried again.
func (g *Gateway) Score(ctx context.Context, scorer, key string, data []byte) (done api.ScoreDone, err error) {
	what := fmt.Sprintf("ask scorer %s", scorer)
	a, err := g.patience(askWithin).ask(ctx, request{method: http.MethodPost, path: []string{"api", "v1", "scorers", scorer, "score"},
		query: filled("key", key), header: http.Header{"Content-Type": {"application/json"}}, body: data})
	return done, g.read(what, a, err, &done)
}
