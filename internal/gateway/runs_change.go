package gateway

import (
	"context"
	"crypto/rand"
	"encoding/json"
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
		b.g.log.Info("gateway: command for runs", "what", what, "events", n, "by", b.by)
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
		return done, b.doNamed(ask.Runs, what, &done)
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
func (b *bulkChange) doNamed(ids []string, what runHandler, done *api.RunsDone) *api.Problem {
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
	return b.doEach(all, 0, what, done)
}

// cancelRuns requests that runs end.
func (g *Gateway) cancelRuns(w http.ResponseWriter, r *request) *api.Problem {
	ask, p := g.readSelection(r, tidemill.RunWaiting, tidemill.RunRunning, tidemill.RunResting)
	switch {
	case p != nil:
		return p
	case ask.Rate != 0 || ask.First != 0:
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
	case r.State == tidemill.RunSettling:
		return "it has succeeded, and its output is being committed to its dataset"
	case r.Cancel != nil:
		return "it is being cancelled already"
	}
	return ""
}

// startRuns requests runs of one recipe.
func (g *Gateway) startRuns(w http.ResponseWriter, r *request) *api.Problem {
	var ask api.RunsAsked
	if p := g.readCommand(r, &ask); p != nil {
		return p
	}
	if p := g.runsThere(); p != nil {
		return p
	}
	recipe, p := g.recipeToAsk(ask.Recipe)
	if p != nil {
		return p
	}
	if p := checkStart(&ask, &recipe); p != nil {
		return p
	}
	if p := g.signCause(r, &ask); p != nil {
		return p
	}
	b, end := g.newBulk(r, ask.Rate, ask.DryRun)
	defer end()
	keys, p := b.runKeys(&ask, &recipe)
	if p != nil {
		return p
	}
	done, p := b.startKeys(&ask, keys)
	if p != nil {
		return p
	}
	b.answerResult(w, done, "start")
	return nil
}

func checkStart(ask *api.RunsAsked, recipe *config.Recipe) *api.Problem {
	keyless := recipe.Key == config.KeyNone
	switch {
	case keyless && (len(ask.Keys) > 0 || ask.All):
		return badParameter("keys", "recipe "+recipe.Name+" has no keys: leave out keys and all")
	case !keyless && ask.All == (len(ask.Keys) > 0):
		return badParameter("keys", "give the keys to start runs for, or all: true and no keys")
	case ask.Where != "" && !ask.All:
		return badParameter("where", "it selects some of all keys: give all: true too")
	case ask.Priority < -config.MaxAskedPriority || ask.Priority > config.MaxAskedPriority:
		return badParameter("priority", fmt.Sprintf("give %d to %d", -config.MaxAskedPriority, config.MaxAskedPriority))
	}
	for _, key := range ask.Keys {
		if err := scheduler.CheckKeyOf(recipe, key); err != nil {
			return badParameter("keys", err.Error())
		}
	}
	if p := checkCause(ask.Event); p != nil {
		return p
	}
	return badRate(ask.Rate)
}

// checkCause refuses an event that no run could read.
func checkCause(event json.RawMessage) *api.Problem {
	if event == nil {
		return nil
	}
	if len(event) > retriedEvents {
		return badParameter("event", fmt.Sprintf("it has %d bytes, and the event of a run may have %d: put large data into a store and publish its address", len(event), retriedEvents))
	}
	var v broker.View
	if err := broker.UnmarshalStructured(event, &v); err != nil {
		return badParameter("event", err.Error())
	}
	return nil
}

// signCause judges an event that a caller gives as the cause, and sets its authid, as for a published
// event. Templates and commands may rely on the type, the source, the keys and the authid of a cause.
func (g *Gateway) signCause(r *request, ask *api.RunsAsked) *api.Problem {
	if ask.Event == nil || r.callerName() == "" {
		return nil
	}
	var v broker.View
	if err := broker.UnmarshalStructured(ask.Event, &v); err != nil {
		return badParameter("event", err.Error())
	}
	if err := tidemill.Reserved(v.Type, v.Source); err != nil {
		return reservedEvent(&v, err)
	}
	if p := setAuthID(&v, r.callerName()); p != nil {
		return p
	}
	plan := g.currentPlan()
	if err := plan.mayPublish(r.caller, plan.streamFor(v.Type).stream, &v); err != nil {
		return forbiddenEvent(err)
	}
	ask.Event = broker.MarshalStructured(&v)
	return nil
}

// runKeys returns the keys to start runs for, in an order that is the same for the next request.
func (b *bulkChange) runKeys(ask *api.RunsAsked, recipe *config.Recipe) ([]string, *api.Problem) {
	switch {
	case recipe.Key == config.KeyNone:
		return []string{recipe.Name}, nil
	case !ask.All:
		return unique(ask.Keys), nil
	}
	where, p := runFilter(ask.Where)
	if p != nil {
		return nil, p
	}
	var keys []string
	err := b.g.opt.Ledger.Keys(b.ctx, recipe.Name, func(key string) bool {
		if _, refused := b.r.caller.MayRun(recipe.Name, tidemill.OwnerOf(recipe.Name, key)); refused == nil && filterOfRuns(where, recipe.Name, key) {
			keys = append(keys, key)
		}
		return true
	})
	if err != nil {
		return nil, b.g.ledgerProblem(b.r.Context(), err)
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

func unique(keys []string) (once []string) {
	seen := make(map[string]bool, len(keys))
	for _, key := range keys {
		if !seen[key] {
			once = append(once, key)
		}
		seen[key] = true
	}
	return once
}

// startKeys requests a run of each key, from the key at which the previous request stopped. A
// run's due time depends on the position of its key among all keys.
func (b *bulkChange) startKeys(ask *api.RunsAsked, keys []string) (done api.RunsDone, p *api.Problem) {
	first := 0
	if ask.After != "" {
		if first = slices.Index(keys, ask.After) + 1; first == 0 {
			return done, badParameter("after", "it is no longer among the keys: start again without it, with the same "+api.HeaderIdempotencyKey)
		}
	}
	done.Runs = []api.RunDone{}
	for chunk := range slices.Chunk(keys[first:], runsAtATime) {
		lines := make([]api.RunDone, len(chunk))
		err := forEach(len(chunk), func(i int) (err error) {
			lines[i], err = b.startOne(ask, chunk[i], first+i)
			return err
		})
		if err != nil {
			return done, b.g.runRequestProblem(b.r.Context(), "of "+ask.Recipe, err, b.began)
		}
		done.Runs, first = append(done.Runs, lines...), first+len(chunk)
		if first < len(keys) && b.isTimeUp(len(done.Runs)) {
			done.Next = chunk[len(chunk)-1]
			break
		}
	}
	return done, nil
}

func (b *bulkChange) startOne(ask *api.RunsAsked, key string, nth int) (api.RunDone, error) {
	done := api.RunDone{Recipe: ask.Recipe, Key: key}
	priority, err := b.priority(ask.Recipe, key, ask.Priority)
	switch {
	case err != nil:
		done.Done, done.Refused = err.Error(), true
		b.g.noteRefusal(b.r, access.Operate, "runs", forbidden("recipe "+ask.Recipe+", key "+clipText(key)+": "+done.Done))
		return done, nil
	case b.dryRun:
		done.Done = "would be requested"
		return done, nil
	}
	cause := b.runCause(ask.Recipe, key)
	return b.requestRun(done, scheduler.Request{Recipe: ask.Recipe, Key: key, Cause: cause, Priority: priority, Delay: b.dueDelay(nth),
		Events: []json.RawMessage{b.requestEvent(cause, ask, key)}, By: b.by, Correlation: b.correlation, Trace: b.trace})
}

// priority returns the priority of a run that the caller starts. A caller whose greatest priority is below 0 need
// not ask for it.
func (b *bulkChange) priority(recipe, key string, asked int) (int, error) {
	most, err := b.r.caller.MayRun(recipe, tidemill.OwnerOf(recipe, key))
	if err == nil && asked > most && asked != 0 {
		err = fmt.Errorf("you may give this run a priority of at most %d: ask for less, or for none", most)
	}
	return min(asked, most), err
}

// requestRun requests one run and describes the result.
func (b *bulkChange) requestRun(done api.RunDone, r scheduler.Request) (api.RunDone, error) {
	a, err := b.g.opt.Runs.Request(b.ctx, r)
	if err != nil {
		return done, err
	}
	done.Run = a.Run
	switch a.Result {
	case fold.Absorbed:
		done.Done = "absorbed"
	case fold.Known:
		done.Done = "requested before"
	default:
		done.Done = "requested"
	}
	return done, nil
}

// requestEvent returns the event that becomes the cause of a run.
func (b *bulkChange) requestEvent(c tidemill.Cause, ask *api.RunsAsked, key string) json.RawMessage {
	if ask.Event != nil {
		return ask.Event
	}
	v := broker.View{ID: c.ID, Source: c.Source, Type: tidemill.TypeRunRequested, Subject: key, Time: b.began.UTC().Format(time.RFC3339Nano),
		Extensions: []broker.Attribute{{Name: tidemill.AttrRecipe, Value: ask.Recipe}, {Name: tidemill.AttrCorrelationID, Value: b.correlation}}}
	if b.by != "" {
		v.Extensions = append(v.Extensions, broker.Attribute{Name: tidemill.AttrAuthID, Value: b.by})
	}
	return broker.MarshalStructured(&v)
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
