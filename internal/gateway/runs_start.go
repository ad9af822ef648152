package gateway

import (
	"cmp"
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
		return badParameter("keys", "recipe "+recipe.Name+" has keys: name those to start runs for, or select all")
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
	if ask.After != "" && ask.All { // a key may have gone since
		first, _ = slices.BinarySearchFunc(keys, ask.After, func(key, after string) int { return cmp.Or(cmp.Compare(key, after), -1) })
	} else if ask.After != "" {
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
	case fold.Merged:
		done.Done = "merged"
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
