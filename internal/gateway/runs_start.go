package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/runs/scheduler"
)

const mostUrgent = 1000 // largest priority, and the negative of the smallest

// startRuns requests runs of one recipe.
func (g *Gateway) startRuns(w http.ResponseWriter, r *request) *api.Problem {
	var ask api.RunsAsked
	if p := g.readAsk(r, &ask); p != nil {
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
	keys, p := b.keys(&ask, &recipe)
	if p != nil {
		return p
	}
	done, p := b.start(&ask, keys)
	if p != nil {
		return p
	}
	b.answer(w, done, "start")
	return nil
}

func checkStart(ask *api.RunsAsked, recipe *config.Recipe) *api.Problem {
	keyless := recipe.Key == config.KeyNone
	switch {
	case keyless && (len(ask.Keys) > 0 || ask.All):
		return badParameter("keys", "recipe "+recipe.Name+" has no keys: leave keys and all out")
	case !keyless && ask.All == (len(ask.Keys) > 0):
		return badParameter("keys", "give the keys to start runs for, or all: true and none")
	case ask.Where != "" && !ask.All:
		return badParameter("where", "it selects among all keys: give all: true with it")
	case ask.Priority < -mostUrgent || ask.Priority > mostUrgent:
		return badParameter("priority", fmt.Sprintf("give %d to %d", -mostUrgent, mostUrgent))
	}
	for _, key := range ask.Keys {
		if err := scheduler.CheckKey(key); err != nil {
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
		return badParameter("event", fmt.Sprintf("it has %d bytes, and a run takes one of %d along: keep the bulk in a store and say where it lies", len(event), retriedEvents))
	}
	var v broker.View
	if err := broker.UnmarshalStructured(event, &v); err != nil {
		return badParameter("event", err.Error())
	}
	return nil
}

// signCause sets the authid of an event that a caller gives as the cause, as for a published
// event: templates and commands may rely on it. For the same reason, a caller with limited
// keys cannot give an event of another key.
func (g *Gateway) signCause(r *request, ask *api.RunsAsked) *api.Problem {
	if ask.Event == nil || r.name() == "" {
		return nil
	}
	var v broker.View
	if err := broker.UnmarshalStructured(ask.Event, &v); err != nil {
		return badParameter("event", err.Error())
	}
	if !r.caller.AllKeys(access.Operate) && v.Subject != "" && !r.caller.MayTouch(access.Operate, v.Subject) {
		return forbidden(fmt.Sprintf("the event's subject %q is not among the keys that you may operate: leave the event out, or give one of yours", clip(v.Subject)))
	}
	if p := signed(&v, r.name()); p != nil {
		return p
	}
	ask.Event = broker.MarshalStructured(&v)
	return nil
}

// keys returns the keys to start runs for, in an order that is the same for the next request.
func (b *bulk) keys(ask *api.RunsAsked, recipe *config.Recipe) ([]string, *api.Problem) {
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
		if b.r.caller.MayTouch(access.Operate, key) && wanted(where, recipe.Name, key) {
			keys = append(keys, key)
		}
		return true
	})
	if err != nil {
		return nil, b.g.unled(b.r.Context(), err)
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

// start requests a run of each key, from the key at which the previous request stopped. A
// run's due time depends on the position of its key among all keys.
func (b *bulk) start(ask *api.RunsAsked, keys []string) (done api.RunsDone, p *api.Problem) {
	first := 0
	if ask.After != "" {
		if first = slices.Index(keys, ask.After) + 1; first == 0 {
			return done, badParameter("after", "it is not among the keys any more: ask anew, under the same "+api.HeaderIdempotencyKey)
		}
	}
	done.Runs = []api.RunDone{}
	for chunk := range slices.Chunk(keys[first:], runsAtATime) {
		lines := make([]api.RunDone, len(chunk))
		err := each(len(chunk), func(i int) (err error) {
			lines[i], err = b.startOne(ask, chunk[i], first+i)
			return err
		})
		if err != nil {
			return done, b.g.unasked(b.r.Context(), "of "+ask.Recipe, err, b.began)
		}
		done.Runs, first = append(done.Runs, lines...), first+len(chunk)
		if first < len(keys) && b.enough(len(done.Runs)) {
			done.Next = chunk[len(chunk)-1]
			break
		}
	}
	return done, nil
}

func (b *bulk) startOne(ask *api.RunsAsked, key string, nth int) (api.RunDone, error) {
	done := api.RunDone{Recipe: ask.Recipe, Key: key}
	switch {
	case !b.r.caller.MayTouch(access.Operate, key):
		done.Done, done.Refused = "you may not operate on this key", true
		return done, nil
	case b.dryRun:
		done.Done = "would be requested"
		return done, nil
	}
	cause := b.cause(ask.Recipe, key)
	return b.request(done, scheduler.Request{Recipe: ask.Recipe, Key: key, Cause: cause, Priority: ask.Priority, Delay: b.delay(nth),
		Events: []json.RawMessage{b.wish(cause, ask, key)}, By: b.by, Correlation: b.correlation, Trace: b.trace})
}

// request requests one run and describes the result.
func (b *bulk) request(done api.RunDone, r scheduler.Request) (api.RunDone, error) {
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

// wish returns the event that a run gets as its cause.
func (b *bulk) wish(c tidemill.Cause, ask *api.RunsAsked, key string) json.RawMessage {
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
		return badParameter("first", "it is how many were asked for before")
	}
	b, end := g.newBulk(r, ask.Rate, ask.DryRun)
	defer end()
	done, p := b.do(&ask, func(run *tidemill.Run, nth int) (api.RunDone, error) {
		return b.retry(run, nth, len(ask.Runs) > 0)
	})
	if p != nil {
		return p
	}
	b.answer(w, done, "retry")
	return nil
}

// retry requests a run again. A run that was selected, not named, is left alone if its key
// has a newer run, because the newer run has seen the same data.
func (b *bulk) retry(run *tidemill.Run, nth int, named bool) (api.RunDone, error) {
	done := api.RunDone{Run: run.ID, Recipe: run.Recipe, Key: run.Key}
	refused := func(why string) (api.RunDone, error) {
		done.Done, done.Refused = why, true
		return done, nil
	}
	if !run.State.Ended() {
		return refused("it has not ended: " + string(run.State))
	}
	if _, known := b.g.opt.Config().Recipe(run.Recipe); !known {
		return refused("recipe " + run.Recipe + " is not in the config any more")
	}
	if !named {
		m, err := b.g.opt.Ledger.Making(b.ctx, run.Recipe, run.Key)
		if err != nil {
			return done, err
		}
		if why := newer(m, run.ID); why != "" {
			return refused(why)
		}
	}
	if b.dryRun {
		done.Done = "would be requested again"
		return done, nil
	}
	return b.again(done, run, nth)
}

// newer describes a newer run of the same key; empty if there is none.
func newer(m *fold.Making, id string) string {
	switch n := len(m.Ended); {
	case m.Waiting != nil:
		return "left alone: run " + m.Waiting.ID + " of its key waits"
	case m.Live != nil:
		return "left alone: run " + m.Live.ID + " of its key is under way"
	case n > 0 && m.Ended[n-1] != id:
		return "left alone: run " + m.Ended[n-1] + " of its key has ended since"
	}
	return ""
}

func (b *bulk) again(done api.RunDone, run *tidemill.Run, nth int) (api.RunDone, error) {
	asked, err := b.g.whatAsked(b.ctx, run, retriedEvents)
	if err != nil {
		return done, err
	}
	return b.request(done, scheduler.Request{Recipe: run.Recipe, Key: run.Key, Cause: b.cause("again", run.ID), Events: asked.events,
		Delay: b.delay(nth), Priority: run.Priority, By: b.by, Again: run.ID, Correlation: orElse(asked.correlation, b.correlation), Trace: b.trace})
}
