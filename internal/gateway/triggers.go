package gateway

import (
	"context"
	"errors"
	"net/http"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/ops/status"
	"tidemill.dev/triggers/commands"
	"tidemill.dev/triggers/deadletters"
)

// triggerLook holds the state of the triggers. A failed lookup leaves a number unknown; it is
// never shown as zero.
type triggerLook struct {
	config  *config.Config
	acts    *commands.State
	whole   *status.Whole  // nil if unknown
	letters map[string]int // open dead letters by trigger; nil if unknown
}

// listTriggers answers with all triggers of the config.
func (g *Gateway) listTriggers(w http.ResponseWriter, r *request) *api.Problem {
	look, p := g.lookAtTriggers(r.Context())
	if p != nil {
		return p
	}
	all := api.Triggers{Triggers: []api.Trigger{}}
	if look.whole != nil {
		all.Dispatchers = &look.whole.Dispatchers
	}
	for i := range look.config.Triggers {
		all.Triggers = append(all.Triggers, look.of(&look.config.Triggers[i]))
	}
	writeJSON(w, http.StatusOK, all)
	return nil
}

// showTrigger answers with one trigger.
func (g *Gateway) showTrigger(w http.ResponseWriter, r *request) *api.Problem {
	t, ok := g.opt.Config().Trigger(r.value)
	if !ok {
		return unknownTrigger(r.value)
	}
	look, p := g.lookAtTriggers(r.Context())
	if p != nil {
		return p
	}
	writeJSON(w, http.StatusOK, look.of(&t))
	return nil
}

func (g *Gateway) lookAtTriggers(ctx context.Context) (*triggerLook, *api.Problem) {
	f, p := g.asked(ctx)
	if p != nil {
		return nil, p
	}
	look := &triggerLook{config: g.opt.Config(), acts: f.Now()}
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.soon())
	defer cancel()
	if book, err := g.desk.book.get(ctx); err == nil {
		look.letters = book.Counts()
	}
	whole, err := g.opt.Standing.Read(ctx)
	switch {
	case err == nil:
		look.whole = &whole
	case !errors.Is(err, status.ErrNoRedis):
		g.log.Debug("it is not known how the triggers stand", "reason", err)
	}
	return look, nil
}

// of returns the state of one trigger.
func (l *triggerLook) of(t *config.Trigger) api.Trigger {
	shown := api.Trigger{Name: t.Name, When: []api.When{}, To: targetOf(t.To), Streams: append([]string{}, l.config.StreamsOf(*t)...),
		Delivery: deliveryOf(&t.Delivery), State: api.TriggerActive, Replays: []api.TriggerReplay{}}
	for _, w := range t.When {
		shown.When = append(shown.When, api.When{Stream: w.Stream, Types: append([]string{}, w.Types...), Where: w.Where})
	}
	if l.letters != nil {
		shown.DeadLetters = new(l.letters[t.Name])
	}
	l.count(t.Name, &shown)
	if pause, rests := l.acts.TriggerPause(t.Name); rests {
		shown.State, shown.PausedBy, shown.PausedSince = api.TriggerPaused, pause.By, &pause.Since
	}
	for _, r := range l.acts.Replays() {
		if r.Trigger == t.Name {
			shown.Replays = append(shown.Replays, api.TriggerReplay{ID: r.ID, By: r.By, At: r.At, From: r.From, To: r.To, Rate: r.Rate, Range: stretchesOf(r.Streams)})
		}
	}
	return shown
}

// count adds the numbers of the dispatchers. A trigger is starting while dispatchers exist
// but none knows it.
func (l *triggerLook) count(name string, shown *api.Trigger) {
	if l.whole == nil || l.whole.Dispatchers == 0 {
		return
	}
	n, known := l.whole.Triggers[name]
	if !known || n.Starting {
		shown.State = api.TriggerStarting
	}
	shown.Numbers = &api.TriggerNumbers{Delivered: n.Delivered, Failed: n.Failed, DeadLettered: n.DeadLettered, Replies: n.Replies,
		InFlight: n.InFlight, Parked: n.Parked, OldestParked: timeOrNull(n.OldestParked)}
	shown.Waits = n.Waits
	shown.LastError, shown.LastErrorAt = n.LastError, timeOrNull(n.LastErrorAt)
}

func timeOrNull(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	return &at
}

func targetOf(t config.Target) api.Target {
	return api.Target{URL: deadletters.WithoutSecrets(t.URL), Service: t.Service, Function: t.Function}
}

func deliveryOf(d *config.Delivery) api.Delivery {
	shown := api.Delivery{Attempts: d.Attempts, Backoff: string(d.Backoff.Kind), TimeoutSeconds: d.Timeout.Seconds(), Order: "none",
		Concurrency: d.Concurrency, Rate: d.Rate, Replies: "ignore"}
	if d.Ordered {
		shown.Order = "key"
	}
	if d.Replies {
		shown.Replies = "accept"
	}
	return shown
}

// pauseTrigger pauses a trigger, so that its events wait.
func (g *Gateway) pauseTrigger(w http.ResponseWriter, r *request) *api.Problem {
	return g.setPaused(w, r, true, commands.Author.PauseTrigger)
}

// resumeTrigger ends the pause.
func (g *Gateway) resumeTrigger(w http.ResponseWriter, r *request) *api.Problem {
	return g.setPaused(w, r, false, commands.Author.ResumeTrigger)
}

func (g *Gateway) setPaused(w http.ResponseWriter, r *request, paused bool, act func(commands.Author, string) broker.View) *api.Problem {
	hangUp(w, r) // the request needs no body
	t, p := g.triggerToChange(r)
	if p != nil {
		return p
	}
	f, p := g.asked(r.Context())
	if p != nil {
		return p
	}
	done := api.TriggerDone{Changed: f.Now().TriggerPaused(t) != paused}
	if done.Changed {
		v := act(g.author(r), t)
		at, p := g.publishAct(r, &v)
		if p != nil {
			return p
		}
		done.Position = new(positionOf(at))
		g.untilRead(r.Context(), f, at)
	}
	look, p := g.lookAtTriggers(r.Context())
	if p != nil {
		return p
	}
	now, _ := look.config.Trigger(t) // if it was removed meanwhile, the answer says less
	done.Trigger = look.of(&now)
	writeJSON(w, http.StatusOK, done)
	return nil
}

// triggerToChange returns the trigger in the path, if the caller may operate on all keys: a
// change affects the events of every key.
func (g *Gateway) triggerToChange(r *request) (string, *api.Problem) {
	if _, ok := g.opt.Config().Trigger(r.value); !ok {
		return "", unknownTrigger(r.value)
	}
	if !r.caller.AllKeys(access.Operate) {
		return "", forbidden("a trigger is for all keys, and you may operate on some: ask one who may on all")
	}
	return r.value, nil
}

// untilRead waits a moment until a published command has been read, so that its author sees
// the effect.
func (g *Gateway) untilRead(ctx context.Context, f *commands.Follower, at broker.Position) {
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	for {
		changed := f.Changed()
		if f.Now().Next() > at.Offset {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
