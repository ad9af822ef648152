package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc/credentials"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// tracerName is the name under which all of our spans are made.
const tracerName = "tidemill.dev"

// noopTracer returns the tracer of a process without a collector. It costs nothing and starts no
// goroutine.
func noopTracer() trace.Tracer { return noop.NewTracerProvider().Tracer(tracerName) }

// tracePipeline brings ended spans to the collector:
//
//	span ends ─▶ batches (the SDK's) ─▶ reporter ─▶ exporter ─▶ collector
type tracePipeline struct {
	provider *sdk.TracerProvider
	batches  sdk.SpanProcessor
	out      *reportingExporter
}

// openTraces starts to export; it returns nil if the environment names no collector.
func openTraces(ctx context.Context, o Options, counts *spanCounts) (*tracePipeline, error) {
	env := envLookup(o.Getenv)
	to, err := env.readCollector()
	if err != nil || to == nil {
		return nil, err
	}
	sampler, err := env.readSampler()
	if err != nil {
		return nil, err
	}
	who, err := env.readResource(o)
	if err != nil {
		return nil, err
	}
	exporter, err := to.newExporter(ctx)
	if err != nil {
		return nil, err
	}
	o.Logger.Info("traces: exporting spans", "to", to.endpoint.Redacted())
	t := &tracePipeline{out: newReporter(exporter, o.Logger, counts)}
	t.batches = sdk.NewBatchSpanProcessor(t.out)
	t.provider = sdk.NewTracerProvider(sdk.WithSampler(sampler), sdk.WithResource(who),
		sdk.WithSpanProcessor(countedSpans{t.batches, counts}))
	return t, nil
}

func (t *tracePipeline) tracer(version string) trace.Tracer {
	return t.provider.Tracer(tracerName, trace.WithInstrumentationVersion(version))
}

// flushAndClose flushes and waits until all goroutines have ended. The batches are shut down
// directly, because the provider would skip them once the context has ended.
func (t *tracePipeline) flushAndClose(ctx context.Context) error {
	err := t.batches.Shutdown(ctx)
	t.out.stop(errors.New("closing")) // no time is left for running exports
	<-t.out.gone
	return errors.Join(err, t.provider.Shutdown(context.WithoutCancel(ctx)))
}

// newExporter makes the exporter. No connection is opened yet, because the collector may start
// later.
func (c *spanReceiver) newExporter(ctx context.Context) (sdk.SpanExporter, error) {
	if c.grpc {
		return c.dialGRPC(ctx)
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: c.tls, ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: c.timeout, IdleConnTimeout: time.Minute}
	options := []otlptracehttp.Option{otlptracehttp.WithEndpointURL(c.endpoint.String()), otlptracehttp.WithHeaders(c.headers),
		otlptracehttp.WithHTTPClient(&http.Client{Transport: transport, Timeout: c.timeout})}
	if c.gzip {
		options = append(options, otlptracehttp.WithCompression(otlptracehttp.GzipCompression))
	}
	exporter, err := otlptracehttp.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("export to %s: %w", c.endpoint.Redacted(), err)
	}
	return closingExporter{exporter, transport}, nil
}

func (c *spanReceiver) dialGRPC(ctx context.Context) (sdk.SpanExporter, error) {
	options := []otlptracegrpc.Option{otlptracegrpc.WithEndpointURL(c.endpoint.String()), otlptracegrpc.WithHeaders(c.headers),
		otlptracegrpc.WithTimeout(c.timeout)}
	if c.tls != nil {
		options = append(options, otlptracegrpc.WithTLSCredentials(credentials.NewTLS(c.tls)))
	}
	if c.gzip {
		options = append(options, otlptracegrpc.WithCompressor("gzip"))
	}
	exporter, err := otlptracegrpc.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("export to %s: %w", c.endpoint.Redacted(), err)
	}
	return exporter, nil
}

// closingExporter closes the exporter's connections after its shutdown. The exporter's default
// transport is shared by the whole process and would keep the connections open.
type closingExporter struct {
	sdk.SpanExporter
	transport *http.Transport
}

