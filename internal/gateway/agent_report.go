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
	"unicode/utf8"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/runs/warmpods"
)

// agentProgress publishes the progress of an attempt, and stores the newest step for readers. The
// ledger's answer that the attempt counts may be a second old. A superseded attempt may send a step
// within that second. This does no harm, because the step names its attempt and is only one more
// line in a stream that is kept for a day.
func (g *Gateway) agentProgress(w http.ResponseWriter, r *request) *api.Problem {
	steps, p := g.readSteps(r)
	if p != nil || len(steps) == 0 {
		return g.answerNoContent(w, p)
	}
	if !g.attempts.countProgress(r.attempt.name, len(steps), time.Now()) {
		return tooManySteps()
	}
	g.extendDeadline(r, g.opt.Limits.Ack)
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Ack)
	defer cancel()
	if err := g.publishSteps(ctx, r.attempt, steps); err != nil {
		if ctx.Err() == nil {
			g.log.Warn("gateway: publishing progress failed; the agent gets a 503", "run", r.attempt.run.ID, "reason", err)
		}
		return unavailable("the progress cannot be published now; send it again later, or only the newest")
	}
	newest, err := json.Marshal(steps[len(steps)-1])
	if err == nil {
		err = g.opt.Ledger.Tell(ctx, r.attempt.run.ID, newest)
	}
	if err == nil {
		err = g.addToCurves(ctx, r.attempt.run, &steps[len(steps)-1])
	}
	if err != nil {
		return g.ledgerProblem(ctx, err)
	}
	return g.answerNoContent(w, nil)
}

// answerNoContent answers 204, or returns the problem.
func (g *Gateway) answerNoContent(w http.ResponseWriter, p *api.Problem) *api.Problem {
	if p == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return p
}

// readSteps reads one step per line.
func (g *Gateway) readSteps(r *request) ([]api.Progress, *api.Problem) {
	body, p := g.readBody(r, api.MaxSteps*api.MaxStep, tooManyLines)
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
			return nil, invalidRequest(fmt.Sprintf("line %d: %s; send one object with step, total and metrics per line", len(steps)+1, clipText(err.Error())))
		}
		steps = append(steps, step)
	}
	return steps, nil
}

func tooManyLines() *api.Problem {
	return tooLarge(fmt.Sprintf("progress may have at most %d lines of %d bytes: send the newest", api.MaxSteps, api.MaxStep))
}

// readStep reads one step. Its attempt number comes from the token, not from the body.
func readStep(line []byte, attempt int, now time.Time) (step api.Progress, err error) {
	err = json.Unmarshal(line, &step)
	if step.Time.IsZero() || step.Time.After(now) {
		step.Time = now
	}
	step.Attempt = attempt
	return step, err
}

// publishSteps waits until Kafka has acknowledged all steps.
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

// stepEvent returns a step as an event. The event's id derives from the step's content, so a step
// that is sent again after a lost answer is recognised as a repeat.
func (g *Gateway) stepEvent(b bearer, s *api.Progress, chain []broker.Attribute) (*broker.View, error) {
	data, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("write a step of attempt %s: %w", b.name, err)
	}
	run, at := b.run, s.Time.UTC().Format(time.RFC3339Nano)
	return &broker.View{
		ID:     tidemill.ID("progressed", b.name, at, strconv.FormatFloat(s.Step, 'g', -1, 64)),
		Source: g.installNames().Source("gateway"), Type: tidemill.TypeRunProgressed, Subject: run.Key, Key: []byte(tidemill.RunKey(run.Recipe, run.Key)),
		Time: at, DataContentType: jsonType, DataSchema: tidemill.Schema(tidemill.TypeRunProgressed), Data: data,
		Extensions: append([]broker.Attribute{
			{Name: tidemill.AttrRecipe, Value: run.Recipe}, {Name: tidemill.AttrRun, Value: run.ID}, {Name: tidemill.AttrAttempt, Value: strconv.Itoa(b.number)},
		}, chain...)}, nil
}

