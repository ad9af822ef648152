package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/store"
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
		g.log.Warn("whoever waited in this pod may be told once more what it was given", "run", r.attempt.run.ID, "reason", err)
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
