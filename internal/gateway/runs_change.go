package gateway

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/internal/runs/scheduler"
	"tidemill.dev/triggers/filter"
)

const (
	runsAtATime  = 1000 // runs per page; after each page, the time is checked
	runsInFlight = 256  // facts that are published at once, so that they share the log's round trips
)

// bulkChange is a request that makes the same change to many runs or models.
type bulkChange struct {
	g           *Gateway
	r           *request
	ctx         context.Context
	began       time.Time
	by          string
	named       string // id from which the ids of its causes derive
	correlation string
	trace       string
	rate        float64
	dryRun      bool
}

// newBulk begins a bulk request. A request of the same caller with the same Idempotency-Key is a
// repeat.
func (g *Gateway) newBulk(r *request, rate float64, dryRun bool) (b *bulkChange, done func()) {
	span := g.startSpan(r)
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Ack)
	key := orElse(r.Header.Get(api.HeaderIdempotencyKey), rand.Text())
	b = &bulkChange{g: g, r: r, ctx: ctx, began: time.Now(), by: r.callerName(), named: tidemill.ID("runs asked for", r.callerName(), key), rate: rate, dryRun: dryRun}
	b.correlation = b.named
	var v broker.View
	telemetry.Remember(r.trace, &v)
	b.trace, _ = v.Attribute(tidemill.AttrTraceParent)
	return b, func() { cancel(); span.End() }
}

// runCause returns the cause of one run.
func (b *bulkChange) runCause(parts ...string) tidemill.Cause {
	return tidemill.Cause{Source: b.g.installNames().Source("gateway"), ID: tidemill.ID(append(parts, b.named)...)}
}

// dueDelay returns the time after which the nth run is due.
func (b *bulkChange) dueDelay(n int) time.Duration {
	if b.rate == 0 {
		return 0
	}
	return time.Duration(float64(n) / b.rate * float64(time.Second))
}

// isTimeUp reports whether the rest must be left for another request, because the caller waits for
// an answer.
func (b *bulkChange) isTimeUp(done int) bool {
	return done+runsAtATime > b.g.opt.Limits.Runs || time.Since(b.began) > b.g.opt.Limits.Ack/2
}

