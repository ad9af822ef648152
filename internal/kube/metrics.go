package kube

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what operators see of what a process does in the cluster.
type metrics struct {
	ends, removed, scalings *prometheus.CounterVec
	failures                prometheus.Counter
	replicas                *prometheus.GaugeVec
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		ends: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_cluster_ends_total",
			Help: "Ends of attempts that this keeper told of since no agent could, by what has happened: config, deadline, deleted, evicted, failed, image, install, node-lost, out-of-memory, preempted, refused, silent or start."}, []string{"reason"}),
		removed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_cluster_removed_total",
			Help: "Jobs that this keeper has removed: finished, or orphan, which count no more."}, []string{"reason"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemill_cluster_failures_total",
			Help: "Looks at an attempt in the cluster that failed and were tried again."}),
		scalings: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_cluster_scalings_total",
			Help: "Times that this keeper has changed how many replicas a scorer has, up or down."}, []string{"direction", "scorer"}),
		replicas: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tidemill_cluster_scorer_replicas",
			Help: "Replicas that a scorer should have, as this keeper sees it."}, []string{"scorer"}),
	}
	if r == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.ends, m.removed, m.failures, m.scalings, m.replicas} {
		errs = append(errs, r.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register the metrics of the cluster: %w", err)
	}
	return m, nil
}
