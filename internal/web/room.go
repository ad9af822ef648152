package web

import (
	"net/http"
	"sync"

	"tidemill.dev/internal/api"
)

// room bounds the memory of the requests under way, of all and of each caller.
// Nobody waits for it: who is refused can come again, and who waited would hold
// a connection.
type room struct {
	limits *Limits

	mu      sync.Mutex
	taken   int64
	callers map[string]int64
}

// callersKept is how many callers without a request are remembered, so that
// those who come again and again cost no allocation.
const callersKept = 1024

// take takes n bytes for a caller. One without a name is everybody, and so has
// no share of its own.
func (o *room) take(caller string, n int64) *api.Problem {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.taken+n > o.limits.UnderWay:
		return busy(o.limits.UnderWay)
	case caller == "":
	case o.callers[caller]+n > o.limits.Caller:
		return callerBusy(o.limits.Caller)
	default:
		o.callers[caller] += n
	}
	o.taken += n
	return nil
}

func (o *room) give(caller string, n int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.taken -= n
	if caller == "" {
		return
	}
	if o.callers[caller] -= n; o.callers[caller] == 0 && len(o.callers) > callersKept {
		delete(o.callers, caller)
	}
}

// bytes is how much is taken now.
func (o *room) bytes() float64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return float64(o.taken)
}

// charge has a request pay for n bytes more. They are given back when it has
// been answered.
func (g *Gateway) charge(r *request, n int) *api.Problem {
	name := r.name()
	if p := g.room.take(name, int64(n)); p != nil {
		if p.Status == http.StatusTooManyRequests {
			g.metrics.refused.share.Inc()
		} else {
			g.metrics.refused.room.Inc()
		}
		return p
	}
	r.charged += int64(n)
	return nil
}
