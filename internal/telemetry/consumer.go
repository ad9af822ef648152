package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev/broker"
)

// Consumer makes metrics of what a consumer counts, under a name that says what
// it is for. Register it, and unregister it when the consumer is closed for
// another of the same name.
func Consumer(name string, c *broker.Consumer) prometheus.Collector {
	type stats = broker.ConsumerStats
	of := prometheus.Labels{"consumer": name}
	all := snapshot[stats]{take: c.Stats}
	add := func(kind prometheus.ValueType, name, help string, value func(*stats) float64) {
		all.metrics = append(all.metrics, metric[stats]{prometheus.NewDesc("tidemill_consumer_"+name, help, nil, of), kind, value, nil})
	}
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	add(counter, "events_total", "Events handed out.", func(s *stats) float64 { return float64(s.Events) })
	add(counter, "done_total", "Events that have been dealt with; the others of those handed out are open.", func(s *stats) float64 { return float64(s.Done) })
	add(counter, "dead_letters_total", "Dead letters written for what is no event.", func(s *stats) float64 { return float64(s.DeadLetters) })
	add(counter, "lost_total", "Offsets that were gone before they were read.", func(s *stats) float64 { return float64(s.Lost) })
	add(counter, "rebalances_total", "Generations of the group that this member has taken part in.", func(s *stats) float64 { return float64(s.Rebalances) })
	add(counter, "fetches_total", "Requests to Kafka for events, whatever came of them.", func(s *stats) float64 { return float64(s.Fetches) })
	add(counter, "fetched_bytes_total", "Bytes in the answers to those requests.", func(s *stats) float64 { return float64(s.FetchedBytes) })
	add(gauge, "partitions", "Partitions that are read here.", func(s *stats) float64 { return float64(s.Partitions) })
	add(gauge, "open_bytes", "Bytes fetched and not yet dealt with.", func(s *stats) float64 { return float64(s.OpenBytes) })
	return all
}
