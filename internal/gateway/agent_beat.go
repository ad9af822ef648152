package gateway

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/runs/rendezvous"
)

// agentBeat notes that an agent is there, and tells it whether it is to end. Of
// several that work on an attempt the first worker is the attempt: that others
// are there does not keep it from being lost.
func (g *Gateway) agentBeat(w http.ResponseWriter, r *request) *api.Problem {
	hangUp(w, r) // a body has nothing to say here
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	one, p := g.oneOf(r)
	if p != nil {
		return p
	}
	if one.isFirst() {
		if err := g.opt.Ledger.Beat(ctx, r.attempt.run.ID, r.attempt.number, time.Now()); err != nil {
			return g.unled(ctx, err)
		}
	}
	b := api.Beat{Cancel: whyCancelled(r.attempt.run)}
	if p := g.gather(ctx, r, &one, &b); p != nil {
		return p
	}
	writeJSON(w, http.StatusOK, b)
	return nil
}

// whyCancelled is why a run is to end; empty if it is not. Who asked need not
// have said why.
func whyCancelled(run *tidemill.Run) string {
	switch c := run.Cancel; {
	case c == nil:
		return ""
	case c.Reason != "":
		return c.Reason
	case c.By != "":
		return c.By + " has asked for it"
	}
	return "somebody has asked for it"
}

// member is which of several that work on an attempt a request speaks for.
type member struct {
	word rendezvous.Word
	many int // that work on it; 0 if it is alone
}

// isFirst reports whether what it says is the attempt's own word.
func (o *member) isFirst() bool { return o.many == 0 || o.word.Part == firstWorker }

const firstWorker = "w0"

// isPart reports whether a text names one of those that work on an attempt.
func isPart(text string) bool {
	number, ok := strings.CutPrefix(text, "ps")
	if !ok {
		number, ok = strings.CutPrefix(text, "w")
	}
	n, err := strconv.Atoi(number)
	return ok && err == nil && n >= 0 && n < mostParts && strconv.Itoa(n) == number
}

const mostParts = 100_000

// oneOf reads it. That there is such a one the run's plan says.
func (g *Gateway) oneOf(r *request) (o member, p *api.Problem) {
	q, p := r.query([]string{"part", "index", "ready", "over"})
	if p != nil || !q.Has("part") {
		return o, p
	}
	var plan tidemill.Plan
	if p := g.orderedPlan(r, &plan); p != nil {
		return o, p
	}
	workers, servers := max(1, plan.Workers), 0
	if plan.Servers != nil {
		servers = plan.Servers.Count
	}
	index, err := strconv.Atoi(orElse(q.Get("index"), "0"))
	if err != nil {
		return o, badParameter("index", fmt.Sprintf("%q is no number", clip(q.Get("index"))))
	}
	most := map[string]int{"worker": workers, "server": servers}[q.Get("part")]
	if index < 0 || index >= most {
		return o, badParameter("part", fmt.Sprintf("the attempt has %d workers and %d servers, and no %s %d", workers, servers, clip(q.Get("part")), index))
	}
	name := map[string]string{"worker": "w", "server": "ps"}[q.Get("part")]
	return member{many: workers + servers, word: rendezvous.Word{Part: name + strconv.Itoa(index), Ready: q.Get("ready") == "true", Over: q.Get("over") == "true"}}, nil
}

// gather tells one of several what has become of the others.
func (g *Gateway) gather(ctx context.Context, r *request, o *member, to *api.Beat) *api.Problem {
	if o.many == 0 {
		return nil
	}
	if g.opt.Muster == nil {
		return problem(api.Unavailable, http.StatusServiceUnavailable, "workers cannot gather here",
			"this gateway has no Redis where the workers of an attempt could say that they are ready: start it with --redis")
	}
	h, err := g.opt.Muster.Say(ctx, r.attempt.name, o.many, o.word)
	if err != nil {
		return g.unled(ctx, err)
	}
	to.All, to.End, to.Alone = h.All, h.End, h.Alone
	return nil
}
