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
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/triggers/filter"
)

const (
	runsAtATime  = 1000 // runs per page; after each page, the time is checked
	runsInFlight = 256  // facts that are published at once, so that they share the log's round trips
)

// bulk is a request that does the same to many runs.
type bulk struct {
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

// newBulk begins a bulk request. The same caller with the same Idempotency-Key repeats the
// same request.
func (g *Gateway) newBulk(r *request, rate float64, dryRun bool) (b *bulk, done func()) {
	span := g.startSpan(r)
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Ack)
	key := orElse(r.Header.Get(api.HeaderIdempotencyKey), rand.Text())
	b = &bulk{g: g, r: r, ctx: ctx, began: time.Now(), by: r.name(), named: tidemill.ID("runs asked for", r.name(), key), rate: rate, dryRun: dryRun}
	b.correlation = b.named
	var v broker.View
	telemetry.Remember(r.trace, &v)
	b.trace, _ = v.Attribute(tidemill.AttrTraceParent)
	return b, func() { cancel(); span.End() }
}

// cause returns the cause of one run.
func (b *bulk) cause(parts ...string) tidemill.Cause {
	return tidemill.Cause{Source: b.g.names().Source("gateway"), ID: tidemill.ID(append(parts, b.named)...)}
}

// delay returns the time after which the nth run is due.
func (b *bulk) delay(n int) time.Duration {
	if b.rate == 0 {
		return 0
	}
	return time.Duration(float64(n) / b.rate * float64(time.Second))
}

// enough reports that the rest is left for another request, because the caller waits for an
// answer.
func (b *bulk) enough(done int) bool {
	return done+runsAtATime > b.g.opt.Limits.Runs || time.Since(b.began) > b.g.opt.Limits.Ack/2
}

// each calls do n times, many at once, until one call fails.
func each(n int, do func(i int) error) error {
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

// answer answers with the result, and logs it.
func (b *bulk) answer(w http.ResponseWriter, done api.RunsDone, what string) {
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

// wanted matches a recipe and a key with a condition; more are further attributes of the run.
func wanted(f *filter.Filter, recipe, key string, more ...broker.Attribute) bool {
	if f == nil {
		return true
	}
	v := broker.View{ID: "run", Source: "/tidemill", Type: tidemill.TypeRunRequested, Subject: key,
		Extensions: append([]broker.Attribute{{Name: tidemill.AttrRecipe, Value: recipe}}, more...)}
	return f.Match(&v)
}

// recipeToAsk returns a recipe of the config.
func (g *Gateway) recipeToAsk(name string) (config.Recipe, *api.Problem) {
	recipe, ok := g.opt.Config().Recipe(name)
	if !ok {
		return recipe, unknownRecipe(name)
	}
	return recipe, nil
}

// readSelection reads a request about many runs; usual are the states that it selects if it
// names none.
func (g *Gateway) readSelection(r *request, usual ...tidemill.RunState) (ask api.RunsSelected, p *api.Problem) {
	if p := g.readAsk(r, &ask); p != nil {
		return ask, p
	}
	if p := g.runsThere(); p != nil {
		return ask, p
	}
	selects := ask.Recipe+ask.Key+ask.Where != "" || len(ask.States) > 0 || ask.Since != nil
	switch {
	case len(ask.Runs) > 0 && (selects || ask.All):
		return ask, badParameter("runs", "give runs by their ids, or what selects them, and not both")
	case len(ask.Runs) == 0 && selects == ask.All:
		return ask, badParameter("runs", "give ids, or what selects runs, or all: true and nothing else")
	case len(ask.Runs) > mostOnOne:
		return ask, badParameter("runs", fmt.Sprintf("there are %d; give %d at once", len(ask.Runs), mostOnOne))
	case len(ask.Reason) > mostReason:
		return ask, badParameter("reason", fmt.Sprintf("it has %d bytes, and every run repeats it: say it in %d", len(ask.Reason), mostReason))
	}
	if p := checkStates("states", ask.States); p != nil {
		return ask, p
	}
	if len(ask.States) == 0 {
		ask.States = usual
	}
	return ask, badRate(ask.Rate)
}

// one handles the nth selected run.
type one func(run *tidemill.Run, nth int) (api.RunDone, error)

// do handles all selected runs, page by page.
func (b *bulk) do(ask *api.RunsSelected, what one) (done api.RunsDone, p *api.Problem) {
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
			return done, b.g.unled(b.r.Context(), err)
		}
		meant := slices.DeleteFunc(page.Runs, func(r tidemill.Run) bool { return !b.means(where, &r) })
		if p := b.doEach(meant, ask.First+len(done.Runs), what, &done); p != nil {
			return done, p
		}
		if q.After = page.Next; page.Next == "" || b.enough(len(done.Runs)) {
			done.Next = page.Next
			return done, nil
		}
	}
}

func (b *bulk) doEach(all []tidemill.Run, first int, what one, done *api.RunsDone) *api.Problem {
	lines := make([]api.RunDone, len(all))
	err := each(len(all), func(i int) (err error) {
		lines[i], err = what(&all[i], first+i)
		return err
	})
	if err != nil {
		return b.g.unasked(b.r.Context(), "", err, b.began)
	}
	done.Runs = append(done.Runs, lines...)
	return nil
}

func (b *bulk) means(where *filter.Filter, r *tidemill.Run) bool {
	return b.r.caller.MayTouch(access.Operate, r.Key) && wanted(where, r.Recipe, r.Key,
		broker.Attribute{Name: tidemill.AttrRun, Value: r.ID}, broker.Attribute{Name: "state", Value: string(r.State)},
		broker.Attribute{Name: "reason", Value: strings.ToValidUTF8(r.Reason, "")})
}

// doNamed handles the runs with the given ids.
func (b *bulk) doNamed(ids []string, what one, done *api.RunsDone) *api.Problem {
	var all []tidemill.Run
	for _, id := range unique(ids) {
		run, p := b.g.findRun(b.ctx, b.r, access.Operate, id)
		switch {
		case p == nil:
			all = append(all, *run)
		case p.Status/100 == 4:
			done.Runs = append(done.Runs, api.RunDone{Run: clip(id), Done: p.Detail, Refused: true})
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
	done, p := b.do(&ask, func(run *tidemill.Run, _ int) (api.RunDone, error) { return b.cancel(run, ask.Reason) })
	if p != nil {
		return p
	}
	b.answer(w, done, "cancel")
	return nil
}

func (b *bulk) cancel(run *tidemill.Run, reason string) (api.RunDone, error) {
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
		done.Done = "cancelling" // its agent will stop the command and report the end
	default:
		done.Done, done.Refused = notCancelled(now), true
	}
	return done, nil
}

// notCancelled returns why a run cannot be cancelled; empty if it can.
func notCancelled(r *tidemill.Run) string {
	switch {
	case r.State.Ended():
		return "it has ended: " + string(r.State)
	case r.State == tidemill.RunSettling:
		return "it has succeeded, and what it made is being put on its dataset"
	case r.Cancel != nil:
		return "it is being cancelled already"
	}
	return ""
}
