package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
)

// Options say who it is that tells.
type Options struct {
	Version string
	Name    string // the service's name in traces, unless OTEL_SERVICE_NAME gives another
	// Getenv looks up OpenTelemetry's variables; nil is the process's own
	// environment.
	Getenv func(string) string
	Logger *slog.Logger
}

// Telemetry is a process's metrics and traces. It is safe for concurrent use.
type Telemetry struct {
	log      *slog.Logger
	registry *prometheus.Registry
	traces   *traces // nil while they are off
	tracer   trace.Tracer
	spans    spanCounts
	unread   atomic.Bool // the last scrape could not read everything
}

// Start reads the environment and, if it names a collector, begins to export
// traces. A variable that is set and cannot be understood is an error: it would
// be found out otherwise on the day on which the traces are missed. Close it.
func Start(ctx context.Context, o Options) (*Telemetry, error) {
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Name == "" {
		o.Name = defaultService
	}
	t := &Telemetry{log: o.Logger, registry: prometheus.NewRegistry(), tracer: silent()}
	if err := t.register(o.Version); err != nil {
		return nil, fmt.Errorf("register the process's metrics: %w", err)
	}
	traces, err := openTraces(ctx, o, &t.spans)
	if err != nil {
		return nil, fmt.Errorf("start traces: %w", err)
	}
	if traces != nil {
		t.traces, t.tracer = traces, traces.tracer(o.Version)
	}
	return t, nil
}

// Registry is where a part of the process registers its metrics. It is not
// Prometheus's default one, and holds what is of this process alone.
func (t *Telemetry) Registry() *prometheus.Registry { return t.registry }

// Tracer begins spans. While traces are off it records nothing and passes on the
// context that came from elsewhere.
func (t *Telemetry) Tracer() trace.Tracer { return t.tracer }

// Close exports the spans that have ended, as long as the context allows.
// Metrics can be read also after it.
func (t *Telemetry) Close(ctx context.Context) error {
	if t.traces == nil {
		return nil
	}
	if err := t.traces.close(ctx); err != nil {
		return fmt.Errorf("flush traces: %w", err)
	}
	return nil
}