// forEach calls the function do n times, many calls at once, until a call fails.
func forEach(n int, do func(i int) error) error {
	var (
		next   atomic.Int64
		failed atomic.Pointer[error]
		work   sync.WaitGroup
	)
	for range min(n, runsInFlight) {
		work.Go(func() {
			for failed.Load() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := do(i); err != nil {
					failed.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	work.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// answerResult answers with the result of the request, and logs the result.
func (b *bulkChange) answerResult(w http.ResponseWriter, done api.RunsDone, what string) {
	n := 0
	for i := range done.Runs {
		if !done.Runs[i].Refused {
			n++
		}
	}
	if !b.dryRun && n > 0 {
		b.g.log.Info("gateway: command for runs", "what", what, "events", n, "by", b.r.loggedName())
	}
	writeJSON(w, http.StatusOK, done)
}

// runFilter compiles a condition over runs; nil matches all.
func runFilter(where string) (*filter.Filter, *api.Problem) {
	if where == "" {
		return nil, nil
	}
	f, err := filter.CompileFor(where, mostLooked)
	if err != nil {
		return nil, badParameter("where", err.Error())
	}
	return f, nil
}

// filterOfRuns reports whether a run with the recipe, the key and further attributes matches a
// condition.
func filterOfRuns(f *filter.Filter, recipe, key string, more ...broker.Attribute) bool {
	if f == nil {
		return true
	}
	v := broker.View{ID: "run", Source: "/tidemill", Type: tidemill.TypeRunRequested, Subject: key,
		Extensions: append([]broker.Attribute{{Name: tidemill.AttrRecipe, Value: recipe}}, more...)}
	return f.Match(&v)
}

// recipeToAsk returns the recipe that a request names.
func (g *Gateway) recipeToAsk(name string) (config.Recipe, *api.Problem) {
	recipe, ok := g.opt.Config().Recipe(name)
	if !ok {
		return recipe, g.unknownRecipe(name)
	}
	return recipe, nil
}

// readSelection reads a request about many runs. If the request names no states, it selects the
// usual states.
func (g *Gateway) readSelection(r *request, usual ...tidemill.RunState) (ask api.RunsSelected, p *api.Problem) {
	if p := g.readCommand(r, &ask); p != nil {
		return ask, p
	}
	if p := g.runsThere(); p != nil {
		return ask, p
	}
	selects := ask.Recipe+ask.Key+ask.Where != "" || len(ask.States) > 0 || ask.Since != nil
	switch {
	case len(ask.Runs) > 0 && (selects || ask.All):
		return ask, badParameter("runs", "give either ids of runs or a selection")
	case len(ask.Runs) == 0 && selects == ask.All:
		return ask, badParameter("runs", "give ids, or a selection, or all: true and nothing else")
	case len(ask.Runs) > mostOnOne:
		return ask, badParameter("runs", fmt.Sprintf("there are %d; give at most %d", len(ask.Runs), mostOnOne))
	case len(ask.Reason) > mostReason:
		return ask, badParameter("reason", fmt.Sprintf("it has %d bytes, and every run repeats it: use at most %d", len(ask.Reason), mostReason))
	}
	if p := checkStates("states", ask.States); p != nil {
		return ask, p
	}
	if len(ask.States) == 0 {
		ask.States = usual
	}
	return ask, badRate(ask.Rate)
}

// runHandler handles the nth selected run.
type runHandler func(run *tidemill.Run, nth int) (api.RunDone, error)

// handleRuns handles all selected runs, page by page.
func (b *bulkChange) handleRuns(ask *api.RunsSelected, what runHandler) (done api.RunsDone, p *api.Problem) {
	done.Runs = []api.RunDone{}
	if len(ask.Runs) > 0 {
		return done, b.doNamed(ask.Runs, ask.First, what, &done)
	}
	where, p := runFilter(ask.Where)
	if p != nil {
		return done, p
	}
	q := ledger.Query{States: ask.States, Recipe: ask.Recipe, Key: ask.Key, After: ask.After, Limit: runsAtATime}
	if ask.Since != nil {
		q.Since = *ask.Since
	}
	for {
		page, err := b.g.opt.Ledger.Runs(b.ctx, q)
		if err != nil {
			return done, b.g.ledgerProblem(b.r.Context(), err)
		}
		meant := slices.DeleteFunc(page.Runs, func(r tidemill.Run) bool { return !b.means(where, &r) })
		if p := b.doEach(meant, ask.First+len(done.Runs), what, &done); p != nil {
			return done, p
		}
		if q.After = page.Next; page.Next == "" || b.isTimeUp(len(done.Runs)) {
			done.Next = page.Next
			return done, nil
		}
	}
}

func (b *bulkChange) doEach(all []tidemill.Run, first int, what runHandler, done *api.RunsDone) *api.Problem {
	lines := make([]api.RunDone, len(all))
	err := forEach(len(all), func(i int) (err error) {
		lines[i], err = what(&all[i], first+i)
		return err
	})
	if err != nil {
		return b.g.runRequestProblem(b.r.Context(), "", err, b.began)
	}
	done.Runs = append(done.Runs, lines...)
	return nil
}

func (b *bulkChange) means(where *filter.Filter, r *tidemill.Run) bool {
	_, refused := b.r.caller.MayRun(r.Recipe, ownerOf(r))
	return refused == nil && filterOfRuns(where, r.Recipe, r.Key,
		broker.Attribute{Name: tidemill.AttrRun, Value: r.ID}, broker.Attribute{Name: "state", Value: string(r.State)},
		broker.Attribute{Name: "reason", Value: strings.ToValidUTF8(r.Reason, "")})
}

// doNamed handles the runs with the given ids.
func (b *bulkChange) doNamed(ids []string, first int, what runHandler, done *api.RunsDone) *api.Problem {
	var all []tidemill.Run
	for _, id := range unique(ids) {
		run, p := b.g.findRun(b.ctx, b.r, access.Operate, id)
		switch {
		case p == nil:
			if _, err := b.r.caller.MayRun(run.Recipe, ownerOf(run)); err != nil {
				done.Runs = append(done.Runs, api.RunDone{Run: run.ID, Recipe: run.Recipe, Key: run.Key, Done: err.Error(), Refused: true})
				continue
			}
			all = append(all, *run)
		case p.Status/100 == 4:
			done.Runs = append(done.Runs, api.RunDone{Run: clipText(id), Done: p.Detail, Refused: true})
		default:
			return p
		}
	}
	return b.doEach(all, first, what, done)
}

// cancelRuns requests that runs end.
func (g *Gateway) cancelRuns(w http.ResponseWriter, r *request) *api.Problem {
	ask, p := g.readSelection(r, tidemill.RunWaiting, tidemill.RunRunning, tidemill.RunRetrying)
	switch {
	case p != nil:
		return p
	case ask.Rate != 0:
		return badParameter("rate", "a cancel has none")
	}
	b, end := g.newBulk(r, 0, ask.DryRun)
	defer end()
	done, p := b.handleRuns(&ask, func(run *tidemill.Run, _ int) (api.RunDone, error) { return b.cancel(run, ask.Reason) })
	if p != nil {
		return p
	}
	b.answerResult(w, done, "cancel")
	return nil
}

func (b *bulkChange) cancel(run *tidemill.Run, reason string) (api.RunDone, error) {
	done := api.RunDone{Run: run.ID, Recipe: run.Recipe, Key: run.Key}
	if why := notCancelled(run); why != "" {
		done.Done, done.Refused = why, true
		return done, nil
	}
	if b.dryRun {
		done.Done = "would be cancelled"
		return done, nil
	}
	now, err := b.g.opt.Runs.Cancel(b.ctx, run, b.by, reason)
	if err != nil {
		return done, err
	}
	switch {
	case now.State == tidemill.RunCancelled:
		done.Done = "cancelled"
	case now.Cancel != nil && !now.State.Ended():
		done.Done = "cancelling" // the agent will stop the command and report the end
	default:
		done.Done, done.Refused = notCancelled(now), true
	}
	return done, nil
}

// notCancelled returns why a run cannot be cancelled; empty if the run can be cancelled.
func notCancelled(r *tidemill.Run) string {
	switch {
	case r.State.Ended():
		return "it has ended: " + string(r.State)
	case r.State == tidemill.RunCommitting:
		return "it has succeeded, and its output is being committed to its dataset"
	case r.Cancel != nil:
		return "it is being cancelled already"
	}
	return ""
}

// retryRuns requests ended runs again, with the events that requested them the first time.
func (g *Gateway) retryRuns(w http.ResponseWriter, r *request) *api.Problem {
	ask, p := g.readSelection(r, tidemill.RunFailed, tidemill.RunCancelled)
	switch {
	case p != nil:
		return p
	case ask.Reason != "":
		return badParameter("reason", "a retry needs none; to select by reason, use where")
	case ask.First < 0:
		return badParameter("first", "it is the number of runs that were requested before")
	}
	b, end := g.newBulk(r, ask.Rate, ask.DryRun)
	defer end()
	done, p := b.handleRuns(&ask, func(run *tidemill.Run, nth int) (api.RunDone, error) {
		return b.retryRun(run, nth, len(ask.Runs) > 0)
	})
	if p != nil {
		return p
	}
	b.answerResult(w, done, "retry")
	return nil
}

// retryRun requests a run again. If the request selects the run by a condition and its key has a
// newer run, the run is skipped, because the newer run has seen the same data.
func (b *bulkChange) retryRun(run *tidemill.Run, nth int, named bool) (api.RunDone, error) {
	done := api.RunDone{Run: run.ID, Recipe: run.Recipe, Key: run.Key}
	refused := func(why string) (api.RunDone, error) {
		done.Done, done.Refused = why, true
		return done, nil
	}
	if !run.State.Ended() {
		return refused("it has not ended: " + string(run.State))
	}
	if _, known := b.g.opt.Config().Recipe(run.Recipe); !known {
		return refused("recipe " + run.Recipe + " is no longer in the config")
	}
	if !named {
		m, err := b.g.opt.Ledger.Making(b.ctx, run.Recipe, run.Key)
		if err != nil {
			return done, err
		}
		if why := newerRun(m, run.ID); why != "" {
			return refused(why)
		}
	}
	if b.dryRun {
		done.Done = "would be requested again"
		return done, nil
	}
	return b.again(done, run, nth)
}

// newerRun describes a newer run of the same key; empty if there is none.
func newerRun(m *fold.Making, id string) string {
	switch n := len(m.Ended); {
	case m.Waiting != nil:
		return "skipped: run " + m.Waiting.ID + " of its key waits"
	case m.Live != nil:
		return "skipped: run " + m.Live.ID + " of its key is running"
	case n > 0 && m.Ended[n-1] != id:
		return "skipped: run " + m.Ended[n-1] + " of its key has ended since"
	}
	return ""
}

func (b *bulkChange) again(done api.RunDone, run *tidemill.Run, nth int) (api.RunDone, error) {
	asked, err := b.g.whatAsked(b.ctx, run, retriedEvents)
	if err != nil {
		return done, err
	}
	most, err := b.r.caller.MayRun(run.Recipe, ownerOf(run))
	if err != nil {
		return done, err
	}
	return b.requestRun(done, scheduler.Request{Recipe: run.Recipe, Key: run.Key, Cause: b.runCause("again", run.ID), Events: asked.events,
		Delay: b.dueDelay(nth), Priority: min(run.Priority, most), By: b.by, Again: run.ID, Correlation: orElse(asked.correlation, b.correlation), Trace: b.trace})
}
