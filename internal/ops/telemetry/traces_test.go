package telemetry

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"go.opentelemetry.io/otel"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"tidemill.dev/broker"
)

func start(t *testing.T, env map[string]string, logger *slog.Logger) *Telemetry {
	t.Helper()
	tel, err := Start(t.Context(), Options{Getenv: environmentOf(env), Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	return tel
}

// exportSpan ends a span and exports it.
func exportSpan(t *testing.T, tel *Telemetry) {
	t.Helper()
	_, span := tel.Tracer().Start(t.Context(), "s")
	span.End()
	if err := tel.traces.batches.ForceFlush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// An unreachable collector is reported once, in our log only.
func TestCollectorThatIsAwayIsToldOfOnce(t *testing.T) {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { t.Errorf("the SDK says for itself: %v", err) }))
	t.Cleanup(func() { otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {})) })
	var away atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if away.Load() {
			w.WriteHeader(http.StatusBadRequest) // a status that is not retried
			_, _ = w.Write(bytes.Repeat([]byte("no "), 1000))
		}
	}))
	t.Cleanup(server.Close)
	var out bytes.Buffer
	tel := start(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": server.URL}, Logger(&out, slog.LevelInfo))
	for _, now := range []bool{false, true, true, true, false, false, true} {
		away.Store(now)
		exportSpan(t, tel)
	}
	if err := tel.Close(t.Context()); err != nil {
		t.Error(err)
	}
	var told []string
	for line := range strings.Lines(out.String()) {
		_, text, _ := strings.Cut(line, "msg=")
		told = append(told, text[:min(len(text), 20)])
		if len(line) > 600 {
			t.Errorf("a line has %d bytes", len(line))
		}
	}
	if got := strings.Join(told, "|"); got != `"traces: exporting s|"traces: exporting s|"traces: the collect|"traces: exporting s` {
		t.Errorf("%s\n%s", got, &out)
	}
	if c := &tel.spans; c.ended.Load() != 7 || c.exported.Load() != 3 || c.failed.Load() != 4 {
		t.Errorf("%d ended, %d exported, %d failed", c.ended.Load(), c.exported.Load(), c.failed.Load())
	}
}

// Close waits for a collector that does not answer until its context ends.
func TestCloseEndsWithItsContext(t *testing.T) {
	asked, hang := make(chan struct{}, 1), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(hang) })
	tel := start(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": server.URL, "OTEL_EXPORTER_OTLP_TIMEOUT": "600000"}, nil)
	_, span := tel.Tracer().Start(t.Context(), "s")
	span.End()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	if err := tel.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	if err := tel.Close(ctx); err != nil {
		t.Errorf("again: %v", err)
	}
	if c := &tel.spans; c.failed.Load() != 1 {
		t.Errorf("%d failed", c.failed.Load())
	}
}