func (c closingExporter) Shutdown(ctx context.Context) error {
	defer c.transport.CloseIdleConnections()
	return c.SpanExporter.Shutdown(ctx)
}

// readSampler reads the settings that decide which traces are kept. The default follows the
// parent's decision and keeps all traces that begin here.
func (e envLookup) readSampler() (sdk.Sampler, error) {
	name, parent := strings.CutPrefix(strings.ToLower(e.value("OTEL_TRACES_SAMPLER")), "parentbased_")
	var s sdk.Sampler
	switch name {
	case "":
		return sdk.ParentBased(sdk.AlwaysSample()), nil
	case "always_on":
		s = sdk.AlwaysSample()
	case "always_off":
		s = sdk.NeverSample()
	case "traceidratio":
		ratio, err := e.ratio()
		if err != nil {
			return nil, err
		}
		s = sdk.TraceIDRatioBased(ratio)
	default:
		return nil, fmt.Errorf("read OTEL_TRACES_SAMPLER: no sampler is called %q: use always_on, always_off or traceidratio, each with parentbased_ before it or not", e.value("OTEL_TRACES_SAMPLER"))
	}
	if parent {
		return sdk.ParentBased(s), nil
	}
	return s, nil
}

func (e envLookup) ratio() (float64, error) {
	text := e.value("OTEL_TRACES_SAMPLER_ARG")
	if text == "" {
		return 1, nil
	}
	ratio, err := strconv.ParseFloat(text, 64)
	if err != nil || !(ratio >= 0 && ratio <= 1) { // false for NaN, too
		return 0, fmt.Errorf("read OTEL_TRACES_SAMPLER_ARG: %q is not a share of traces: give a number from 0 to 1", text)
	}
	return ratio, nil
}

// readResource returns the attributes of this process for all spans. OTEL_SERVICE_NAME overrides
// OTEL_RESOURCE_ATTRIBUTES, which override our own.
func (e envLookup) readResource(o Options) (*resource.Resource, error) {
	const variable = "OTEL_RESOURCE_ATTRIBUTES"
	said, err := parsePairs(variable, e.value(variable))
	if err != nil {
		return nil, err
	}
	attrs := []attribute.KeyValue{semconv.ServiceName(o.Name), semconv.ServiceVersion(o.Version),
		semconv.TelemetrySDKName("opentelemetry"), semconv.TelemetrySDKLanguageGo}
	if host, err := os.Hostname(); err == nil {
		attrs = append(attrs, semconv.HostName(host))
	}
	for _, p := range said { // if a name appears twice, the last one counts
		attrs = append(attrs, attribute.String(p.name, p.value))
	}
	if name := e.value("OTEL_SERVICE_NAME"); name != "" {
		attrs = append(attrs, semconv.ServiceName(name))
	}
	return resource.NewSchemaless(attrs...), nil
}

// spanCounts holds the counts of spans. An ended span that is neither exported nor failed waits in
// a batch or was dropped from a full queue.
type spanCounts struct{ ended, exported, failed atomic.Uint64 }

// countedSpans counts the sampled spans that end.
type countedSpans struct {
	sdk.SpanProcessor
	counts *spanCounts
}

func (c countedSpans) OnEnd(s sdk.ReadOnlySpan) {
	if s.SpanContext().IsSampled() {
		c.counts.ended.Add(1)
	}
	c.SpanProcessor.OnEnd(s)
}

// reportingExporter exports spans and handles errors itself. The SDK passes an exporter's errors to
// a global handler, which writes each to standard error. So reportingExporter returns no error. The
// SDK would also report invalid variables there, but environment.go finds them earlier.
type reportingExporter struct {
	exporter sdk.SpanExporter
	log      *slog.Logger
	counts   *spanCounts
	failing  atomic.Bool

	life context.Context // context of the exports; ended by stop
	stop context.CancelCauseFunc
	once sync.Once
	gone chan struct{} // closed after the last export
}

