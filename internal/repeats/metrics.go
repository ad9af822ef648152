package repeats

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what operators see. The only label is the stream, of which the
// config has few.
type metrics struct {
	repeats   *prometheus.CounterVec
	unchecked prometheus.Counter
	dropped   prometheus.Counter
	away      prometheus.Gauge
	trips     prometheus.Histogram
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		repeats: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_repeats_total",
			Help: "Events that were here before and were not stored again."}, []string{"stream"}),
		unchecked: prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemill_dedupe_unchecked_total",
			Help: "Events that were accepted without asking whether they were here before, because Redis was away."}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemill_dedupe_dropped_marks_total",
			Help: "Stored events that will not be recognised if they are repeated, because Redis was away for too long."}),
		away: prometheus.NewGauge(prometheus.GaugeOpts{Name: "tidemill_dedupe_unavailable",
			Help: "1 while Redis is away and repeats are not recognised, else 0."}),
		trips: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tidemill_dedupe_round_trip_seconds",
			Help:    "How long Redis took to answer a batch of questions and marks.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1}}),
	}
	if r == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.repeats, m.unchecked, m.dropped, m.away, m.trips} {
		errs = append(errs, r.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register the metrics of repeats: %w", err)
	}
	return m, nil
}
