package telemetry

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev/broker"
)

// Lag reports how much of its streams a task of the observer has not read.
type Lag struct {
	Registerer prometheus.Registerer // nil: nothing is reported
	Task       string                // name of the task, such as drift.intents
	Broker     *broker.Broker
}

// Report reports the lag until stop is called. Positions returns where the task reads.
func (l Lag) Report(positions func() []broker.Position) (stop func(), err error) {
	if l.Registerer == nil {
		return func() {}, nil
	}
	of := prometheus.Labels{"task": l.Task}
	c := &lag{b: l.Broker, positions: positions,
		events:  prometheus.NewDesc("tidemill_observer_lag", "Events that a task of the observer has yet to read.", []string{"stream"}, of),
		seconds: prometheus.NewDesc("tidemill_observer_lag_seconds", "Age of the first event that a task of the observer has not read, in the partition with most of them; 0 if it has read all.", nil, of)}
	if err := l.Registerer.Register(c); err != nil {
		return nil, fmt.Errorf("register the lag of %s: %w", l.Task, err)
	}
	return func() { l.Registerer.Unregister(c) }, nil
}

// lag collects the lag of one task. It asks Kafka at most every streamsEvery, for any number of scrapes.
type lag struct {
	b               *broker.Broker
	positions       func() []broker.Position
	events, seconds *prometheus.Desc

	mu    sync.Mutex
	asked time.Time
	last  []prometheus.Metric // nil while Kafka does not answer
}

func (l *lag) Describe(ch chan<- *prometheus.Desc) {
	ch <- l.events
	ch <- l.seconds
}

func (l *lag) Collect(ch chan<- prometheus.Metric) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.asked.IsZero() || time.Since(l.asked) >= streamsEvery {
		ctx, cancel := context.WithTimeout(context.Background(), streamsPatience)
		l.last, _ = l.ask(ctx) // the streams' metrics log that Kafka does not answer
		cancel()
		l.asked = time.Now()
	}
	for _, m := range l.last {
		ch <- m
	}
}

func (l *lag) ask(ctx context.Context) ([]prometheus.Metric, error) {
	behind, ends := map[string]int64{}, map[string][]broker.Position{}
	var worst broker.Position
	most := int64(0)
	for _, at := range l.positions() {
		if ends[at.Stream] == nil {
			all, err := l.b.Ends(ctx, at.Stream)
			if err != nil {
				return nil, err
			}
			ends[at.Stream] = all
		}
		n := int64(0)
		for _, end := range ends[at.Stream] {
			if end.Partition == at.Partition {
				n = max(0, end.Offset-at.Offset)
			}
		}
		if behind[at.Stream] += n; n > most {
			most, worst = n, at
		}
	}
	seconds := 0.0
	if most > 0 {
		_, err := l.b.Read(ctx, worst, 1, func(e *broker.Incoming) bool {
			seconds = max(0, time.Since(e.Time).Seconds())
			return false
		})
		if err != nil {
			return nil, err
		}
	}
	var all []prometheus.Metric
	for stream, n := range behind {
		all = append(all, prometheus.MustNewConstMetric(l.events, prometheus.GaugeValue, float64(n), stream))
	}
	return append(all, prometheus.MustNewConstMetric(l.seconds, prometheus.GaugeValue, seconds)), nil
}
