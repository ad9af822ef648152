package agent

import (
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
)

// The gateway answers superseded to a beat after the report of the end. The agent ignores that.
func TestABeatCrossesTheLastWord(t *testing.T) {
	g := newGateway(t)
	g.order.BeatSeconds = 0.01
	g.sh("true")
	over := false
	refused := &responseSignal{what: func(res *http.Response) bool { return res.StatusCode == http.StatusConflict }, heard: make(chan struct{})}
	o := g.options()
	o.HTTP = &http.Client{Transport: refused}
	g.fault = func(w http.ResponseWriter, r *http.Request, route string) bool {
		g.mu.Lock()
		crosses := route == "/beat" && over
		g.mu.Unlock()
		switch {
		case crosses:
			problem(w, http.StatusConflict, api.Superseded)
			return true
		case route == "/finish":
			g.route(w, r, route)
			g.set(func() { over = true })
			<-refused.heard
			return true
		}
		return false
	}
	if f := g.run(o); f.Outcome != tidemill.OutcomeSucceeded {
		t.Errorf("it ended so: %+v", f)
	}
}

// A gateway may not know the attempt yet when it begins.
func TestAGatewayThatDoesNotKnowTheAttemptYet(t *testing.T) {
	g := newGateway(t)
	g.sh("true")
	asked := 0
	g.fault = func(w http.ResponseWriter, _ *http.Request, _ string) bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		if asked++; asked < 4 {
			problem(w, http.StatusUnauthorized, api.Unauthenticated)
			return true
		}
		return false
	}
	if f := g.run(g.options()); f.Outcome != tidemill.OutcomeSucceeded {
		t.Errorf("it ended so: %+v", f)
	}
}

// A gateway that does not know the attempt for long ends it.
func TestAGatewayThatNeverKnowsTheAttempt(t *testing.T) {
	ended := false
	c := &client{gone: func() { ended = true }, newUntil: time.Now().Add(-time.Second)}
	if _, again := isTransient(c.checkSuperseded(&refusal{status: http.StatusUnauthorized, err: &api.Problem{Status: http.StatusUnauthorized}})); again || !ended {
		t.Errorf("it asks again: %t, it ends: %t", again, ended)
	}
}

// responseSignal signals when the first matching response has been read.
type responseSignal struct {
	http.Transport
	what  func(*http.Response) bool
	once  sync.Once
	heard chan struct{}
}

// RoundTrip implements http.RoundTripper.
func (h *responseSignal) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := h.Transport.RoundTrip(r)
	if err == nil && h.what(res) {
		res.Body = &readBody{res.Body, h}
	}
	return res, err
}

type readBody struct {
	io.ReadCloser
	h *responseSignal
}

// Close is called after the body is read.
func (b *readBody) Close() error {
	b.h.once.Do(func() { close(b.h.heard) })
	return b.ReadCloser.Close()
}
