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
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/runs/rendezvous"
	"tidemill.dev/internal/runs/warmpods"
)

// beatSeconds is how often an agent is to say that it is there: five times
// within the silence after which it is taken for lost.
const beatSeconds = 2

// agentOrder tells an agent what to do.
func (g *Gateway) agentOrder(w http.ResponseWriter, r *request) *api.Problem {
	run, number := r.attempt.run, r.attempt.number
	o := api.Order{Run: run.ID, Recipe: run.Recipe, Key: run.Key, Attempt: number,
		Causes: run.Causes, Event: run.Event, BeatSeconds: beatSeconds}
	if p := g.orderedPlan(r, &o.Plan); p != nil {
		return p
	}
	var p *api.Problem
	if o.Checkpoint, p = g.checkpointFor(r.Context(), run.ID, number); p != nil {
		return p
	}
	if o.Champion, p = g.championFor(r.Context(), run.ID, o.Plan.Champion); p != nil {
		return p
	}
	g.hasBegun(r)
	writeJSON(w, http.StatusOK, o)
	return nil
}

// championFor is what an attempt measures beside its own. It is the one that the
// run began with: all of its attempts see the same.
func (g *Gateway) championFor(ctx context.Context, run string, c *tidemill.Champion) (*api.TreeRef, *api.Problem) {
	if c == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	t, err := g.opt.Store.TreeRef(ctx, c.Artifact)
	switch {
	case errors.Is(err, store.ErrNotFound): // it does without, as a run does that begins now
		g.log.Warn("the champion's files are lost, and an attempt is given none to measure", "run", run, "version", c.Version, "reason", err)
		return nil, nil
	case err != nil:
		return nil, g.storeFault(fmt.Sprintf("look up version %d, which the run is given to measure", c.Version), err)
	}
	return &t, nil
}

// orderedPlan is what the run does.
func (g *Gateway) orderedPlan(r *request, to *tidemill.Plan) *api.Problem {
	if err := json.Unmarshal(r.attempt.run.Plan, to); err != nil {
		g.log.Error("the plan of a run cannot be read", "run", r.attempt.run.ID, "reason", err)
		return internalFault()
	}
	return nil
}

// checkpointFor is what an attempt goes on from. A first attempt has nothing to
// go on from, and most runs have no other: the store is not asked.
func (g *Gateway) checkpointFor(ctx context.Context, run string, number int) (*api.TreeRef, *api.Problem) {
	if number == 1 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	t, err := g.opt.Store.Checkpoint(ctx, run)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, g.storeFault("read the checkpoint of run "+run, err)
	}
	return &t, nil
}

// agentNext has the pod of an attempt that has ended wait for another, for as
// long as its pool lets pods linger. What other it may do follows from the
// attempt's plan, and not from what is said here: a command may read the token of
// its attempt.
func (g *Gateway) agentNext(w http.ResponseWriter, r *request) *api.Problem {
	var said api.Idling
	if p := g.readSaid(r, &said); p != nil {
		return p
	}
	switch {
	case said.Pod == "" || len(said.Pod) > mostPodName:
		return invalidRequest(fmt.Sprintf("pod: give the pod's name, of up to %d letters", mostPodName))
	case !(said.Seconds > 0):
		return invalidRequest("seconds: give how long the pod waits")
	case isUnderWay(r.attempt.run, r.attempt.number):
		return problem(api.Conflict, http.StatusConflict, "the attempt has not ended",
			"attempt "+clip(r.attempt.name)+" is still under way; say first how it has ended")
	}
	pod, most, p := g.lingering(r, said.Pod)
	if p != nil || most <= 0 {
		return g.taken(w, p)
	}
	return g.wait(w, r, pod, min(most, time.Duration(said.Seconds*float64(time.Second))))
}

const mostPodName = 253

