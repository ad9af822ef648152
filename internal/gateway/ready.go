package gateway

import (
	"context"
	_ "embed"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/internal/gateway/access"
)

// health answers while the process runs, in whatever state its dependencies are.
func (g *Gateway) health(w http.ResponseWriter, _ *request) *api.Problem {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, "ok\n")
	return nil
}

// ready answers with the state of everything that the process depends on. Details name
// servers and files, so if tokens are required, only readers get them.
func (g *Gateway) ready(w http.ResponseWriter, r *request) *api.Problem {
	state := g.look()
	if !g.mayRead(r) {
		for i := range state.Checks {
			state.Checks[i].Detail = ""
		}
	}
	status := http.StatusOK
	if state.Status == api.Failed {
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, status, state)
	return nil
}

func (g *Gateway) mayRead(r *request) bool {
	if g.opt.Access == nil {
		return true
	}
	caller, err := g.opt.Access.Caller(r.Context(), r.Header.Get("Authorization"))
	return err == nil && caller.Has(access.Read)
}

// look returns the state of the dependencies and of the gateway itself.
func (g *Gateway) look() api.Readiness {
	state := g.readiness.now(g.opt.Ready)
	state.Checks = append(state.Checks, g.checkDoor())
	if g.opt.Access != nil {
		state.Checks = append(state.Checks, g.opt.Access.Check())
	}
	for _, c := range state.Checks {
		if c.Status == api.Failed || c.Status == api.Degraded && state.Status == api.OK {
			state.Status = c.Status
		}
	}
	return state
}

func (g *Gateway) checkDoor() api.Check {
	switch {
	case g.draining.Load():
		return api.Check{Name: "door", Status: api.Failed, Detail: "draining"}
	case g.certificate != nil:
		return g.certificate.check(time.Now())
	}
	return api.Check{Name: "door", Status: api.OK, Detail: g.Addr()}
}

// readiness keeps the last result for a moment, because every caller may ask, and each check
// costs a handful of requests to Kafka.
type readiness struct {
	mu    sync.Mutex
	until time.Time
	state api.Readiness
}

const (
	readyFor     = time.Second
	readyTimeout = 5 * time.Second
)

// now returns the last result if it is recent, or checks again. Concurrent callers wait for
// the same check. The result belongs to the caller.
func (o *readiness) now(look func(context.Context) api.Readiness) api.Readiness {
	o.mu.Lock()
	defer o.mu.Unlock()
	if time.Now().After(o.until) {
		ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
		defer cancel()
		o.state = look(ctx)
		o.until = time.Now().Add(readyFor)
	}
	state := o.state
	state.Checks = slices.Clone(state.Checks)
	return state
}

// openAPIDocument describes the API for other clients, as package api does for ours. A test
// checks it against every answer of every route.
//
//go:embed openapi.json
var openAPIDocument []byte

// openAPI answers with the document.
func (g *Gateway) openAPI(w http.ResponseWriter, _ *request) *api.Problem {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store") // a newer version may have more
	h.Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(openAPIDocument)
	return nil
}
