package platform

import (
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	functionHeaders = 10 * time.Second
	functionBody    = time.Minute
	// functionIdle is longer than the dispatcher keeps a connection, so that it
	// never posts on one that is just being closed.
	functionIdle = 2 * time.Minute
)

// Function serves one function of ours to dispatchers in other processes, and
// the probes beside it. Who calls must know the secret that all processes share:
// a cluster's network is open to many. It returns where it listens; the stop
// order closes it, after the calls under way. The platform must have been opened
// with Runs, Telemetry and Secret.
func (p *Platform) Function(ctx context.Context, name, listen string) (string, error) {
	switch {
	case !slices.Contains(Functions(), name):
		return "", fmt.Errorf("there is no function %q; those there are: %s", name, strings.Join(Functions(), ", "))
	case p.works == nil || p.telemetry == nil:
		return "", fmt.Errorf("serve the function %s: the platform was opened without runs or telemetry", name)
	}
	token, err := p.functionsToken()
	if err != nil {
		return "", fmt.Errorf("serve the function %s: %w", name, err)
	}
	ours, mux := http.NewServeMux(), http.NewServeMux()
	p.serveOurs(ours, name)
	p.addProbes(mux)
	mux.Handle("/", calledWith(token, ours))
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		return "", fmt.Errorf("serve the function %s on %q: %w", name, listen, err)
	}
	p.serveFunction(l, mux)
	return l.Addr().String(), nil
}

// serveFunction speaks HTTP/1.1 and, as Knative may be asked to, HTTP/2 without
// TLS.
func (p *Platform) serveFunction(l net.Listener, h http.Handler) {
	server := &http.Server{Handler: h, Protocols: new(http.Protocols), ReadHeaderTimeout: functionHeaders, ReadTimeout: functionBody,
		IdleTimeout: functionIdle, ErrorLog: slog.NewLogLogger(p.log.Handler(), slog.LevelDebug)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	p.AtStop(Doors, "the function", func(ctx context.Context) error {
		err := errors.Join(server.Shutdown(ctx), server.Close()) // what is cut off comes again
		if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
		return err
	})
}

// calledWith answers who knows the token alone.
func calledWith(token string, functions http.Handler) http.Handler {
	want := []byte("Bearer " + token)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !hmac.Equal([]byte(r.Header.Get("Authorization")), want) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "these functions are called by Tidemill's dispatcher alone, which shares a secret with them (--run-secret); post to the gateway", http.StatusUnauthorized)
			return
		}
		functions.ServeHTTP(w, r)
	})
}
