package ledger

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what operators see.
type metrics struct {
	facts     prometheus.Counter
	illegible prometheus.Counter
	refills   prometheus.Counter
	batches   prometheus.Histogram
	behind    prometheus.GaugeFunc
}

func newMetrics(r prometheus.Registerer, status func() Status) (*metrics, error) {
	m := &metrics{
		facts: prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemill_ledger_facts_total",
			Help: "Facts that this process has folded into Redis."}),
		illegible: prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemill_ledger_illegible_facts_total",
			Help: "Facts that could not be read and were passed over."}),
		refills: prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemill_ledger_refills_total",
			Help: "Times that Redis was found to have forgotten facts and was filled in again."}),
		batches: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tidemill_ledger_batch_seconds",
			Help:    "How long it took to fold a batch of facts into Redis.",
			Buckets: []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1}}),
		behind: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tidemill_ledger_behind_facts",
			Help: "Facts that are to be folded in before anything may be decided; 0 once it has caught up."},
			func() float64 { return float64(status().Behind) }),
	}
	if r == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.facts, m.illegible, m.refills, m.batches, m.behind} {
		errs = append(errs, r.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register the metrics of the ledger: %w", err)
	}
	return m, nil
}
