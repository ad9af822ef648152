package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"tidemill.dev/internal/api"
)

// Streams are those that the caller may see, as they are now.
func (g *Gateway) Streams(ctx context.Context) ([]api.Stream, error) {
	a, err := g.reading().ask(ctx, request{method: http.MethodGet, path: []string{"api", "v1", "streams"}})
	if err == nil && a.status != http.StatusOK {
		err = g.fault(a)
	}
	if err != nil {
		return nil, fmt.Errorf("list the streams: %w", err)
	}
	var all api.Streams
	if json.Unmarshal(a.body, &all) != nil || all.Streams == nil {
		return nil, fmt.Errorf("list the streams: %w", g.fault(a))
	}
	return all.Streams, nil
}
