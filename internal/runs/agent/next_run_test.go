//go:build unix

package agent

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
)

// lingering returns a Lingering of an hour that counts its clean-ups.
func lingering(cleaned *int) Lingering {
	return Lingering{Pod: "pod-7", For: time.Hour, Clean: func() error { *cleaned++; return nil }}
}

// After an attempt, whatever its outcome, the agent cleans up and does the next attempt that its
// pod is given.
func TestFollow(t *testing.T) {
	for end, script := range map[tidemill.Outcome]string{tidemill.OutcomeSucceeded: "true", tidemill.OutcomeFailed: "exit 3"} {
		g := newGateway(t)
		o := g.containerOptions()
		g.sh(script)
		g.given = []api.Given{{Attempt: name, Token: token}}
		cleaned := 0
		if err := Follow(t.Context(), o, lingering(&cleaned)); err != nil {
			t.Fatal(err)
		}
		if len(g.finished) != 2 || g.finished[1].Outcome != end || cleaned != 2 || len(g.waits) != 2 {
			t.Errorf("%s: it did %d attempts, cleaned up %d times and waited %d times", end, len(g.finished), cleaned, len(g.waits))
		}
		for _, w := range g.waits {
			if w.Pod != "pod-7" || w.Seconds > 3600 || w.Seconds < 3000 {
				t.Errorf("%+v", w)
			}
		}
		if names, err := os.ReadDir(o.Work); err == nil && len(names) > 0 {
			t.Errorf("there is still %v", names)
		}
	}
}

// An agent does not linger if its run was cancelled, its machine stops, its attempt is
// superseded, or the pool has no linger.
func TestWhoDoesNotLinger(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*gateway, context.CancelCauseFunc, *Lingering)
		err    error
	}{
		"cancelled": {func(g *gateway, _ context.CancelCauseFunc, _ *Lingering) {
			g.sh("sleep 600 & wait")
			g.answer.Cancel = "enough"
		}, nil},
		"stops": {func(g *gateway, end context.CancelCauseFunc, _ *Lingering) {
			g.sh("sleep 600 & wait")
			end(&Stopping{By: time.Now().Add(patience)})
		}, nil},
		"superseded": {func(g *gateway, _ context.CancelCauseFunc, _ *Lingering) {
			g.sh("true")
			g.fault = func(w http.ResponseWriter, _ *http.Request, route string) bool {
				if route == "/finish" {
					problem(w, http.StatusConflict, api.Superseded)
				}
				return route == "/finish"
			}
		}, ErrSuperseded},
		"not to": {func(g *gateway, _ context.CancelCauseFunc, l *Lingering) { g.sh("true"); l.For = 0 }, nil},
	} {
		g := newGateway(t)
		o := g.containerOptions()
		ctx, end := context.WithCancelCause(t.Context())
		cleaned := 0
		l := lingering(&cleaned)
		c.change(g, end, &l)
		if err := Follow(ctx, o, l); !errors.Is(err, c.err) {
			t.Errorf("%s: %v", what, err)
		}
		if len(g.waits) > 0 {
			t.Errorf("%s: it waits", what)
		}
		end(nil)
	}
}

// If the gateway is killed or closes while a pod lingers, the pod repeats the request. If the
// gateway refuses the request, the pod exits.
func TestTheGatewayGoesAwayWhileItLingers(t *testing.T) {
	g := newGateway(t)
	o := g.containerOptions()
	o.HTTP = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	g.sh("true")
	g.given = []api.Given{{Attempt: name, Token: token}}
	tries := 0
	g.fault = func(w http.ResponseWriter, r *http.Request, route string) bool {
		if route != "/next" {
			return false
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		tries++
		switch {
		case tries == 1:
			panic(http.ErrAbortHandler) // the gateway is killed
		case tries < 4:
			problem(w, http.StatusServiceUnavailable, api.Unavailable)
		case len(g.finished) > 1:
			problem(w, http.StatusUnauthorized, api.Unauthenticated)
		default:
			return false
		}
		return true
	}
	cleaned := 0
	if err := Follow(t.Context(), o, lingering(&cleaned)); err != nil {
		t.Fatal(err)
	}
	if len(g.finished) != 2 || tries != 5 {
		t.Errorf("it did %d attempts, and asked %d times", len(g.finished), tries)
	}
}

// An agent that gets SIGTERM while it lingers exits.
func TestAskedToLeaveWhileItLingers(t *testing.T) {
	g := newGateway(t)
	o := g.containerOptions()
	g.sh("true")
	asked := make(chan struct{})
	g.fault = func(_ http.ResponseWriter, r *http.Request, route string) bool {
		if route == "/next" {
			_, _ = io.Copy(io.Discard, r.Body) // else the server does not notice a closed connection
			close(asked)
			<-r.Context().Done()
		}
		return route == "/next"
	}
	ctx, end := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	cleaned := 0
	go func() { ended <- Follow(ctx, o, lingering(&cleaned)) }()
	<-asked
	end(&Stopping{By: time.Now().Add(patience)})
	if err := g.wait(ended); err != nil {
		t.Fatal(err)
	}
}

// If the clean-up fails, the agent does no further attempt.
func TestAPlaceThatCannotBeCleaned(t *testing.T) {
	g := newGateway(t)
	o := g.containerOptions()
	g.sh("true")
	dirty := errors.New("it is dirty")
	if err := Follow(t.Context(), o, Lingering{Pod: "p", For: time.Hour, Clean: func() error { return dirty }}); !errors.Is(err, dirty) || len(g.waits) > 0 {
		t.Errorf("%v, it waits %d times", err, len(g.waits))
	}
	if _, err := os.Stat(filepath.Join(o.Work, name)); !os.IsNotExist(err) {
		t.Error(err)
	}
}
