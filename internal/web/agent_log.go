package web

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"tidemill.dev"
	"tidemill.dev/internal/api"
)

// agentLog takes a chunk of an attempt's log. The same chunk sent twice is there
// once.
//
// The ledger was asked before the body was read, so a chunk may come to lie in
// the store an instant after its attempt was superseded. That harms nobody: the
// log is that attempt's own, and says what it did.
func (g *Gateway) agentLog(w http.ResponseWriter, r *request) *api.Problem {
	q, p := r.query([]string{"seq", "part"})
	if p != nil {
		return p
	}
	seq, err := strconv.Atoi(q.Get("seq"))
	if err != nil || seq < 0 || seq > mostChunks {
		return badParameter("seq", fmt.Sprintf("%q is no number of a chunk; count from 0", clip(q.Get("seq"))))
	}
	var plan tidemill.Plan
	if p := g.orderedPlan(r, &plan); p != nil {
		return p
	}
	chunk, p := g.body(r, api.MaxLogChunk, func() *api.Problem {
		return tooLarge(fmt.Sprintf("a chunk of the log may have %d bytes: send it in parts", api.MaxLogChunk))
	})
	if p != nil {
		return p
	}
	part := q.Get("part")
	if part != "" && !hasPart(&plan, part) {
		return badParameter("part", fmt.Sprintf("%q is none of those that work on the attempt; give w1 or ps0, say, and nothing for the first worker", clip(part)))
	}
	if !g.attempts.log(r.attempt.name+part, seq, len(chunk), mostLog(&plan)) {
		return tooLarge(fmt.Sprintf("the log of an attempt of this run may have %d bytes: say that the rest is left out, and send no more", plan.MaxLog))
	}
	ctx, cancel := g.toTheEnd(r)
	defer cancel()
	put := g.opt.Store.PutLog
	if part != "" {
		put = func(ctx context.Context, run string, attempt, seq int, chunk []byte) error {
			return g.opt.Store.PutPartLog(ctx, run, attempt, part, seq, chunk)
		}
	}
	if err := put(ctx, r.attempt.run.ID, r.attempt.number, seq, chunk); err != nil {
		return g.storeFault("take the log of run "+r.attempt.run.ID, err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// hasPart tells whether a plan has somebody of a name, who is not the first
// worker.
func hasPart(plan *tidemill.Plan, name string) bool {
	servers := 0
	if plan.Servers != nil {
		servers = plan.Servers.Count
	}
	for _, of := range []struct {
		begin     string
		from, end int
	}{{"ps", 0, servers}, {"w", 1, plan.Workers}} {
		if text, ok := strings.CutPrefix(name, of.begin); ok {
			n, err := strconv.Atoi(text)
			return err == nil && n >= of.from && n < of.end && strconv.Itoa(n) == text
		}
	}
	return false
}

// mostChunks bounds their number: even of a byte each they are a large log.
const mostChunks = 1 << 20

// mostLog is when the gateway stops an agent that does not itself: it may say
// that the log was cut.
func mostLog(p *tidemill.Plan) int64 {
	const slack = api.MaxLogChunk
	if p.MaxLog <= 0 {
		return 1 << 62
	}
	return p.MaxLog + slack
}
