package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev/broker"
)

// Producer makes metrics of what a producer counts, under a name that says what
// it is for. Register it, and unregister it when the producer is closed for
// another of the same name.
func Producer(name string, p *broker.Producer) prometheus.Collector {
	type stats = broker.ProducerStats
	of := prometheus.Labels{"producer": name}
	c := snapshot[stats]{take: p.Stats}
	add := func(kind prometheus.ValueType, name, help string, value func(*stats) float64) {
		c.metrics = append(c.metrics, metric[stats]{prometheus.NewDesc("tidemill_producer_"+name, help, nil, of), kind, value, nil})
	}
	events := prometheus.NewDesc("tidemill_producer_events_total", "Events by what became of them: stored is acknowledged by all in-sync replicas; failed was given up; in-doubt was given up and may stand on the stream all the same; refused was never accepted.", []string{"outcome"}, of)
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
	add(counter, "requests_total", "Requests to Kafka, whatever came of them.", func(s *stats) float64 { return float64(s.Requests) })
	add(counter, "request_seconds_total", "Time that those requests took, all together.", func(s *stats) float64 { return s.RequestTime.Seconds() })
	add(gauge, "buffered_events", "Events that have no answer yet.", func(s *stats) float64 { return float64(s.BufferedEvents) })
	add(gauge, "buffered_bytes", "Bytes of events that have no answer yet.", func(s *stats) float64 { return float64(s.BufferedBytes) })
	add(gauge, "waiting", "Callers that wait for room in the buffer.", func(s *stats) float64 { return float64(s.Waiting) })
	return c
}
