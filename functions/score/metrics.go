package score

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// collector tells the metrics of one scorer. They are counted without it, once a
// batch, so that a scrape costs events nothing.
type collector struct {
	s                                            *Scorer
	events, latency, batch, held, aborted, swaps *prometheus.Desc
	lag, models                                  *prometheus.Desc
}

func newCollector(s *Scorer) *collector {
	desc := func(name, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc("tidemill_scorer_"+name, help, more, prometheus.Labels{"scorer": s.conf.Name})
	}
	return &collector{s: s,
		events:  desc("events_total", "Events that a scorer is done with, by outcome: scored, passed, dropped, dead-lettered or skipped.", "outcome"),
		latency: desc("latency_seconds", "From an event's place on the log until its output was committed."),
		batch:   desc("batch_events", "Events that were committed at once."),
		held:    desc("held", "Events that are parked until their models are loaded."),
		aborted: desc("aborted_total", "Transactions that were aborted; their events are scored again."),
		swaps:   desc("swaps_total", "Times that a version has scored a partition's events for the first time."),
		lag:     desc("lag", "Events that are still to be read, of the partitions that are read here."),
		models:  desc("models", "Models that events were scored by, or wait for, lately."),
	}
}

// Describe says what there is.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.events, c.latency, c.batch, c.held, c.aborted, c.swaps, c.lag, c.models} {
		ch <- d
	}
}

// latencyBounds are in milliseconds, batchBounds in events.
var (
	latencyBounds = []int64{1, 3, 5, 11, 23, 47, 95, 223, 447, 895, 3583, 14335, 57343} // read only; tops of buckets
	batchBounds   = []int64{1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 2047, 4095, 8191} // read only
)

// Collect tells how it is.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	n := &c.s.counts
	counter := func(d *prometheus.Desc, x uint64, of ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(x), of...)
	}
	gauge := func(d *prometheus.Desc, x int64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(x))
	}
	counter(c.events, n.scored.Load(), "scored")
	counter(c.events, n.passed.Load(), "passed")
	counter(c.events, n.dropped.Load(), "dropped")
	counter(c.events, n.dead.Load(), "dead-lettered")
	counter(c.events, n.skipped.Load(), "skipped")
	counter(c.aborted, n.aborted.Load())
	counter(c.swaps, n.swaps.Load())
	gauge(c.held, n.held.Load())
	gauge(c.lag, n.lag.Load())
	gauge(c.models, n.models.Load())
	histogram(ch, c.latency, n.latency, latencyBounds, 1e-3)
	histogram(ch, c.batch, n.sizes, batchBounds, 1)
}

func histogram(ch chan<- prometheus.Metric, d *prometheus.Desc, l *latencies, bounds []int64, scale float64) {
	counts, n, sum := l.histogram(bounds)
	at := make(map[float64]uint64, len(bounds))
	for i, bound := range bounds {
		at[float64(bound)*scale] = counts[i]
	}
	ch <- prometheus.MustNewConstHistogram(d, n, float64(sum)*scale, at)
}

func (s *Scorer) register() error {
	if s.o.Registerer == nil {
		return nil
	}
	s.collector = newCollector(s)
	if err := s.o.Registerer.Register(s.collector); err != nil {
		return fmt.Errorf("register the metrics of scorer %s: %w", s.conf.Name, err)
	}
	return nil
}

func (s *Scorer) unregister() {
	if s.collector != nil {
		s.o.Registerer.Unregister(s.collector)
	}
}
