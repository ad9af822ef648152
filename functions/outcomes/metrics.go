package outcomes

import (
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics reports what one scorer's owner has done.
type metrics struct {
	registerer    prometheus.Registerer
	events, known *prometheus.Desc
	segments      *prometheus.Desc

	mu      sync.Mutex
	n       counts
	entries int
	files   int
}

func newMetrics(s *session) (*metrics, error) {
	desc := func(name, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc("tidemill_outcomes_"+name, help, more, prometheus.Labels{"scorer": s.Config.Name})
	}
	m := &metrics{registerer: s.Registerer,
		events:   desc("events_total", "Answers and labels, by outcome: answer, label (read), joined, assumed, corrected, repeated, late, unmatched, unreadable, forgotten or crowded.", "outcome"),
		known:    desc("waiting", "Entries of answers and labels that are kept, in memory and on disk; one that changed may count twice."),
		segments: desc("files", "Files of entries on disk."),
	}
	if m.registerer == nil {
		return m, nil
	}
	if err := m.registerer.Register(m); err != nil {
		return nil, fmt.Errorf("register the metrics of outcomes: %w", err)
	}
	return m, nil
}

func (m *metrics) close() {
	if m.registerer != nil {
		m.registerer.Unregister(m)
	}
}

// add adds the counts since the last call.
func (m *metrics) add(s *session) {
	n := &s.join.n
	m.mu.Lock()
	defer m.mu.Unlock()
	m.n.answers += n.answers
	m.n.labels += n.labels
	m.n.joined += n.joined
	m.n.assumed += n.assumed
	m.n.corrected += n.corrected
	m.n.repeated += n.repeated
	m.n.late += n.late
	m.n.unmatched += n.unmatched
	m.n.unreadable += n.unreadable
	m.n.forgotten += n.forgotten
	m.n.crowded += n.crowded
	*n = counts{}
	m.entries, m.files = s.index.count(), len(s.index.segments)
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.events, m.known, m.segments} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	n, entries, files := m.n, m.entries, m.files
	m.mu.Unlock()
	for _, c := range []struct {
		outcome string
		n       uint64
	}{{"answer", n.answers}, {"label", n.labels}, {"joined", n.joined}, {"assumed", n.assumed}, {"corrected", n.corrected}, {"repeated", n.repeated},
		{"late", n.late}, {"unmatched", n.unmatched}, {"unreadable", n.unreadable}, {"forgotten", n.forgotten}, {"crowded", n.crowded}} {
		ch <- prometheus.MustNewConstMetric(m.events, prometheus.CounterValue, float64(c.n), c.outcome)
	}
	ch <- prometheus.MustNewConstMetric(m.known, prometheus.GaugeValue, float64(entries))
	ch <- prometheus.MustNewConstMetric(m.segments, prometheus.GaugeValue, float64(files))
}