func newReporter(exporter sdk.SpanExporter, log *slog.Logger, counts *spanCounts) *reportingExporter {
	r := &reportingExporter{exporter: exporter, log: log, counts: counts, gone: make(chan struct{})}
	r.life, r.stop = context.WithCancelCause(context.Background())
	return r
}

// ExportSpans never fails. If the collector is down, spans are dropped. One line is logged when the
// collector goes down, and one when it is back.
func (r *reportingExporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.life, cancel)()
	err := r.exporter.ExportSpans(ctx, spans)
	if err == nil {
		r.counts.exported.Add(uint64(len(spans)))
	} else {
		r.counts.failed.Add(uint64(len(spans)))
	}
	if r.failing.Swap(err != nil) == (err != nil) {
		return nil
	}
	if err != nil {
		r.log.Warn("traces: exporting spans failed; they are dropped", "reason", shortError(err))
		return nil
	}
	r.log.Info("traces: the collector accepts spans again")
	return nil
}

// Shutdown is called after the export of the last batch.
func (r *reportingExporter) Shutdown(ctx context.Context) error {
	defer r.once.Do(func() { close(r.gone) })
	return r.exporter.Shutdown(ctx)
}

const reasonShown = 300

// shortError returns an error's text and cuts a long one, because a collector may answer with a
// whole page.
func shortError(err error) string {
	text := err.Error()
	if len(text) > reasonShown {
		return text[:reasonShown] + "…"
	}
	return text
}

// Remember writes the context's span into the event, in the attributes of CloudEvents' distributed
// tracing extension, so that readers of the event continue its trace. If the event has a
// traceparent, it keeps its own attributes, because its publisher decides where the trace began.
func Remember(ctx context.Context, v *broker.View) {
	if _, has := v.Attribute(tidemill.AttrTraceParent); !has {
		propagation.TraceContext{}.Inject(ctx, eventCarrier{v})
	}
}

// ContextOf returns the context for handling an event: spans that begin in it belong to the event's
// trace. Without a valid traceparent, the result is ctx.
func ContextOf(ctx context.Context, v *broker.View) context.Context {
	return propagation.TraceContext{}.Extract(ctx, eventCarrier{v})
}

// ContextOfRequest is ContextOf for the headers of an HTTP request.
func ContextOfRequest(ctx context.Context, h http.Header) context.Context {
	return propagation.TraceContext{}.Extract(ctx, requestHeaders(h))
}

// Forward writes the context's span into the headers of a request, so that its receiver continues
// the trace.
func Forward(ctx context.Context, h http.Header) {
	propagation.TraceContext{}.Inject(ctx, requestHeaders(h))
}

// eventCarrier lets a propagator read and write an event's attributes.
type eventCarrier struct{ v *broker.View }

// Get returns a copy of the attribute, because the propagator's result lives longer than the bytes
// of the view.
func (c eventCarrier) Get(name string) string {
	value, _ := c.v.Attribute(name)
	return strings.Clone(value)
}

// Set does not change an existing attribute. The slice of extensions is clipped before a new
// attribute is added, because the memory after the slice may belong to another event.
func (c eventCarrier) Set(name, value string) {
	if _, has := c.v.Attribute(name); !has {
		c.v.Extensions = append(slices.Clip(c.v.Extensions), broker.Attribute{Name: name, Value: value})
	}
}

// Keys implements propagation.TextMapCarrier. W3C's propagator does not call it.
func (c eventCarrier) Keys() []string {
	return []string{tidemill.AttrTraceParent, tidemill.AttrTraceState}
}

// requestHeaders reads headers as W3C's specification requires: a traceparent is valid only if
// there is exactly one, and several tracestate headers are one list.
type requestHeaders http.Header

func (h requestHeaders) Get(name string) string {
	values := http.Header(h).Values(name)
	if name == tidemill.AttrTraceParent && len(values) != 1 {
		return ""
	}
	return strings.Join(values, ",")
}

// Set implements propagation.TextMapCarrier.
func (h requestHeaders) Set(name, value string) { http.Header(h).Set(name, value) }

// Keys implements propagation.TextMapCarrier.
func (h requestHeaders) Keys() []string { return eventCarrier{}.Keys() }
