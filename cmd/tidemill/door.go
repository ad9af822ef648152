package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"tidemill.dev/internal/platform"
)

// readyWithin bounds how long a dependency may take to say that it is there.
const readyWithin = 3 * time.Second

// door is up's HTTP server.
type door struct {
	listener net.Listener
	server   *http.Server
}

// openDoor listens, and leaves it to the platform's stop order to shut. It
// comes after the servers: a second up on the same folder shall hear of the
// folder, not of a port.
func (u *up) openDoor(p *platform.Platform) (*door, error) {
	l, err := net.Listen("tcp", u.listen)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen for HTTP: %w; give another address, or port 0 for a free one (--listen)%s", err, besideAnother)
	case err != nil:
		return nil, fmt.Errorf("listen for HTTP: %w; give --listen an address of this machine", err)
	}
	d := &door{listener: l, server: &http.Server{Handler: routes(p), ReadHeaderTimeout: 10 * time.Second}}
	p.AtStop(platform.Doors, "the HTTP door", d.shut)
	return d, nil
}

// shut lets those who are inside leave. The listener's own end comes second:
// a server that has not begun to serve does not know it, and one that has
// reports a listener that was closed under it as a failure.
func (d *door) shut(ctx context.Context) error {
	err := d.server.Shutdown(ctx)
	_ = d.listener.Close()
	return err
}

func (d *door) address() string { return d.listener.Addr().String() }

// serve returns when the context ends or the server fails; the stop order shuts
// the server.
func (d *door) serve(ctx context.Context) error {
	failed := make(chan error, 1)
	go func() { failed <- d.server.Serve(d.listener) }()
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return fmt.Errorf("serve HTTP: %w", err)
	}
}

func routes(p *platform.Platform) http.Handler {
	mux := http.NewServeMux()
	// Alive is not ready: restarting us mends no dependency.
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), readyWithin)
		defer cancel()
		answerReady(w, p.Ready(ctx))
	})
	return mux
}

func answerReady(w http.ResponseWriter, r platform.Readiness) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if r.Status == platform.Failed {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	_ = e.Encode(r) // whoever asked has gone away
}