// A Close with an ended context still ends all goroutines.
func TestCloseOfAnEndedContext(t *testing.T) {
	s := spyHTTP(t)
	tel := start(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": s.addr}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = tel.Close(ctx) // the export may fail or succeed
	select {
	case <-tel.traces.out.gone:
	default:
		t.Error("the exporter still runs")
	}
}

// Only the named CAs are trusted.
func TestCollectorBehindTLS(t *testing.T) {
	s := &spanStore{t: t}
	server := httptest.NewUnstartedServer(s)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // no log of the failing handshake
	server.StartTLS()
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "ca.pem")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(file, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	for named, want := range map[string]uint64{file: 1, "": 0} {
		tel := start(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": server.URL, "OTEL_EXPORTER_OTLP_CERTIFICATE": named}, nil)
		exportSpan(t, tel)
		if err := tel.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if got := tel.spans.exported.Load(); got != want {
			t.Errorf("CA %q: %d spans exported", named, got)
		}
	}
	s.spanNamed("s")
}

// Without a collector there is no goroutine and no recording, but a caller's trace is passed on.
func TestTracesAreOffWithoutACollector(t *testing.T) {
	before := runtime.NumGoroutine()
	tel := start(t, nil, nil)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(2 * time.Minute); runtime.NumGoroutine() > before; <-tick.C { // goroutines of earlier tests may still be ending
		if time.Now().After(late) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
	ctx, span := tel.Tracer().Start(ContextOfRequest(t.Context(), header("traceparent", parent)), "s")
	if span.IsRecording() || trace.SpanContextFromContext(ctx).TraceID().String() != traceOf {
		t.Errorf("%v", span)
	}
	v := attributes()
	Remember(ctx, v)
	if got, _ := v.Attribute("traceparent"); got != parent {
		t.Errorf("traceparent %q", got)
	}
	if err := tel.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// Exports end with the reporter even if the exporter ignores its context for a while.
func TestReporterCountsWhatTheExporterDropsAtTheEnd(t *testing.T) {
	var counts spanCounts
	r := newReporter(stubborn{}, slog.New(slog.DiscardHandler), &counts)
	r.stop(errors.New("over"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := r.ExportSpans(ctx, make([]sdk.ReadOnlySpan, 3)); err != nil {
		t.Error(err)
	}
	if counts.failed.Load() != 3 {
		t.Errorf("%d failed", counts.failed.Load())
	}
}

type stubborn struct{}

func (stubborn) ExportSpans(ctx context.Context, _ []sdk.ReadOnlySpan) error {
	<-ctx.Done()
	return ctx.Err()
}

func (stubborn) Shutdown(context.Context) error { return nil }

const (
	parent  = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	other   = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	state   = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
	traceOf = "0af7651916cd43dd8448eb211c80319c"
)

func header(lines ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(lines); i += 2 {
		h.Add(lines[i], lines[i+1])
	}
	return h
}

func attributes(pairs ...string) *broker.View {
	v := &broker.View{}
	for i := 0; i < len(pairs); i += 2 {
		v.Extensions = append(v.Extensions, broker.Attribute{Name: pairs[i], Value: pairs[i+1]})
	}
	return v
}

func TestRememberWritesTheTraceIntoTheEvent(t *testing.T) {
	ctx := ContextOfRequest(t.Context(), header("traceparent", parent, "tracestate", state))
	for name, c := range map[string]struct{ have, want []string }{
		"no trace":                  {[]string{"dataset", "d"}, []string{"dataset", "d", "tracestate", state, "traceparent", parent}},
		"its own":                   {[]string{"traceparent", other}, []string{"traceparent", other}},
		"its own, with a state":     {[]string{"traceparent", other, "tracestate", "a=b"}, []string{"traceparent", other, "tracestate", "a=b"}},
		"one that is no trace":      {[]string{"traceparent", "nonsense"}, []string{"traceparent", "nonsense"}},
		"a state that belongs to 0": {[]string{"tracestate", "a=b"}, []string{"tracestate", "a=b", "traceparent", parent}},
	} {
		v := attributes(c.have...)
		Remember(ctx, v)
		if want := attributes(c.want...); !slices.Equal(v.Extensions, want.Extensions) {
			t.Errorf("%s: %v", name, v.Extensions)
		}
	}
	v := attributes()
	if Remember(t.Context(), v); len(v.Extensions) != 0 {
		t.Errorf("without a span: %v", v.Extensions)
	}
}

// The views of a batch may share one array of extensions.
func TestRememberTouchesNoNeighbour(t *testing.T) {
	all := []broker.Attribute{{Name: "dataset", Value: "a"}, {Name: "dataset", Value: "b"}}
	v := &broker.View{Extensions: all[:1]}
	Remember(ContextOfRequest(t.Context(), header("traceparent", parent)), v)
	if all[1].Name != "dataset" || all[1].Value != "b" {
		t.Errorf("the neighbour has %v", all[1])
	}
	if got, _ := v.Attribute("traceparent"); got != parent {
		t.Errorf("traceparent %q", got)
	}
}

func TestContextOf(t *testing.T) {
	for name, c := range map[string]struct {
		v     *broker.View
		trace string // trace id; empty for none
		state string
	}{
		"a trace":               {attributes("traceparent", parent), traceOf, ""},
		"a trace and its state": {attributes("traceparent", parent, "tracestate", state), traceOf, state},
		"a state that is none":  {attributes("traceparent", parent, "tracestate", "=,="), traceOf, ""},
		"nothing":               {attributes(), "", ""},
		"no trace":              {attributes("traceparent", "00-nonsense"), "", ""},
		"zeros":                 {attributes("traceparent", "00-00000000000000000000000000000000-b7ad6b7169203331-01"), "", ""},
		"capitals":              {attributes("traceparent", "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01"), "", ""},
		"version ff":            {attributes("traceparent", "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), "", ""},
		"a later version":       {attributes("traceparent", "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more"), traceOf, ""},
		"a state alone":         {attributes("tracestate", state), "", ""},
	} {
		got := trace.SpanContextFromContext(ContextOf(context.Background(), c.v))
		if got.IsValid() != (c.trace != "") || got.IsValid() && (got.TraceID().String() != c.trace || !got.IsRemote()) || got.TraceState().String() != c.state {
			t.Errorf("%s: %v %q", name, got.TraceID(), got.TraceState())
		}
	}
}

// The context lives longer than the bytes of the event.
func TestContextOfCopies(t *testing.T) {
	fetched := []byte(state)
	ctx := ContextOf(context.Background(), attributes("traceparent", parent, "tracestate", unsafe.String(&fetched[0], len(fetched))))
	clear(fetched)
	if got := trace.SpanContextFromContext(ctx).TraceState().String(); got != state {
		t.Errorf("tracestate has become %q", got)
	}
}

func TestContextOfRequest(t *testing.T) {
	for name, c := range map[string]struct {
		h     http.Header
		trace string
		state string
	}{
		"a trace":             {header("Traceparent", parent), traceOf, ""},
		"a state in two":      {header("traceparent", parent, "tracestate", "rojo=00f067aa0ba902b7", "tracestate", "congo=t61rcWkgMzE"), traceOf, state},
		"two of them":         {header("traceparent", parent, "traceparent", other), "", ""},
		"none":                {header(), "", ""},
		"a state that is bad": {header("traceparent", parent, "tracestate", "?"), traceOf, ""},
	} {
		got := trace.SpanContextFromContext(ContextOfRequest(context.Background(), c.h))
		if got.IsValid() != (c.trace != "") || got.IsValid() && got.TraceID().String() != c.trace || got.TraceState().String() != c.state {
			t.Errorf("%s: %v %q", name, got.TraceID(), got.TraceState())
		}
	}
}

// A forwarded context is read unchanged.
func TestForward(t *testing.T) {
	for name, given := range map[string]http.Header{"a trace": header("traceparent", parent, "tracestate", state), "no state": header("traceparent", parent), "nothing": header()} {
		got := header("Accept", "text/plain")
		Forward(ContextOfRequest(t.Context(), given), got)
		for _, key := range []string{"Traceparent", "Tracestate"} {
			if !slices.Equal(got[key], given[key]) {
				t.Errorf("%s: %s is %q, want %q", name, key, got[key], given[key])
			}
		}
	}
}
