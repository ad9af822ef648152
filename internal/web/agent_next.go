package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/warm"
)

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
func (g *Gateway) lingering(r *request, name string) (pod warm.Pod, most time.Duration, p *api.Problem) {
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
	shape := warm.Shape(*plan)
	if !known || shape == "" {
		return pod, 0, nil
	}
	return warm.Pod{Name: name, Attempt: r.attempt.name, Pool: plan.Pool, Shape: shape, GPUs: plan.GPUs}, stillLingers(pool.Linger, a.Ended, time.Now()), nil
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
func (g *Gateway) wait(w http.ResponseWriter, r *request, pod warm.Pod, d time.Duration) *api.Problem {
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
