package platform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"tidemill.dev/internal/api"
)

const probeWithin = 5 * time.Second

// Probes serves what a process without a door still has to answer: /healthz,
// /readyz and /metrics, for Kubernetes and Prometheus. It has no tokens, and
// tells nothing but states and numbers. It returns where it listens; the stop
// order closes it.
func (p *Platform) Probes(ctx context.Context, listen string) (string, error) {
	if p.telemetry == nil {
		return "", errors.New("serve the probes: the platform was opened without telemetry")
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		return "", fmt.Errorf("listen for probes on %q: %w", listen, err)
	}
	mux := http.NewServeMux()
	p.addProbes(mux)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: probeWithin, IdleTimeout: time.Minute,
		ErrorLog: slog.NewLogLogger(p.log.Handler(), slog.LevelDebug)}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	// Whoever drains is still asked how it is, so the probes are not a door.
	p.AtStop(clients, "the probes", func(context.Context) error {
		err := server.Close()
		if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
		return err
	})
	return l.Addr().String(), nil
}

func (p *Platform) addProbes(mux *http.ServeMux) {
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", p.probeReady)
	mux.Handle("GET /metrics", p.telemetry.Metrics())
}

func (p *Platform) probeReady(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), probeWithin)
	defer cancel()
	state := p.Ready(ctx)
	for i := range state.Checks {
		state.Checks[i].Detail = "" // it names servers and files, and whoever asks may be anybody
	}
	w.Header().Set("Content-Type", "application/json")
	if state.Status == api.Failed {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(state) // who asked has gone
}
