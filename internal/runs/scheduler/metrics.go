package scheduler

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev"
)

// metrics are what operators see of what this process has done. The only label
// that is not a fixed word is the recipe, of which the config has few.
type metrics struct {
	requests *prometheus.CounterVec
	starts   *prometheus.CounterVec
	ends     *prometheus.CounterVec
	waits    *prometheus.HistogramVec
	took     *prometheus.HistogramVec
}

var seconds = []float64{.01, .03, .1, .3, 1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000} // read only

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_run_requests_total",
			Help: "Wishes for runs, by what became of them: accepted, absorbed by the run that waits, or known."}, []string{"recipe", "result"}),
		starts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_run_attempts_started_total",
			Help: "Attempts that were begun here."}, []string{"recipe"}),
		ends: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_run_attempts_ended_total",
			Help: "Ends of attempts that were told here, by outcome: succeeded, failed, cancelled, left or lost."}, []string{"recipe", "outcome"}),
		waits: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tidemill_run_wait_seconds",
			Help: "From a run's first request until it began.", Buckets: seconds}, []string{"recipe"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tidemill_run_attempt_seconds",
			Help: "From an attempt's begin to its end.", Buckets: seconds}, []string{"recipe"}),
	}
	if r == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.requests, m.starts, m.ends, m.waits, m.took} {
		errs = append(errs, r.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register the metrics of runs: %w", err)
	}
	return m, nil
}

func (m *metrics) started(run *tidemill.Run, number int, at time.Time) {
	m.starts.WithLabelValues(run.Recipe).Inc()
	if number == 1 {
		m.waits.WithLabelValues(run.Recipe).Observe(max(0, at.Sub(run.Asking)).Seconds())
	}
}

func (m *metrics) ended(run *tidemill.Run, o tidemill.Outcome, at time.Time) {
	m.ends.WithLabelValues(run.Recipe, string(o)).Inc()
	if a := run.Attempt(); a != nil {
		m.took.WithLabelValues(run.Recipe).Observe(max(0, at.Sub(a.Started)).Seconds())
	}
}
