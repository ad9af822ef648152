package remote

import (
	"context"

	"tidemill.dev/internal/api"
)

// Rescore has a part of a scorer's stream scored once more, for some seconds. The
// caller goes on with its id until nothing is left.
func (g *Gateway) Rescore(ctx context.Context, scorer string, ask api.RescoreAsk) (done api.Rescored, err error) {
	return done, g.post(ctx, "score the stream of "+scorer+" once more", ask, &done, "scorers", scorer, "rescore")
}
