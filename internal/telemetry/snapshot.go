package telemetry

import "github.com/prometheus/client_golang/prometheus"

// snapshot turns what something says of itself at one moment into metrics. The
// broker counts for itself and does not know Prometheus; here is where its
// numbers get names.
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
