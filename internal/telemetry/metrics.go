package telemetry

import (
	"net/http"
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

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
