package web

import (
	"context"
	"crypto/rand"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/telemetry"
	"tidemill.dev/triggers/match"
)

const (
	runsAtATime  = 1000 // of many, before it is looked whether there is time for more
	runsInFlight = 256  // facts on their way at once: they share the log's round trips
)

// bulk is a request that does the same to many runs.
type bulk struct {
	g           *Gateway
	r           *request
	ctx         context.Context
	began       time.Time
	by          string
	named       string // what its causes derive from
	correlation string
	trace       string
	rate        float64
	dryRun      bool
}

// newBulk begins one. Under the same Idempotency-Key the same caller asks for the
// same runs, however often.
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

// cause is the wish for one run.
func (b *bulk) cause(parts ...string) tidemill.Cause {
	return tidemill.Cause{Source: b.g.names().Source("gateway"), ID: tidemill.ID(append(parts, b.named)...)}
}

// delay is when the nth run is due.
func (b *bulk) delay(n int) time.Duration {
	if b.rate == 0 {
		return 0
	}
	return time.Duration(float64(n) / b.rate * float64(time.Second))
}

// enough tells that what is left is for another request: whoever asked waits.
func (b *bulk) enough(done int) bool {
	return done+runsAtATime > b.g.opt.Limits.Runs || time.Since(b.began) > b.g.opt.Limits.Ack/2
}

// each does something n times, many at once, until one fails.
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

// answer tells what became of it.
func (b *bulk) answer(w http.ResponseWriter, done api.RunsDone, what string) {
	n := 0
	for i := range done.Runs {
		if !done.Runs[i].Refused {
			n++
		}
	}
	if !b.dryRun && n > 0 {
		b.g.log.Info("somebody has asked for something of runs", "what", what, "events", n, "by", b.by)
	}
	writeJSON(w, http.StatusOK, done)
}

// runFilter is a condition over runs; nil is none.
func runFilter(where string) (*match.Filter, *api.Problem) {
	if where == "" {
		return nil, nil
	}
	f, err := match.CompileFor(where, mostLooked)
	if err != nil {
		return nil, badParameter("where", err.Error())
	}
	return f, nil
}

// wanted holds a key of a recipe against a condition; more are attributes that a
// run has.
func wanted(f *match.Filter, recipe, key string, more ...broker.Attribute) bool {
	if f == nil {
		return true
	}
	v := broker.View{ID: "run", Source: "/tidemill", Type: tidemill.TypeRunRequested, Subject: key,
		Extensions: append([]broker.Attribute{{Name: tidemill.AttrRecipe, Value: recipe}}, more...)}
	return f.Match(&v)
}

// recipeToAsk is a recipe of the config.
func (g *Gateway) recipeToAsk(name string) (config.Recipe, *api.Problem) {
	recipe, ok := g.opt.Config().Recipe(name)
	if !ok {
		return recipe, unknownRecipe(name)
	}
	return recipe, nil
}
