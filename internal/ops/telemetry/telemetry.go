package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
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

// scrapesAtOnce is more than Prometheus, its replica and a curious person need.
const scrapesAtOnce = 8

// register registers what every process tells of itself.
func (t *Telemetry) register(version string) error {
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "tidemill_build_info", Help: "Always 1; the labels say which build this is.",
		ConstLabels: prometheus.Labels{"version": version, "revision": revision(), "goversion": runtime.Version()}})
	build.Set(1)
	return registerAll(t.registry,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		build,
		count("tidemill_trace_spans_total", "Spans that ended and are sampled.", t.spans.ended.Load),
		count("tidemill_trace_spans_exported_total", "Spans that the collector has taken.", t.spans.exported.Load),
		count("tidemill_trace_spans_failed_total", "Spans that were dropped because the collector did not take them.", t.spans.failed.Load),
	)
}

func count(name, help string, value func() uint64) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
}

func registerAll(r prometheus.Registerer, all ...prometheus.Collector) error {
	for _, c := range all {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// revision is the commit that the Go toolchain noted of this binary.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return ""
}

// Metrics serves the registry in Prometheus's format, compressed for who asks
// for it. Where a collector fails the others are served all the same.
func (t *Telemetry) Metrics() http.Handler {
	return promhttp.HandlerFor(prometheus.GathererFunc(t.gather), promhttp.HandlerOpts{
		ErrorHandling: promhttp.HTTPErrorOnError, MaxRequestsInFlight: scrapesAtOnce})
}

// gather keeps a collector's fault from taking the others with it, and tells of
// it once: a scrape comes every few seconds.
func (t *Telemetry) gather() ([]*dto.MetricFamily, error) {
	all, err := t.registry.Gather()
	if len(all) == 0 && err != nil {
		return nil, err
	}
	if t.unread.Swap(err != nil) == (err != nil) {
		return all, nil
	}
	if err != nil {
		t.log.Warn("some metrics cannot be read; the others are served", "reason", shortened(err))
		return all, nil
	}
	t.log.Info("all metrics can be read again")
	return all, nil
}

// Logger writes a line a record, as key=value. Every process of ours logs
// through one. A record that is logged with a span's context names the trace,
// so that one leads to the other.
func Logger(w io.Writer, level slog.Leveler) *slog.Logger {
	return slog.New(traced{slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})})
}

// traced adds the trace to what it hands on.
type traced struct{ slog.Handler }

func (t traced) Handle(ctx context.Context, r slog.Record) error {
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		r = r.Clone() // its attributes may share memory with another's
		r.AddAttrs(slog.String("trace_id", span.TraceID().String()), slog.String("span_id", span.SpanID().String()))
	}
	return t.Handler.Handle(ctx, r)
}

func (t traced) WithAttrs(attrs []slog.Attr) slog.Handler { return traced{t.Handler.WithAttrs(attrs)} }

func (t traced) WithGroup(name string) slog.Handler { return traced{t.Handler.WithGroup(name)} }
