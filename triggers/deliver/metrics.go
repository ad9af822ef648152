package deliver

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// counts are the dispatcher's metrics. Those of single triggers are made when
// they are asked for; no label holds more than a trigger's name.
type counts struct {
	latency      *prometheus.HistogramVec
	transactions *prometheus.CounterVec
	unread       *prometheus.CounterVec
	collector    *collector
}

func (d *Dispatcher) register() error {
	d.counts = counts{
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tidemill_trigger_latency_seconds",
			Help:    "From an event's place on the log until its subscriber had it.",
			Buckets: []float64{.001, .002, .005, .01, .02, .05, .1, .25, .5, 1, 5, 30, 120, 600, 3600}}, []string{"trigger"}),
		transactions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_parking_transactions_total",
			Help: "Transactions that park events and end parked ones, by outcome: committed or aborted."}, []string{"outcome"}),
		unread: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_trigger_replay_skipped_total",
			Help: "Offsets that a replay of the past passed over because their stream held them no more."}, []string{"trigger"}),
		collector: newCollector(d),
	}
	if d.o.Registerer == nil {
		return nil
	}
	for _, c := range d.counts.all() {
		if err := d.o.Registerer.Register(c); err != nil {
			return fmt.Errorf("register the metrics of triggers: %w", err)
		}
	}
	return nil
}

func (c *counts) all() []prometheus.Collector {
	return []prometheus.Collector{c.latency, c.transactions, c.unread, c.collector}
}

func (d *Dispatcher) unregister() {
	if d.o.Registerer == nil || d.counts.latency == nil {
		return
	}
	for _, c := range d.counts.all() {
		d.o.Registerer.Unregister(c)
	}
}

func (c *counts) latencyOf(trigger string) func(float64) {
	if c.latency == nil {
		return nil
	}
	return c.latency.WithLabelValues(trigger).Observe
}

func (c *counts) forget(trigger string) {
	if c.latency != nil {
		c.latency.DeleteLabelValues(trigger)
		c.unread.DeleteLabelValues(trigger)
	}
}

func (c *counts) skipped(trigger string, n int64) {
	if c.unread != nil {
		c.unread.WithLabelValues(trigger).Add(float64(n))
	}
}

func (c *counts) transaction(err error) {
	outcome := "committed"
	if err != nil {
		outcome = "aborted"
	}
	c.transactions.WithLabelValues(outcome).Inc()
}

// collector tells how the triggers stand when it is asked.
type collector struct {
	d                                             *Dispatcher
	events, attempts, replies, flying, parked, of *prometheus.Desc
}

func newCollector(d *Dispatcher) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("tidemill_trigger_"+name, help, append(labels, "trigger"), nil)
	}
	return &collector{d: d,
		events:   desc("events_total", "Events that ended for a trigger, by outcome: delivered or dead-lettered.", "outcome"),
		attempts: desc("failed_attempts_total", "Attempts that did not deliver."),
		replies:  desc("replies_total", "Events that a subscriber replied and that were published."),
		flying:   desc("in_flight", "Attempts under way."),
		parked:   desc("parked", "Events that are parked."),
		of:       desc("oldest_parked_seconds", "How long the oldest parked event has waited; 0 if none is parked."),
	}
}

// Describe is for Prometheus.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.events, c.attempts, c.replies, c.flying, c.parked, c.of} {
		ch <- d
	}
}

// Collect is for Prometheus.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, s := range c.d.Standing() {
		count(c.events, s.Delivered, "delivered", s.Name)
		count(c.events, s.DeadLettered, "dead-lettered", s.Name)
		count(c.attempts, s.Failed, s.Name)
		count(c.replies, s.Replies, s.Name)
		gauge(c.flying, float64(s.InFlight), s.Name)
		gauge(c.parked, float64(s.Parked), s.Name)
		age := 0.0
		if !s.OldestParked.IsZero() {
			age = max(time.Since(s.OldestParked).Seconds(), 0)
		}
		gauge(c.of, age, s.Name)
	}
}

var _ prometheus.Collector = (*collector)(nil)
