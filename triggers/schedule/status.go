package schedule

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Status is the state of a controller.
type Status struct {
	Active bool
	// Err is the reason why the last attempt to become active failed. Waiting while
	// another controller is active is not an error.
	Err error
	// Delayed lists the schedules whose ticks wait because their keys are unknown, with
	// the reasons.
	Delayed map[string]error
}

type role bool

const (
	standby role = false
	active  role = true
)

// Status returns the present state.
func (k *Controller) Status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.status
	s.Delayed = maps.Clone(s.Delayed)
	return s
}

func (k *Controller) become(r role, err error) {
	k.mu.Lock()
	was := k.status
	k.status = Status{Active: bool(r), Err: err}
	k.mu.Unlock()
	if k.metrics.active.Set(0); r == active {
		k.metrics.active.Set(1)
	}
	if r == active && !was.Active {
		k.log.Info("controller: this process sends the ticks", "schedules", len(k.timetable().entries))
	}
}

// delayed records the reason why the keys of a schedule are unknown; nil if they are known.
func (k *Controller) delayed(schedule string, err error) {
	k.mu.Lock()
	_, was := k.status.Delayed[schedule]
	switch {
	case err == nil:
		delete(k.status.Delayed, schedule)
	case k.status.Delayed == nil:
		k.status.Delayed = map[string]error{schedule: err}
	default:
		k.status.Delayed[schedule] = err
	}
	k.mu.Unlock()
	switch {
	case err != nil && !was:
		k.log.Warn("controller: listing the keys of a schedule failed; retrying", "schedule", schedule, "reason", err)
	case err == nil && was:
		k.log.Info("controller: a schedule has its keys again", "schedule", schedule)
	}
}

// report counts and logs the decisions of a plan.
func (k *Controller) report(p plan, now time.Time) {
	for i := range p.ticks {
		t := &p.ticks[i]
		k.metrics.ticks.WithLabelValues(t.Schedule).Inc()
		k.metrics.late.Observe(max(0, now.Sub(t.due)).Seconds())
	}
	for _, n := range p.notes {
		switch n.what {
		case skipped:
			k.metrics.missed.WithLabelValues(n.schedule).Add(float64(n.ticks))
			k.log.Info("controller: ticks were missed; they are skipped", "schedule", n.schedule, "events", n.ticks)
		case leftOut:
			k.metrics.missed.WithLabelValues(n.schedule).Add(float64(n.ticks))
			k.log.Warn("controller: too many ticks were missed; the oldest are skipped", "schedule", n.schedule, "events", n.ticks)
		case forgot:
			k.log.Warn("controller: the marks of a schedule have expired; only its newest missed tick is sent", "schedule", n.schedule, "events", n.ticks)
		}
	}
}

// metrics are the controller's metrics. The only label is the schedule, and a config has few.
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
			Help: "1 while this process sends the ticks, 0 while another one does."}),
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
