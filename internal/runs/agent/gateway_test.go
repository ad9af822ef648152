package agent

import (
	"io"
	"net/http"
	"sync"
	"testing"

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
