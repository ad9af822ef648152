package clock

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what operators see. The only label is the schedule, of which the
// config has few.
type metrics struct {
	ticks  *prometheus.CounterVec
	missed *prometheus.CounterVec
	late   prometheus.Histogram
	active prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		ticks: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_clock_ticks_total",
			Help: "Ticks that were sent."}, []string{"schedule"}),
		missed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_clock_missed_total",
			Help: "Ticks that were missed and will not be sent."}, []string{"schedule"}),
		late: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tidemill_clock_late_seconds",
			Help:    "How long after they were due ticks were sent.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 5, 15, 60, 300, 3600, 86400}}),
		active: prometheus.NewGauge(prometheus.GaugeOpts{Name: "tidemill_clock_active",
			Help: "1 while this process sends the ticks, 0 while it stands by."}),
	}
	if r == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.ticks, m.missed, m.late, m.active} {
		errs = append(errs, r.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register the metrics of the clock: %w", err)
	}
	return m, nil
}
