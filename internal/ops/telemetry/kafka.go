package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev/broker"
)

const (
	// streamsEvery is the shortest time between two requests to Kafka, for any number of scrapes.
	streamsEvery = 15 * time.Second
	// streamsPatience is how long a scrape waits for the answer. Prometheus gives up after ten
	// seconds, and would lose all other metrics too.
	streamsPatience = 4 * time.Second
)

// Streams returns metrics of the install's streams. A scrape asks Kafka only if the last answer is
// old enough. While Kafka is down, the last answer is served, and tidemill_stream_age_seconds is
// its age. A group has a lag only if reads says that something of the config reads by it: Kafka is kept from forgetting
// groups, so that of a removed scorer stays, and its lag grows.
func Streams(b *broker.Broker, reads func(group string) bool, log *slog.Logger) prometheus.Collector {
	return newStreams(func(ctx context.Context) ([]broker.StreamInfo, error) {
		all, err := b.Streams(ctx)
		for i := range all {
			all[i].Groups = slices.DeleteFunc(all[i].Groups, func(g broker.GroupLag) bool { return !reads(g.Group) })
		}
		return all, err
	}, log)
}

type streams struct {
	ask func(context.Context) ([]broker.StreamInfo, error)
	log *slog.Logger

	partitions, records, written, bytes, lag, lost, age *prometheus.Desc

	turn    chan struct{} // full while a scrape asks Kafka; other scrapes wait for the same answer
	asked   time.Time
	failing bool
	last    []broker.StreamInfo
	at      time.Time // time of last; zero before the first answer
}

func newStreams(ask func(context.Context) ([]broker.StreamInfo, error), log *slog.Logger) *streams {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("tidemill_stream_"+name, help, labels, nil)
	}
	return &streams{ask: ask, log: log, turn: make(chan struct{}, 1),
		partitions: desc("partitions", "Partitions of the stream.", "stream"),
		records:    desc("records", "Records that the stream keeps; the markers of transactions count too.", "stream"),
		written:    desc("written_total", "Records that the stream has been given since it was made.", "stream"),
		bytes:      desc("bytes", "Bytes on the disks of the partitions' leaders; absent where Kafka does not say.", "stream"),
		lag:        desc("lag", "Events that a group has yet to read, estimated where transactions have markers among them.", "stream", "group"),
		lost:       desc("lost", "Records that retention has deleted before a group has read them.", "stream", "group"),
		age:        desc("age_seconds", "Age of all tidemill_stream metrics; 15 s or more without scrapes, or while Kafka is down."),
	}
}

func (s *streams) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{s.partitions, s.records, s.written, s.bytes, s.lag, s.lost, s.age} {
		ch <- d
	}
}

func (s *streams) Collect(ch chan<- prometheus.Metric) {
	infos, at := s.newestStreams()
	if at.IsZero() {
		return
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	gauge(s.age, time.Since(at).Seconds())
	for _, i := range infos {
		gauge(s.partitions, float64(len(i.Partitions)), i.Name)
		gauge(s.records, float64(i.Records), i.Name)
		ch <- prometheus.MustNewConstMetric(s.written, prometheus.CounterValue, float64(ends(i)), i.Name)
		if i.Bytes >= 0 {
			gauge(s.bytes, float64(i.Bytes), i.Name)
		}
		for _, g := range i.Groups {
			gauge(s.lag, float64(g.Lag), i.Name, g.Group)
			gauge(s.lost, float64(g.Lost), i.Name, g.Group)
		}
	}
}

func ends(i broker.StreamInfo) (sum int64) {
	for _, p := range i.Partitions {
		sum += p.End
	}
	return sum
}

// newestStreams returns Kafka's last answer, and sends a new request first if the last one is old
// enough. A failed request counts as the last one, because otherwise every scrape would wait while
// Kafka is down.
func (s *streams) newestStreams() ([]broker.StreamInfo, time.Time) {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	if !s.asked.IsZero() && time.Since(s.asked) < streamsEvery {
		return s.last, s.at
	}
	ctx, cancel := context.WithTimeout(context.Background(), streamsPatience)
	defer cancel()
	infos, err := s.ask(ctx)
	s.asked = time.Now()
	if err == nil {
		s.last, s.at = infos, s.asked
	}
	s.reportError(err)
	return s.last, s.at
}

// reportError logs once that the streams cannot be read, and once that they can be read again.
func (s *streams) reportError(err error) {
	if s.failing == (err != nil) {
		return
	}
	s.failing = err != nil
	if err != nil {
		s.log.Warn("metrics: reading the streams failed; their metrics are out of date", "reason", err)
		return
	}
	s.log.Info("metrics: the metrics of streams are up to date again")
}

// Producer returns metrics of a producer's counts, with a name for its purpose. Unregister it
// before another producer of the same name is registered.
func Producer(name string, p *broker.Producer) prometheus.Collector {
	type stats = broker.ProducerStats
	of := prometheus.Labels{"producer": name}
	c := snapshot[stats]{take: p.Stats}
	add := func(kind prometheus.ValueType, name, help string, value func(*stats) float64) {
		c.metrics = append(c.metrics, metric[stats]{prometheus.NewDesc("tidemill_producer_"+name, help, nil, of), kind, value, nil})
	}
	events := prometheus.NewDesc("tidemill_producer_events_total", "Events by outcome: stored is acknowledged by all in-sync replicas; failed was given up; in-doubt was given up, but may be on the stream; refused was never accepted.", []string{"outcome"}, of)
	for outcome, value := range map[string]func(*stats) float64{
		"stored":   func(s *stats) float64 { return float64(s.Events) },
		"failed":   func(s *stats) float64 { return float64(s.Failed - s.InDoubt) },
		"in-doubt": func(s *stats) float64 { return float64(s.InDoubt) },
		"refused":  func(s *stats) float64 { return float64(s.Refused) },
	} {
		c.metrics = append(c.metrics, metric[stats]{events, prometheus.CounterValue, value, []string{outcome}})
	}
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	add(counter, "stored_bytes_total", "Bytes of stored events, before compression.", func(s *stats) float64 { return float64(s.Bytes) })
	add(counter, "batches_total", "Batches of stored events.", func(s *stats) float64 { return float64(s.Batches) })
	add(counter, "retries_total", "Times a batch was put off to be sent again.", func(s *stats) float64 { return float64(s.Retries) })
	add(counter, "requests_total", "Requests to Kafka, successful or not.", func(s *stats) float64 { return float64(s.Requests) })
	add(counter, "request_seconds_total", "Time that those requests took, all together.", func(s *stats) float64 { return s.RequestTime.Seconds() })
	add(gauge, "buffered_events", "Events that have no answer yet.", func(s *stats) float64 { return float64(s.BufferedEvents) })
	add(gauge, "buffered_bytes", "Bytes of events that have no answer yet.", func(s *stats) float64 { return float64(s.BufferedBytes) })
	add(gauge, "waiting", "Callers that wait for room in the buffer.", func(s *stats) float64 { return float64(s.Waiting) })
	return c
}

// snapshot turns the counts of one moment into metrics. The broker does not import Prometheus, so
// the metrics of its counts are named here.
type snapshot[S any] struct {
	take    func() S
	metrics []metric[S]
}

type metric[S any] struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*S) float64
	label []string // values of desc's labels
}

func (c snapshot[S]) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range c.metrics {
		ch <- m.desc
	}
}

func (c snapshot[S]) Collect(ch chan<- prometheus.Metric) {
	s := c.take()
	for _, m := range c.metrics {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(&s), m.label...)
	}
}

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
