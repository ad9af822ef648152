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

// Options configure a process's telemetry.
type Options struct {
	Version string
	Name    string // name of the service in traces, unless OTEL_SERVICE_NAME is set
	// Getenv looks up OpenTelemetry's variables; if nil, in the process's environment.
	Getenv func(string) string
	Logger *slog.Logger
}

// Telemetry is a process's metrics and traces. It is safe for concurrent use.
type Telemetry struct {
	log      *slog.Logger
	registry *prometheus.Registry
	traces   *tracePipeline // nil if traces are off
	tracer   trace.Tracer
	spans    spanCounts
	unread   atomic.Bool // whether the last scrape could not read all metrics
}

// Start reads the environment and, if it names a collector, starts to export traces. An invalid
// variable is an error, because otherwise it would be noticed only when traces are missing. The
// caller must call Close.
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
	t := &Telemetry{log: o.Logger, registry: prometheus.NewRegistry(), tracer: noopTracer()}
	if err := t.registerMetrics(o.Version); err != nil {
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

// Registry returns the registry for the metrics of all parts of the process. It is not Prometheus's
// default registry.
func (t *Telemetry) Registry() *prometheus.Registry { return t.registry }

// Tracer returns the tracer. If traces are off, it records nothing, but passes on the trace context
// of callers.
func (t *Telemetry) Tracer() trace.Tracer { return t.tracer }

// Close exports the ended spans within the context's time. Metrics can still be read after Close.
func (t *Telemetry) Close(ctx context.Context) error {
	if t.traces == nil {
		return nil
	}
	if err := t.traces.flushAndClose(ctx); err != nil {
		return fmt.Errorf("flush traces: %w", err)
	}
	return nil
}

// scrapesAtOnce is enough for Prometheus, its replica and a person.
const scrapesAtOnce = 8

// registerMetrics registers the metrics that every process has.
func (t *Telemetry) registerMetrics(version string) error {
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "tidemill_build_info", Help: "Always 1; the labels have the build.",
		ConstLabels: prometheus.Labels{"version": version, "revision": buildCommit(), "goversion": runtime.Version()}})
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

// buildCommit returns the commit in this binary's build information.
func buildCommit() string {
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

// Metrics serves the registry in Prometheus's format, compressed if the client accepts it. If a
// collector fails, the others are still served.
func (t *Telemetry) Metrics() http.Handler {
	return promhttp.HandlerFor(prometheus.GathererFunc(t.gatherMetrics), promhttp.HandlerOpts{
		ErrorHandling: promhttp.HTTPErrorOnError, MaxRequestsInFlight: scrapesAtOnce})
}

// gatherMetrics returns the metrics of all collectors. If a collector fails, the others' metrics
// are returned, and the failure is logged once, not at each scrape.
func (t *Telemetry) gatherMetrics() ([]*dto.MetricFamily, error) {
	all, err := t.registry.Gather()
	if len(all) == 0 && err != nil {
		return nil, err
	}
	if t.unread.Swap(err != nil) == (err != nil) {
		return all, nil
	}
	if err != nil {
		t.log.Warn("metrics: reading some metrics failed; the others are served", "reason", shortError(err))
		return all, nil
	}
	t.log.Info("metrics: all metrics can be read again")
	return all, nil
}

// Logger returns a logger that writes one line per record, as key=value. All our processes use it.
// A record with a span in its context gets the ids of the trace and the span.
func Logger(w io.Writer, level slog.Leveler) *slog.Logger {
	return slog.New(traceHandler{slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})})
}

// traceHandler adds the ids of the trace and the span to log records.
type traceHandler struct{ slog.Handler }

func (t traceHandler) Handle(ctx context.Context, r slog.Record) error {
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		r = r.Clone() // its attributes may share memory with another record
		r.AddAttrs(slog.String("trace_id", span.TraceID().String()), slog.String("span_id", span.SpanID().String()))
	}
	return t.Handler.Handle(ctx, r)
}

func (t traceHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return traceHandler{t.Handler.WithAttrs(attrs)}
}

func (t traceHandler) WithGroup(name string) slog.Handler {
	return traceHandler{t.Handler.WithGroup(name)}
}
