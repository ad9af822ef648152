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
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
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
