package web

import (
	"bytes"
	"context"
	"io"
	"net/http"

	"tidemill.dev/internal/access"
	"tidemill.dev/internal/api"
)

// inferencePath begins the paths of models in the Open Inference Protocol. A
// model's name has slashes, so that what is behind it is more than one segment.
const inferencePath = "/v2/models/"

// inferenceTable is the Open Inference Protocol's. Its probes are for whoever
// probes; who reads may ask models, as they may ask scorers.
func (g *Gateway) inferenceTable() []route {
	return []route{
		{method: http.MethodGet, path: "/v2", role: access.Read, handle: g.inference},
		{method: http.MethodGet, path: "/v2/health/live", role: anyone, handle: g.inference},
		{method: http.MethodGet, path: "/v2/health/ready", role: anyone, handle: g.inference},
		{method: http.MethodGet, path: inferencePath + "{path}", role: access.Read, handle: g.askModel},
		{method: http.MethodPost, path: inferencePath + "{path}", role: access.Read, handle: g.askModel},
	}
}

// askModel lets those ask who may see all keys: a model's name does not tell whose
// it is.
func (g *Gateway) askModel(w http.ResponseWriter, r *request) *api.Problem {
	if !r.caller.AllKeys(access.Read) {
		return forbidden("you may see some keys alone, and models are asked by their names here: POST /api/v1/scorers/{scorer}/score takes a key")
	}
	return g.inference(w, r)
}

// inference has the protocol's own handler answer.
func (g *Gateway) inference(w http.ResponseWriter, r *request) *api.Problem {
	if g.opt.Inference == nil {
		return noScoring()
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Ack)
	defer cancel()
	asked := r.WithContext(ctx)
	if r.Method == http.MethodPost {
		limit := g.opt.Limits.Batch
		body, p := g.body(r, limit, func() *api.Problem { return tooLarge("ask with fewer rows at once") })
		if p != nil {
			return p
		}
		asked.Body = io.NopCloser(bytes.NewReader(body))
	}
	g.opt.Inference.ServeHTTP(w, asked)
	return nil
}
