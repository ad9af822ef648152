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

// beatSeconds is the interval between beats. Five beats fit into the silence after which an
// agent counts as lost.
const beatSeconds = 2

// agentOrder answers with an attempt's order: its plan, checkpoint and champion.
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

// championFor returns the champion that an attempt measures next to its own model. It is the
// champion at the start of the run, so that all attempts of the run measure the same one.
func (g *Gateway) championFor(ctx context.Context, run string, c *tidemill.Champion) (*api.TreeRef, *api.Problem) {
	if c == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	t, err := g.opt.Store.TreeRef(ctx, c.Artifact)
	switch {
	case errors.Is(err, store.ErrNotFound): // the attempt runs without a champion, as a run that begins now would
		g.log.Warn("the champion's files are lost, and an attempt is given none to measure", "run", run, "version", c.Version, "reason", err)
		return nil, nil
	case err != nil:
		return nil, g.storeFault(fmt.Sprintf("look up version %d, which the run is given to measure", c.Version), err)
	}
	return &t, nil
}

// orderedPlan reads the plan of the attempt's run.
func (g *Gateway) orderedPlan(r *request, to *tidemill.Plan) *api.Problem {
	if err := json.Unmarshal(r.attempt.run.Plan, to); err != nil {
		g.log.Error("the plan of a run cannot be read", "run", r.attempt.run.ID, "reason", err)
		return internalFault()
	}
	return nil
}

// checkpointFor returns the checkpoint that an attempt resumes from. A first attempt has
// none, and most runs have no second attempt, so the store is not asked.
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

// agentNext makes the pod of an ended attempt wait for another attempt, for at most the
// linger time of its pool. The ended attempt's plan decides which attempts the pod may get,
// not the request body, because a command can read the token of its attempt.
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

// lingering returns the pod of an attempt and how long it may linger; 0 means not at all. A
// pod may linger only if its attempt succeeded or failed.
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

// stillLingers returns how long the pod of an attempt that ended at that time may still wait.
// A result below 0 means that the pod has gone. Without this bound, a reader of Jobs could
// use the token long after the pod has gone.
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

// wait makes a pod wait for an attempt. If the gateway closes, the pod must ask another one.
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

// nextSlack is added to the time that a pod waits, because a pod that was taken at the last
// moment is about to receive its attempt.
const nextSlack = 30 * time.Second

// awaitSight waits a little for the image of an attempt that ended before its node reported
// it. An ended attempt no longer changes, and a model whose image is unknown could not be
// made again. The image of an attempt that ran for more than a moment is known, so there is
// no wait.
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

const linesType = "application/x-ndjson"

// agentFiles lists the files of a tree. The request names the tree by its digest; a caller
// that knows the digest may have the tree.
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

// agentEvents answers with the events that requested the run, oldest first, one per line.
// They are read from the facts whose offsets the ledger keeps. If those facts are gone, the
// answer is the newest event, which the ledger keeps itself.
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

// eachEvent calls fn with each event that requested a run and returns their number. It holds
// at most one read of Kafka in memory.
func (g *Gateway) eachEvent(ctx context.Context, run *tidemill.Run, fn func(event []byte) error) (found int, err error) {
	err = g.factsAt(ctx, run.Partition, run.Asked, func(in *broker.Incoming) error {
		var d tidemill.RunRequested
		if in.Err != nil || in.Type != tidemill.TypeRunRequested || in.Subject != run.Key || json.Unmarshal(in.Data, &d) != nil {
			return nil // not the fact that the ledger has read: the log was created again
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

// oneLineOf returns JSON without white space between its parts.
func oneLineOf(text []byte) []byte {
	var b bytes.Buffer
	if json.Compact(&b, text) != nil {
		return bytes.ReplaceAll(text, []byte("\n"), []byte(" "))
	}
	return b.Bytes()
}

// agentBeat records that an agent is alive and reports whether it must end. If several
// workers share an attempt, only the beats of the first one keep the attempt from being lost.
func (g *Gateway) agentBeat(w http.ResponseWriter, r *request) *api.Problem {
	hangUp(w, r) // the request needs no body
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

// whyCancelled returns why a run must end; empty if it need not. A cancellation may have no
// reason.
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

// member is the worker or server of a shared attempt that sent a request.
type member struct {
	word rendezvous.Word
	many int // number of workers and servers of the attempt; 0 if it is not shared
}

// isFirst reports whether the member speaks for the whole attempt.
func (o *member) isFirst() bool { return o.many == 0 || o.word.Part == firstWorker }

const firstWorker = "w0"

// isPart reports whether a text names a worker or server of an attempt.
func isPart(text string) bool {
	number, ok := strings.CutPrefix(text, "ps")
	if !ok {
		number, ok = strings.CutPrefix(text, "w")
	}
	n, err := strconv.Atoi(number)
	return ok && err == nil && n >= 0 && n < mostParts && strconv.Itoa(n) == number
}

const mostParts = 100_000

// oneOf reads the member from the query and checks it against the run's plan.
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

// gather adds the state of the other members to a beat's answer.
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
