package infer

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the cache's Prometheus metrics.
type metrics struct {
	loads    prometheus.Histogram
	failures *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer, stats func() Stats) (*metrics, error) {
	m := &metrics{
		loads: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tidemill_models_load_seconds",
			Help:    "How long it took to bring a model into memory, from the disk or the store to its golden request.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_models_failed_loads_total",
			Help: "Failed loads, by reason: unfit is permanent, away is tried again, left means that no caller waited any longer."}, []string{"reason"}),
	}
	if r == nil {
		return m, nil
	}
	errs := []error{r.Register(m.loads), r.Register(m.failures)}
	for _, c := range counted(stats) {
		errs = append(errs, r.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register the metrics of the cache of models: %w", err)
	}
	return m, nil
}

func counted(stats func() Stats) []prometheus.Collector {
	gauge := func(name, help string, value func(Stats) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tidemill_models_" + name, Help: help}, func() float64 { return value(stats()) })
	}
	counter := func(name, help string, value func(Stats) uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "tidemill_models_" + name, Help: help}, func() float64 { return float64(value(stats())) })
	}
	return []prometheus.Collector{
		gauge("kept", "Models kept in memory.", func(s Stats) float64 { return float64(s.Models) }),
		gauge("bytes", "Memory of the models that are kept.", func(s Stats) float64 { return float64(s.Bytes) }),
		gauge("budget_bytes", "Memory that models may take.", func(s Stats) float64 { return float64(s.Budget) }),
		gauge("outside_bytes", "Memory of models that are used and not kept.", func(s Stats) float64 { return float64(s.Outside) }),
		counter("hits_total", "Uses of models that were in memory.", func(s Stats) uint64 { return s.Hits }),
		counter("misses_total", "Uses of models that had to be loaded first.", func(s Stats) uint64 { return s.Misses }),
		counter("evictions_total", "Models that made room for others.", func(s Stats) uint64 { return s.Evicted }),
		counter("refused_total", "Models that were loaded and not cached, because they are used less than the others.", func(s Stats) uint64 { return s.Refused }),
	}
}

func (m *metrics) loaded(took time.Duration, err error) {
	switch {
	case err == nil:
		m.loads.Observe(took.Seconds())
	case errors.Is(err, ErrUnfit):
		m.failures.WithLabelValues("unfit").Inc()
	case isLeft(err):
		m.failures.WithLabelValues("left").Inc()
	default:
		m.failures.WithLabelValues("away").Inc()
	}
}