// lingering is the pod of an attempt, and how long it may linger; 0 is not at
// all. A pod whose run was to end leaves.
func (g *Gateway) lingering(r *request, name string) (pod warmpods.Pod, most time.Duration, p *api.Problem) {
	a, ok := attemptOf(r.attempt.run, r.attempt.number)
	if g.opt.Warm == nil || !ok || a.Outcome != tidemill.OutcomeSucceeded && a.Outcome != tidemill.OutcomeFailed {
		return pod, 0, nil
	}
	plan, err := g.planOf(r.Context(), r.attempt.run)
	if err != nil {
		g.log.Warn("the plan of a run cannot be read", "run", r.attempt.run.ID, "reason", err)
		return pod, 0, unavailable("what the run did cannot be read now; ask again a little later")
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

// stillLingers is how long the pod of an attempt may wait that ended then; below 0
// it has gone by now. A token is known to whoever may read Jobs, also when nobody
// uses it any more.
func stillLingers(linger time.Duration, ended, now time.Time) time.Duration {
	if linger <= 0 {
		return 0
	}
	return min(linger, ended.Add(linger+nextSlack).Sub(now))
}

// hasBegun tells the book that an attempt speaks for itself. Without it the
// attempt before would be told of it for a while, which its own pod may need.
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

// wait waits for an attempt for a pod. A gateway that closes sends it to another.
func (g *Gateway) wait(w http.ResponseWriter, r *request, pod warmpods.Pod, d time.Duration) *api.Problem {
	g.extend(r, d+nextSlack)
	ctx, release := g.untilEnding(r.Context())
	defer release()
	from := time.Now()
	offer, ok, err := g.opt.Warm.Wait(ctx, pod, d)
	g.metrics.idle.WithLabelValues(pod.Pool).Add(float64(pod.GPUs) * time.Since(from).Seconds())
	switch {
	case errors.Is(context.Cause(ctx), errClosing):
		return unavailable("the gateway closes; ask another")
	case err != nil:
		g.log.Warn("a pod cannot wait for another run", "run", r.attempt.run.ID, "reason", err)
		return unavailable("Redis is away, and with it the book of pods that wait; ask again a little later")
	case !ok || offer.Attempt == "":
		return g.taken(w, nil)
	}
	writeJSON(w, http.StatusOK, api.Given{Attempt: offer.Attempt, Token: offer.Token})
	return nil
}

// nextSlack is behind the time that a pod waits: who was taken in the last moment
// is about to be given something.
const nextSlack = 30 * time.Second

// awaitSight waits a little for what a controller has seen of an attempt that ends
// sooner than its node has told of it: what has ended changes no more, and a
// model whose image nobody knows could not be made again. An attempt that was
// under way for more than a moment waits for nothing.
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
			return // the end is told all the same
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

const linesType = "application/x-ndjson"

// agentFiles lists a tree's files. Which tree is asked for by its digest, and
// who knows that may have it.
func (g *Gateway) agentFiles(w http.ResponseWriter, r *request) *api.Problem {
	q, p := r.query([]string{"tree"})
	if p != nil {
		return p
	}
	tree := q.Get("tree")
	if badDigest(tree) != nil {
		return badParameter("tree", "give the tree that the order, or one of its inputs, names")
	}
	ctx := r.Context()
	o := g.newOutpour(w, linesType)
	err := g.opt.Store.Walk(ctx, tree, "", "", func(f api.File) error {
		line, err := json.Marshal(f)
		if err != nil {
			return err
		}
		return o.line(ctx, line)
	})
	if err != nil {
		p = g.storeFault("list tree "+tree, err)
	}
	return o.end(ctx, err, p)
}

// agentEvents are the events that asked for the run, oldest first, one a line.
// They are read from the facts that asked, of which the ledger keeps the
// offsets; where those facts are gone, the newest event, which the ledger keeps
// itself, is better than none.
func (g *Gateway) agentEvents(w http.ResponseWriter, r *request) *api.Problem {
	ctx, run := r.Context(), r.attempt.run
	o := g.newOutpour(w, linesType)
	found, err := g.eachEvent(ctx, run, func(event []byte) error { return o.line(ctx, event) })
	if err != nil {
		return o.end(ctx, err, g.noEvents(ctx, run, err))
	}
	if found == 0 && run.Event != nil {
		err = o.line(ctx, oneLineOf(run.Event))
	}
	return o.end(ctx, err, nil)
}

func (g *Gateway) noEvents(ctx context.Context, run *tidemill.Run, err error) *api.Problem {
	if ctx.Err() == nil {
		g.log.Warn("the events that asked for a run cannot be read", "run", run.ID, "reason", err)
	}
	return unavailable("the events that asked for the run cannot be read now; ask again a little later")
}

// eachEvent calls fn with each event that asked for a run and says how many
// there were. No more is held than one read of Kafka brings.
func (g *Gateway) eachEvent(ctx context.Context, run *tidemill.Run, fn func(event []byte) error) (found int, err error) {
	err = g.factsAt(ctx, run.Partition, run.Asked, func(in *broker.Incoming) error {
		var d tidemill.RunRequested
		if in.Err != nil || in.Type != tidemill.TypeRunRequested || in.Subject != run.Key || json.Unmarshal(in.Data, &d) != nil {
			return nil // the fold has read it otherwise, so the log was made anew and it is another
		}
		for _, e := range d.Events {
			found++
			if err := fn(oneLineOf(e)); err != nil {
				return err
			}
		}
		return nil
	})
	return found, err
}

// oneLineOf is JSON without the space around its parts.
func oneLineOf(text []byte) []byte {
	var b bytes.Buffer
	if json.Compact(&b, text) != nil {
		return bytes.ReplaceAll(text, []byte("\n"), []byte(" "))
	}
	return b.Bytes()
}

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