// chainOf returns the attributes that an event of a run inherits from its newest cause, as
// the run's facts do.
func chainOf(run *tidemill.Run) []broker.Attribute {
	var of struct {
		Correlation string `json:"correlationid"`
		Trace       string `json:"traceparent"`
	}
	_ = json.Unmarshal(run.Event, &of) // a cause that is not an event has no chain
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

// agentLog stores a chunk of an attempt's log. The same chunk sent twice is stored once.
//
// A chunk may come some seconds after the attempt's end. The late chunk does no harm, because the log
// belongs to that attempt and records its actions.
func (g *Gateway) agentLog(w http.ResponseWriter, r *request) *api.Problem {
	q, p := r.parseQuery([]string{"seq", "part"})
	if p != nil {
		return p
	}
	seq, err := strconv.Atoi(q.Get("seq"))
	if err != nil || seq < 0 || seq > mostChunks {
		return badParameter("seq", fmt.Sprintf("%q is not the number of a chunk; count from 0", clipText(q.Get("seq"))))
	}
	var plan tidemill.Plan
	if p := g.orderedPlan(r, &plan); p != nil {
		return p
	}
	chunk, p := g.readBody(r, api.MaxLogChunk, func() *api.Problem {
		return tooLarge(fmt.Sprintf("a chunk of the log may have %d bytes: send it in parts", api.MaxLogChunk))
	})
	if p != nil {
		return p
	}
	part := q.Get("part")
	if part != "" && !hasPart(&plan, part) {
		return badParameter("part", fmt.Sprintf("%q is not a worker of the attempt; give one such as w1 or ps0, and nothing for the first worker", clipText(part)))
	}
	if !g.attempts.countLogChunk(r.attempt.name, part, seq, len(chunk), mostLog(&plan)) {
		return tooLarge(fmt.Sprintf("the log of an attempt of this run may have %d bytes: note that the rest is left out, and stop sending", plan.MaxLog))
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

// hasPart reports whether a plan has a worker or server of that name, other than the first
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

// mostChunks bounds the number of chunks: even with one byte a chunk, so many chunks are a large
// log.
const mostChunks = 1 << 20

// mostLog is the size at which the gateway refuses more log. The agent's own limit is lower, so
// that the agent can add a note that the log was cut.
func mostLog(p *tidemill.Plan) int64 {
	const slack = api.MaxLogChunk
	if p.MaxLog <= 0 {
		return 1 << 62
	}
	return p.MaxLog + slack
}

// agentFinish records the end of an attempt. The output is stored as a tree before the fact
// is published.
//
// An agent may report an end while a controller reports the attempt as lost. Of two such facts, the
// one with the lower offset counts, so the ledger need not be asked first. An agent that did not
// get the answer sends the report again, and gets the run's state if its own report counted.
func (g *Gateway) agentFinish(w http.ResponseWriter, r *request) *api.Problem {
	var said api.Finish
	if p := g.readAgentBody(r, &said); p != nil {
		return p
	}
	if !isUnderWay(r.attempt.run, r.attempt.number) {
		return g.answerOutcome(w, r, said.Outcome)
	}
	ctx, cancel := g.toTheEnd(r)
	defer cancel()
	fact, p := g.finishedFact(ctx, r, &said)
	if p != nil {
		return p
	}
	g.awaitSight(ctx, r, &said)
	run, err := g.opt.Runs.Finish(ctx, r.attempt.run, r.attempt.number, fact)
	switch {
	case errors.Is(err, ledger.ErrCatchingUp):
		return g.ledgerProblem(ctx, err)
	case err != nil:
		g.log.Warn("gateway: publishing the end of an attempt failed; its agent gets a 503", "run", r.attempt.run.ID, "reason", err)
		return unavailable("the end of the attempt cannot be published now; report it again later: a repeated report counts once")
	}
	r.attempt.run = run
	g.forgetPoints(ctx, run, said.Files)
	return g.answerOutcome(w, r, said.Outcome)
}

// answerOutcome answers according to the outcome on the log. Only a controller reports an attempt
// as lost while its agent reports another outcome. Every other outcome comes from the agent's
// report. A success that made nothing for its dataset becomes a failure.
func (g *Gateway) answerOutcome(w http.ResponseWriter, r *request, said tidemill.Outcome) *api.Problem {
	a, ok := attemptOf(r.attempt.run, r.attempt.number)
	if !ok || a.Ended.IsZero() || a.Outcome == tidemill.OutcomeLost && said != tidemill.OutcomeLost {
		return g.supersededProblem(r.attempt)
	}
	g.attempts.forget(r.attempt.name)
	writeJSON(w, http.StatusOK, api.Finished{State: r.attempt.run.State})
	return nil
}

// finishedFact returns the fact that reports the end of an attempt.
func (g *Gateway) finishedFact(ctx context.Context, r *request, said *api.Finish) (fact tidemill.RunFinished, p *api.Problem) {
	if p := badFinish(said); p != nil {
		return fact, p
	}
	said.Result.LastLines = endOf(said.Result.LastLines, mostLastLines)
	if p := reportTooLarge(said); p != nil {
		return fact, p
	}
	tree, p := g.makeArtifact(ctx, r, said.Files)
	if p != nil {
		return fact, p
	}
	fact = tidemill.RunFinished{Attempt: r.attempt.number, Outcome: said.Outcome, Reason: beginningOf(said.Reason, mostWhy), Permanent: said.Permanent,
		Where: said.Where, Result: said.Result}
	fact.Artifact, fact.Files, fact.Bytes = tree.Tree, tree.Files, tree.Bytes
	return fact, nil
}

// reportTooLarge refuses a report that is too large for a fact, because the fact could never be
// published, and the run would never end.
func reportTooLarge(said *api.Finish) *api.Problem {
	text, err := json.Marshal(struct {
		tidemill.Where
		tidemill.Result
	}{said.Where, said.Result})
	switch {
	case err != nil:
		return invalidRequest("the report of the end cannot be written as JSON: " + clipText(err.Error()))
	case len(text) > api.MaxResult:
		return tooLarge(fmt.Sprintf("the report of an end may have %d bytes besides its files, and this has %d: report fewer metrics", api.MaxResult, len(text)))
	}
	return nil
}

const (
	mostWhy       = 2 << 10
	mostLastLines = 16 << 10
)

// badFinish refuses an unknown outcome.
func badFinish(said *api.Finish) *api.Problem {
	switch said.Outcome {
	case tidemill.OutcomeSucceeded, tidemill.OutcomeFailed, tidemill.OutcomeCancelled, tidemill.OutcomeLost, tidemill.OutcomeLeft:
		return nil
	}
	return invalidRequest(fmt.Sprintf("outcome: %q is unknown; give succeeded, failed, cancelled, left or lost", clipText(string(said.Outcome))))
}

// makeArtifact makes the tree of an attempt's output; its digest is empty if the attempt made
// nothing.
func (g *Gateway) makeArtifact(ctx context.Context, r *request, files []api.File) (tree api.TreeRef, p *api.Problem) {
	var plan tidemill.Plan
	if p := g.orderedPlan(r, &plan); p != nil || len(files) == 0 {
		return tree, p
	}
	if tree, p = g.treeOf(ctx, r, files); p == nil && plan.MaxOutput > 0 && tree.Bytes > plan.MaxOutput {
		p = tooLarge(fmt.Sprintf("the output of this run may have %d bytes, and this has %d: report that the attempt failed", plan.MaxOutput, tree.Bytes))
	}
	return tree, p
}

// beginningOf returns at most that many bytes from the beginning of a text.
func beginningOf(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// endOf returns at most that many bytes from the end of a text.
func endOf(text string, most int) string {
	if len(text) <= most {
		return text
	}
	cut := len(text) - most
	for cut < len(text) && !utf8.RuneStart(text[cut]) {
		cut++
	}
	return text[cut:]
}

// agentCheckpoint sets the checkpoint that the next attempt of the run resumes from.
//
// Making a tree of many files takes a while, so the ledger is asked again before the
// checkpoint is set. A race remains between that answer and the write to the store: a
// superseded attempt may set a checkpoint after its successor has read the previous one. The
// successor then resumes from an older checkpoint, as if the newer one had come too late.
// SetCheckpoint knows the attempt, so the late checkpoint never replaces one that the
// successor has set.
func (g *Gateway) agentCheckpoint(w http.ResponseWriter, r *request) *api.Problem {
	var taken api.CheckpointTaken
	if p := g.readAgentBody(r, &taken); p != nil {
		return p
	}
	ctx, cancel := g.toTheEnd(r)
	defer cancel()
	tree, p := g.treeOf(ctx, r, taken.Files)
	if p != nil {
		return p
	}
	if p := g.stillUnderWay(ctx, r); p != nil {
		return p
	}
	if err := g.opt.Store.SetCheckpoint(ctx, r.attempt.run.ID, r.attempt.number, tree); err != nil {
		return g.storeFault("set the checkpoint of run "+r.attempt.run.ID, err)
	}
	writeJSON(w, http.StatusOK, tree)
	return nil
}

// treeOf makes a tree of files whose objects are already stored.
func (g *Gateway) treeOf(ctx context.Context, r *request, files []api.File) (api.TreeRef, *api.Problem) {
	tree, err := g.opt.Store.Tree(ctx, files)
	if err != nil {
		return tree, g.storeFault("make a tree of what run "+r.attempt.run.ID+" has put", err)
	}
	return tree, nil
}

// stillUnderWay asks the ledger again whether the attempt counts.
func (g *Gateway) stillUnderWay(ctx context.Context, r *request) *api.Problem {
	run, p := g.runOf(ctx, r.attempt.run.ID)
	if p != nil {
		return p
	}
	if run != nil {
		r.attempt.run = run
	}
	if run == nil || !isUnderWay(run, r.attempt.number) {
		return g.supersededProblem(r.attempt)
	}
	return nil
}

// readAgentBody reads the body of an agent's request. It ignores unknown fields: an agent may be
// newer than its gateway, and fields are only ever added.
func (g *Gateway) readAgentBody(r *request, to any) *api.Problem {
	body, p := g.readBody(r, api.MaxFinish, func() *api.Problem {
		return tooLarge(fmt.Sprintf("the body may have %d bytes: pack the files into fewer", api.MaxFinish))
	})
	if p != nil {
		return p
	}
	// The decoded body takes as much memory again.
	if p := g.chargeMemory(r, len(body)); p != nil {
		return p
	}
	if err := json.Unmarshal(body, to); err != nil {
		return invalidRequest("the body is invalid: " + clipText(err.Error()) + "; see /api/v1/openapi.json")
	}
	return nil
}

// toTheEnd returns a context for work that must not stay half done when the caller disconnects. The
// answer's deadline is extended too, because reading the body may have used most of the time that
// net/http allows for both.
func (g *Gateway) toTheEnd(r *request) (context.Context, context.CancelFunc) {
	g.extendDeadline(r, storeWithin)
	return context.WithTimeout(context.WithoutCancel(r.Context()), storeWithin)
}

// extendDeadline gives the answer that much time from now on, plus the time to send it.
func (g *Gateway) extendDeadline(r *request, within time.Duration) {
	control := http.NewResponseController(&r.answer)
	_ = control.SetWriteDeadline(time.Now().Add(within + g.opt.Limits.Write)) // fails only if the connection is closed
}

// agentNext makes the pod of an ended attempt wait for another attempt, for at most the
// linger time of its pool. The ended attempt's plan decides which attempts the pod may get,
// not the request body, because a command can read the token of its attempt.
func (g *Gateway) agentNext(w http.ResponseWriter, r *request) *api.Problem {
	var said api.Idling
	if p := g.readAgentBody(r, &said); p != nil {
		return p
	}
	switch {
	case said.Pod == "" || len(said.Pod) > mostPodName:
		return invalidRequest(fmt.Sprintf("pod: give the name of the pod, of up to %d characters", mostPodName))
	case !(said.Seconds > 0):
		return invalidRequest("seconds: give how long the pod waits")
	case isUnderWay(r.attempt.run, r.attempt.number):
		return problem(api.Conflict, http.StatusConflict, "the attempt has not ended",
			"attempt "+clipText(r.attempt.name)+" is still running; report its end first")
	}
	pod, most, p := g.lingeringPod(r, said.Pod)
	if p != nil || most <= 0 {
		return g.answerNoContent(w, p)
	}
	return g.waitForAttempt(w, r, pod, min(most, time.Duration(said.Seconds*float64(time.Second))))
}

const mostPodName = 253

// lingeringPod returns the pod of an attempt and the time for which the pod may linger; 0 means not
// at all. A pod may linger only if its attempt succeeded or failed.
func (g *Gateway) lingeringPod(r *request, name string) (pod warmpods.Pod, most time.Duration, p *api.Problem) {
	a, ok := attemptOf(r.attempt.run, r.attempt.number)
	if g.opt.Warm == nil || !ok || a.Outcome != tidemill.OutcomeSucceeded && a.Outcome != tidemill.OutcomeFailed {
		return pod, 0, nil
	}
	plan, err := g.planOf(r.Context(), r.attempt.run)
	if err != nil {
		g.log.Warn("gateway: reading the plan of a run failed; its pod gets a 503", "run", r.attempt.run.ID, "reason", err)
		return pod, 0, unavailable("the plan of the run cannot be read now; try again later")
	}
	if plan == nil {
		return pod, 0, nil
	}
	pool, known := g.opt.Config().Pool(plan.Pool)
	shape := warmpods.Shape(*plan)
	if !known || shape == "" {
		return pod, 0, nil
	}
	return warmpods.Pod{Name: name, Attempt: r.attempt.name, Pool: plan.Pool, Shape: shape, GPUs: plan.GPUs}, stillLingers(pool.Linger, a.Ended, time.Now()), nil
}

// stillLingers returns how long the pod of an attempt that ended at that time may still wait. A
// result below 0 means that the pod has ended. Without this bound, anyone who can read Jobs could
// use the token long after the pod has ended.
func stillLingers(linger time.Duration, ended, now time.Time) time.Duration {
	if linger <= 0 {
		return 0
	}
	return min(linger, ended.Add(linger+nextSlack).Sub(now))
}

// hasBegun records in the book of warm pods that an attempt has begun. Until then, a pod that
// asks again in the name of its previous attempt gets this attempt again.
func (g *Gateway) hasBegun(r *request) {
	if g.opt.Warm == nil {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	if err := g.opt.Warm.Begun(ctx, r.attempt.name); err != nil {
		g.log.Warn("gateway: noting a pod's assignment failed; the pod may get the same attempt again", "run", r.attempt.run.ID, "reason", err)
	}
}

// waitForAttempt makes a pod wait for an attempt. If the gateway closes, the pod must ask another
// one.
func (g *Gateway) waitForAttempt(w http.ResponseWriter, r *request, pod warmpods.Pod, d time.Duration) *api.Problem {
	g.extendDeadline(r, d+nextSlack)
	ctx, release := g.untilEnding(r.Context())
	defer release()
	from := time.Now()
	offer, ok, err := g.opt.Warm.Wait(ctx, pod, d)
	g.metrics.idle.WithLabelValues(pod.Pool).Add(float64(pod.GPUs) * time.Since(from).Seconds())
	switch {
	case errors.Is(context.Cause(ctx), errClosing):
		return unavailable("the gateway is stopping; ask another one")
	case err != nil:
		g.log.Warn("gateway: waiting for another run failed; the pod gets a 503", "run", r.attempt.run.ID, "reason", err)
		return unavailable("Redis is down, so the list of waiting pods cannot be read; try again later")
	case !ok || offer.Attempt == "":
		return g.answerNoContent(w, nil)
	}
	writeJSON(w, http.StatusOK, api.Given{Attempt: offer.Attempt, Token: offer.Token})
	return nil
}

// nextSlack is added to the time that a pod waits, because a pod may be chosen at the last moment
// and then be about to receive its attempt.
const nextSlack = 30 * time.Second

// awaitSight waits a little for the image of an attempt that ended before its node reported the
// image. An ended attempt no longer changes, and a model whose image is unknown could not be made
// again. The image of an attempt that ran for more than a moment is known, so there is no wait.
func (g *Gateway) awaitSight(ctx context.Context, r *request, said *api.Finish) {
	if !said.Inside || said.Where.Image != "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Sight)
	defer cancel()
	for {
		changed := g.opt.Ledger.Changed()
		run, err := g.opt.Ledger.Run(ctx, r.attempt.run.ID)
		if err != nil || !isUnderWay(run, r.attempt.number) {
			return // the attempt's end is published anyway
		}
		if a, _ := attemptOf(run, r.attempt.number); a.Image != "" {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
