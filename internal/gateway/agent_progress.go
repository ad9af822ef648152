package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
)

// agentProgress publishes how far an attempt has come, and notes the newest for
// those who look. It is asked of the ledger a moment ago whether the attempt
// counts: a step that a zombie tells within that moment is one more line in a
// stream of a day, and names its attempt.
func (g *Gateway) agentProgress(w http.ResponseWriter, r *request) *api.Problem {
	steps, p := g.readSteps(r)
	if p != nil || len(steps) == 0 {
		return g.taken(w, p)
	}
	if !g.attempts.step(r.attempt.name, len(steps), time.Now()) {
		return tooManySteps()
	}
	g.extend(r, g.opt.Limits.Ack)
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Ack)
	defer cancel()
	if err := g.publishSteps(ctx, r.attempt, steps); err != nil {
		if ctx.Err() == nil {
			g.log.Warn("progress cannot be published", "run", r.attempt.run.ID, "reason", err)
		}
		return unavailable("the progress cannot be published now; send it again a little later, or the newest alone")
	}
	newest, err := json.Marshal(steps[len(steps)-1])
	if err == nil {
		err = g.opt.Ledger.Tell(ctx, r.attempt.run.ID, newest)
	}
	if err != nil {
		return g.unled(ctx, err)
	}
	return g.taken(w, nil)
}

// taken is the answer to what has nothing to answer.
func (g *Gateway) taken(w http.ResponseWriter, p *api.Problem) *api.Problem {
	if p == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return p
}

// readSteps reads a step a line.
func (g *Gateway) readSteps(r *request) ([]api.Progress, *api.Problem) {
	body, p := g.body(r, api.MaxSteps*api.MaxStep, tooManyLines)
	if p != nil {
		return nil, p
	}
	var steps []api.Progress
	for line := range bytes.Lines(body) {
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		if len(steps) == api.MaxSteps || len(line) > api.MaxStep {
			return nil, tooManyLines()
		}
		step, err := readStep(line, r.attempt.number, time.Now())
		if err != nil {
			return nil, invalidRequest(fmt.Sprintf("line %d: %s; send an object with step, total and metrics a line", len(steps)+1, clip(err.Error())))
		}
		steps = append(steps, step)
	}
	return steps, nil
}

func tooManyLines() *api.Problem {
	return tooLarge(fmt.Sprintf("progress is told in at most %d lines of %d bytes: send the newest", api.MaxSteps, api.MaxStep))
}

// readStep reads one. Which attempt tells it is not for the attempt to say.
func readStep(line []byte, attempt int, now time.Time) (step api.Progress, err error) {
	err = json.Unmarshal(line, &step)
	if step.Time.IsZero() || step.Time.After(now) {
		step.Time = now
	}
	step.Attempt = attempt
	return step, err
}

// publishSteps waits until Kafka has all of them.
func (g *Gateway) publishSteps(ctx context.Context, b bearer, steps []api.Progress) error {
	told := make(chan error, len(steps))
	chain := chainOf(b.run)
	for i := range steps {
		v, err := g.stepEvent(b, &steps[i], chain)
		if err != nil {
			return err
		}
		g.opt.Producer.Send(ctx, tidemill.StreamProgress, v, func(_ broker.Receipt, err error) { told <- err })
	}
	var failed []error
	for range steps {
		select {
		case err := <-told:
			failed = append(failed, err)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return errors.Join(failed...)
}

// stepEvent is a step as an event. Its id follows from what it tells, so that a
// step that is told again, for the answer was lost, is known to be the same.
func (g *Gateway) stepEvent(b bearer, s *api.Progress, chain []broker.Attribute) (*broker.View, error) {
	data, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("write a step of attempt %s: %w", b.name, err)
	}
	run, at := b.run, s.Time.UTC().Format(time.RFC3339Nano)
	return &broker.View{
		ID:     tidemill.ID("progressed", b.name, at, strconv.FormatFloat(s.Step, 'g', -1, 64)),
		Source: g.names().Source("gateway"), Type: tidemill.TypeRunProgressed, Subject: run.Key, Key: []byte(tidemill.RunKey(run.Recipe, run.Key)),
		Time: at, DataContentType: jsonType, DataSchema: tidemill.Schema(tidemill.TypeRunProgressed), Data: data,
		Extensions: append([]broker.Attribute{
			{Name: tidemill.AttrRecipe, Value: run.Recipe}, {Name: tidemill.AttrRun, Value: run.ID}, {Name: tidemill.AttrAttempt, Value: strconv.Itoa(b.number)},
		}, chain...)}, nil
}

// chainOf is what an event of a run inherits from its newest cause, as its facts
// do.
func chainOf(run *tidemill.Run) []broker.Attribute {
	var of struct {
		Correlation string `json:"correlationid"`
		Trace       string `json:"traceparent"`
	}
	_ = json.Unmarshal(run.Event, &of) // what is no event has no chain
	if of.Correlation == "" {
		of.Correlation = run.Newest.ID
	}
	chain := []broker.Attribute{{Name: tidemill.AttrCausationID, Value: run.Newest.ID}, {Name: tidemill.AttrCausationSource, Value: run.Newest.Source},
		{Name: tidemill.AttrCorrelationID, Value: of.Correlation}}
	if of.Trace != "" {
		chain = append(chain, broker.Attribute{Name: tidemill.AttrTraceParent, Value: of.Trace})
	}
	return chain
}

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
