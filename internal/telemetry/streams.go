package telemetry

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev/broker"
)

const (
	// streamsEvery is how often Kafka is asked at most, however many scrape.
	streamsEvery = 15 * time.Second
	// streamsPatience is how long a scrape waits for the answer. Prometheus gives
	// up after ten seconds, and all other metrics with it.
	streamsPatience = 4 * time.Second
)

// Streams makes metrics of the state of the install's streams. Kafka is asked
// for it when somebody scrapes, and not at every scrape. While Kafka is away the
// last answer stands, and tidemill_stream_age_seconds says how old it is.
func Streams(b *broker.Broker, log *slog.Logger) prometheus.Collector {
	return newStreams(b.Streams, log)
}

type streams struct {
	ask func(context.Context) ([]broker.StreamInfo, error)
	log *slog.Logger

	partitions, records, written, bytes, lag, lost, age *prometheus.Desc

	turn    chan struct{} // filled while Kafka is asked: other scrapes wait for the same answer
	asked   time.Time
	failing bool
	last    []broker.StreamInfo
	at      time.Time // of last; zero while there has been no answer
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
		lag:        desc("lag", "Records that a group has yet to read.", "stream", "group"),
		lost:       desc("lost", "Records that retention has deleted before a group has read them.", "stream", "group"),
		age:        desc("age_seconds", "Age of all tidemill_stream metrics: 15 s or more while nobody scrapes or Kafka is away."),
	}
}

func (s *streams) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{s.partitions, s.records, s.written, s.bytes, s.lag, s.lost, s.age} {
		ch <- d
	}
}

func (s *streams) Collect(ch chan<- prometheus.Metric) {
	infos, at := s.newest()
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

// newest is the last answer, after asking for another if it is time to. A
// question that fails counts as one, or a Kafka that is away would cost every
// scrape the whole wait.
func (s *streams) newest() ([]broker.StreamInfo, time.Time) {
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
	s.tell(err)
	return s.last, s.at
}

// tell logs that the streams cannot be looked at, or can again, once.
func (s *streams) tell(err error) {
	if s.failing == (err != nil) {
		return
	}
	s.failing = err != nil
	if err != nil {
		s.log.Warn("the streams' metrics stay as they are", "reason", err)
		return
	}
	s.log.Info("the streams' metrics are up to date again")
}
