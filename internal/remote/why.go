package remote

import (
	"context"
	"net/url"

	"tidemill.dev/internal/api"
)

// Why is what a thing came from, and what came of it.
func (g *Gateway) Why(ctx context.Context, of string) (graph api.Graph, err error) {
	return graph, g.get(ctx, "tell why of "+of, &graph, url.Values{"of": {of}}, "why")
}
