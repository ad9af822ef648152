package web

import (
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev/internal/api"
)

// tails are those that are open. Each holds a connection to Kafka and some
// megabytes, so they are bounded, and one caller does not get all of them.
type tails struct {
	limits *Limits
	mu     sync.Mutex
	open   int
	of     map[string]int // callers with a name
	ended  *prometheus.CounterVec
	events prometheus.Counter
}

// Why a tail ended.
const (
	tailEnded   = "end"     // it was read to its end or its limit
	tailGone    = "gone"    // the reader went away
	tailSlow    = "slow"    // the reader took nothing and was cut off
	tailRefused = "refused" // the reader's token or role is gone
	tailClosing = "closing" // the gateway closes
	tailFailed  = "failed"  // the stream cannot be read any more
)

func newTails(limits *Limits, to prometheus.Registerer) (*tails, error) {
	t := &tails{limits: limits, of: map[string]int{},
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_gateway_tails_ended_total",
			Help: "Tails that ended, by reason: end, gone, slow (cut off), refused (may read no more), closing or failed."}, []string{"reason"}),
		events: prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemill_gateway_tailed_events_total",
			Help: "Events sent to the readers of tails."})}
	for _, reason := range []string{tailEnded, tailGone, tailSlow, tailRefused, tailClosing, tailFailed} {
		t.ended.WithLabelValues(reason)
	}
	for _, c := range []prometheus.Collector{t.ended, t.events,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tidemill_gateway_tails",
			Help: "Tails open now."}, t.count),
	} {
		if err := to.Register(c); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (t *tails) count() float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return float64(t.open)
}

// enter lets a caller in, unless there are too many. One without a name is
// everybody, and so has no share of its own.
func (t *tails) enter(caller string) *api.Problem {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.open >= t.limits.Tails:
		return unavailable(fmt.Sprintf("%d tails are open, and more are not served at once; come back when one has ended", t.limits.Tails))
	case caller == "":
	case t.of[caller] >= t.limits.OwnTails:
		return callerTails(t.limits.OwnTails)
	default:
		t.of[caller]++
	}
	t.open++
	return nil
}

// leave makes room for another. Whoever gets in by that finds the one before
// counted.
func (t *tails) leave(caller, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended.WithLabelValues(reason).Inc()
	t.open--
	if t.of[caller]--; t.of[caller] <= 0 {
		delete(t.of, caller)
	}
}
