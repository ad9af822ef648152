package deliver

import (
	"sync"
	"sync/atomic"
	"time"
)

// tally counts what became of a trigger's events.
type tally struct {
	deliveredN, failedN, refusedN, lettersN, repliesN atomic.Uint64
	inFlight                                          atomic.Int64

	errMu   sync.Mutex
	lastErr string
	lastAt  time.Time
	latency func(seconds float64) // observes; nil where nobody does
}

func (t *tally) attempted(o *outcome) {
	switch o.kind {
	case delivered:
		t.repliesN.Add(uint64(len(o.replies)))
		return
	case again:
		t.failedN.Add(1)
	default:
		t.refusedN.Add(1)
	}
	t.errMu.Lock()
	t.lastErr, t.lastAt = o.attempt.Error, o.attempt.At
	t.errMu.Unlock()
}

func (t *tally) delivered(took time.Duration) {
	t.deliveredN.Add(1)
	if t.latency != nil {
		t.latency(took.Seconds())
	}
}

func (t *tally) deadLettered(reason string) {
	t.lettersN.Add(1)
}

func (t *tally) lastError() (string, time.Time) {
	t.errMu.Lock()
	defer t.errMu.Unlock()
	return t.lastErr, t.lastAt
}
