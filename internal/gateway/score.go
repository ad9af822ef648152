package gateway

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/cehttp"
	"tidemill.dev/config"
	"tidemill.dev/internal/gateway/access"
)

// Unanswered is why a champion does not answer for an event, where asking again
// is of no use.
type Unanswered struct {
	NoChampion bool // the key has none, and nothing answers instead; else the event cannot be scored
	Err        error
}

// Error says it.
func (u *Unanswered) Error() string { return u.Err.Error() }

// Unwrap gives what kept it.
func (u *Unanswered) Unwrap() error { return u.Err }

// scoreOnce has a scorer's champion answer for one event, and publishes nothing.
func (g *Gateway) scoreOnce(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.query([]string{"key"})
	if p != nil {
		return p
	}
	name := r.value
	c, ok := g.opt.Config().Scorer(name)
	if !ok {
		return unknownScorer(name)
	}
	v, p := g.readScored(r)
	if p != nil {
		return p
	}
	if p := keyed(r.caller, &c, v, values); p != nil {
		return p
	}
	if g.opt.Score == nil {
		return noScoring()
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Ack)
	defer cancel()
	done, err := g.opt.Score(ctx, c, v)
	if err != nil {
		return g.unscored(r.Context(), name, err)
	}
	done.Scorer = name
	writeJSON(w, http.StatusOK, done)
	return nil
}

// readScored reads an event in its mode, as it would be published, or JSON alone,
// which is an event's data.
func (g *Gateway) readScored(r *request) (*broker.View, *api.Problem) {
	mode, err := cehttp.ModeOf(r.Header)
	if err != nil {
		return nil, unreadable(err)
	}
	body, p := g.body(r, g.opt.Limits.structured(), g.eventTooLarge)
	if p != nil {
		return nil, p
	}
	v := &broker.View{}
	switch {
	case mode == cehttp.Structured:
		err = cehttp.ReadStructured(r.Header, body, v)
	case mode == cehttp.Batch:
		return nil, invalidRequest("a batch of events cannot be scored in one request; send one after the other")
	case r.Header.Get("Ce-Specversion") != "":
		err = cehttp.ReadBinary(r.Header, body, v)
	default:
		*v = broker.View{ID: tidemill.ID("score", r.name(), time.Now().String()), Source: "/score", Type: "score", DataContentType: "application/json", Data: body}
	}
	if err != nil {
		return nil, unreadable(err)
	}
	return v, nil
}

// keyed has the key that was asked for be the event's. Whoever may see some keys
// alone has to say one: what an event says of its own is theirs to write.
func keyed(caller *access.Caller, c *config.Scorer, v *broker.View, values url.Values) *api.Problem {
	key := values.Get("key")
	if key != "" && c.Key == config.KeyNone {
		return badParameter("key", "the scorer has none (key: none); leave it out")
	}
	if key != "" {
		c.Key, v.Subject = config.KeySubject, key
	}
	switch {
	case caller.AllKeys(access.Read):
	case c.Key == config.KeyNone:
		return forbidden("you may see some keys alone, and this scorer has one model for all")
	case key == "":
		return badParameter("key", "say it: you may see some keys alone")
	case !caller.MayTouch(access.Read, key):
		return forbidden(fmt.Sprintf("the key %q is none of those that you may see", clip(key)))
	}
	return nil
}

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
