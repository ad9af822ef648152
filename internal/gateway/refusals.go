package gateway

import (
	"net/http"
	"sync"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/internal/gateway/access"
)

const (
	// refusalsKept bounds the memory for callers, whose number an identity provider decides.
	refusalsKept = 1000
	// refusalsQuiet is the time for which refusals of one caller on one route are only counted.
	refusalsQuiet = 30 * time.Second
)

// refusals counts what callers tried to do without the right to do it. The log gets the first
// refusal of a caller on a route at once, and later ones as a number, so that a caller cannot fill
// the log.
type refusals struct {
	mu  sync.Mutex
	all map[refusal]*refusalCount
}

type refusal struct{ by, route string }

type refusalCount struct {
	times int       // refusals since the last line of the log
	quiet time.Time // time until which nothing is logged
}

// add counts a refusal, and returns the number for the log; 0 if nothing is logged now.
func (f *refusals) add(one refusal, now time.Time) (times int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.all[one]
	if c == nil {
		if f.all == nil || len(f.all) >= refusalsKept {
			f.all = map[refusal]*refusalCount{}
		}
		c = &refusalCount{}
		f.all[one] = c
	}
	c.times++
	if now.Before(c.quiet) {
		return 0
	}
	times, c.times, c.quiet = c.times, 0, now.Add(refusalsQuiet)
	return times
}

// noteRefusal counts and logs a problem that says that the caller lacks a right. Refused reads are
// not counted, because a read changes nothing.
func (g *Gateway) noteRefusal(r *request, role access.Role, route string, p *api.Problem) {
	if p == nil || p.Status != http.StatusForbidden || r.caller == nil {
		return
	}
	switch role {
	case access.Publish, access.Operate, access.Approve:
	default:
		return
	}
	if times := g.refusals.add(refusal{r.callerName(), route}, time.Now()); times > 0 {
		g.log.Warn("gateway: a caller lacks a right; its request is refused", "by", r.callerName(), "route", route, "reason", p.Detail, "times", times)
	}
}
