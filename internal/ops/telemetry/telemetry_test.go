package telemetry

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// readMetrics reads the metrics like Prometheus.
func readMetrics(t *testing.T, h http.Handler) string {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept-Encoding", "gzip")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusOK || w.Header().Get("Content-Encoding") != "gzip" {
		t.Fatalf("%d %v", w.Code, w.Header())
	}
	z, err := gzip.NewReader(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func mention(t *testing.T, text string, wanted ...string) {
	t.Helper()
	for _, want := range wanted {
		if !strings.Contains(text, want) {
			ours := slices.DeleteFunc(strings.SplitAfter(text, "\n"), func(line string) bool { return strings.Contains(line, "go_") })
			t.Errorf("there is no %s in\n%s", want, strings.Join(ours, ""))
		}
	}
}

func TestMetricsOfTheProcess(t *testing.T) {
	tel, err := Start(t.Context(), Options{Version: "v1.2.3", Getenv: environmentOf(nil)})
	if err != nil {
		t.Fatal(err)
	}
	mention(t, readMetrics(t, tel.Metrics()), `tidemill_build_info{goversion="go1.`, `version="v1.2.3"} 1`, "\ngo_goroutines ", "\ntidemill_trace_spans_total 0")
}

// failingCollector is a collector that fails.
type failingCollector struct {
	desc *prometheus.Desc
	err  error
}

func (b *failingCollector) Describe(ch chan<- *prometheus.Desc) { ch <- b.desc }

func (b *failingCollector) Collect(ch chan<- prometheus.Metric) {
	if b.err != nil {
		ch <- prometheus.NewInvalidMetric(b.desc, b.err)
		return
	}
	ch <- prometheus.MustNewConstMetric(b.desc, prometheus.GaugeValue, 1)
}

// If a collector fails, the others are served, and the failure is logged once.
func TestMetricsThatCannotBeRead(t *testing.T) {
	var out bytes.Buffer
	tel := start(t, nil, Logger(&out, slog.LevelInfo))
	b := &failingCollector{prometheus.NewDesc("tidemill_broken", "x", nil, nil), errors.New("it is broken")}
	if err := tel.Registry().Register(b); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		mention(t, readMetrics(t, tel.Metrics()), "tidemill_build_info{")
	}
	b.err = nil
	mention(t, readMetrics(t, tel.Metrics()), "tidemill_broken 1")
	if lines := strings.Count(out.String(), "\n"); lines != 2 {
		t.Errorf("%d lines:\n%s", lines, &out)
	}
	mention(t, out.String(), "reading some metrics failed", "it is broken", "can be read again")
}

func TestMetricsOfProducers(t *testing.T) {
	b, _ := openBroker(t)
	tel := start(t, nil, nil)
	p, err := b.Producer(broker.ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	second, err := b.Producer(broker.ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := registerAll(tel.Registry(), Producer("door", p), Producer("relay", second)); err != nil {
		t.Fatal(err)
	}
	v := broker.View{ID: "1", Source: "/s", Type: "t", Subject: "k"}
	if _, err := p.Publish(t.Context(), tidemill.StreamEvents, &v); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Publish(t.Context(), tidemill.StreamEvents, &broker.View{}); err == nil {
		t.Error("an event without attributes is accepted")
	}
	text := readMetrics(t, tel.Metrics())
	mention(t, text, `tidemill_producer_events_total{outcome="stored",producer="door"} 1`, `tidemill_producer_events_total{outcome="refused",producer="door"} 1`,
		`tidemill_producer_events_total{outcome="stored",producer="relay"} 0`, `tidemill_producer_requests_total{producer="door"} 1`)
	for _, err := range []error{p.Close(t.Context()), second.Close(t.Context())} {
		if err != nil {
			t.Error(err)
		}
	}
}

func TestLoggerWritesALineARecord(t *testing.T) {
	var out bytes.Buffer
	log := Logger(&out, slog.LevelInfo).With("stream", "events")
	log.Debug("left out")
	log.Warn("two\nlines", "reason", "a = b")
	traced := ContextOfRequest(context.Background(), header("traceparent", parent))
	log.InfoContext(traced, "stored", "partition", 3)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range []string{
		`level=WARN msg="two\nlines" stream=events reason="a = b"`,
		`level=INFO msg=stored stream=events partition=3 trace_id=` + traceOf + ` span_id=b7ad6b7169203331`,
	} {
		if i >= len(lines) || !strings.HasPrefix(lines[i], "time=") || !strings.HasSuffix(lines[i], " "+want) {
			t.Errorf("line %d is not …%s:\n%s", i+1, want, &out)
		}
	}
}

// A handler must not change a record that other handlers share.
func TestLoggerLeavesTheRecordAlone(t *testing.T) {
	var out bytes.Buffer
	record := slog.Record{Message: "m"}
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} { // more than a record stores inline
		record.AddAttrs(slog.String(key, key))
	}
	handler := Logger(&out, slog.LevelInfo).Handler()
	for _, p := range []string{parent, other} {
		if err := handler.Handle(ContextOfRequest(t.Context(), header("traceparent", p)), record); err != nil {
			t.Fatal(err)
		}
	}
	if record.NumAttrs() != 6 || strings.Count(out.String(), "trace_id") != 2 {
		t.Errorf("%d attributes\n%s", record.NumAttrs(), &out)
	}
}
