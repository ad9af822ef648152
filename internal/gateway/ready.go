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

// health says that the process answers, whatever it depends on.
func (g *Gateway) health(w http.ResponseWriter, _ *request) *api.Problem {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, "ok\n")
	return nil
}

// ready says how everything is that the process depends on. Details name
// servers and files, so a door that asks for tokens tells them to readers only.
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

// look is what the process depends on, and what is the door's own.
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

// readiness keeps what was found for a moment: anyone may ask, and each look is
// a handful of questions to Kafka.
type readiness struct {
	mu    sync.Mutex
	until time.Time
	state api.Readiness
}

const (
	readyFor     = time.Second
	readyTimeout = 5 * time.Second
)

// now returns what was found a moment ago, or looks. Whoever comes meanwhile
// waits for the same look. The answer is the caller's own.
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

// The document says to others what api says to us. A test holds it
// against every answer of every route.
//
//go:embed openapi.json
var openAPIDocument []byte

// openAPI answers with the document.
func (g *Gateway) openAPI(w http.ResponseWriter, _ *request) *api.Problem {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store") // the next version may say more
	h.Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(openAPIDocument)
	return nil
}
