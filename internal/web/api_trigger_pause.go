package web

import (
	"context"
	"net/http"

	"tidemill.dev/broker"
	"tidemill.dev/internal/access"
	"tidemill.dev/internal/acts"
	"tidemill.dev/internal/api"
)

// pauseTrigger lets a trigger's events wait.
func (g *Gateway) pauseTrigger(w http.ResponseWriter, r *request) *api.Problem {
	return g.setPaused(w, r, true, acts.Author.PauseTrigger)
}

// resumeTrigger ends that.
func (g *Gateway) resumeTrigger(w http.ResponseWriter, r *request) *api.Problem {
	return g.setPaused(w, r, false, acts.Author.ResumeTrigger)
}

func (g *Gateway) setPaused(w http.ResponseWriter, r *request, paused bool, act func(acts.Author, string) broker.View) *api.Problem {
	hangUp(w, r) // a body has nothing to say here
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
	now, _ := look.config.Trigger(t) // if it has gone meanwhile, there is less to tell
	done.Trigger = look.of(&now)
	writeJSON(w, http.StatusOK, done)
	return nil
}

// triggerToChange is the trigger of the path, if the caller may change what
// becomes of events of every key.
func (g *Gateway) triggerToChange(r *request) (string, *api.Problem) {
	if _, ok := g.opt.Config().Trigger(r.value); !ok {
		return "", unknownTrigger(r.value)
	}
	if !r.caller.AllKeys(access.Operate) {
		return "", forbidden("a trigger is for all keys, and you may operate on some: ask one who may on all")
	}
	return r.value, nil
}

// untilRead waits a moment until an act that has been written has been read, so
// that its author sees what he has done.
func (g *Gateway) untilRead(ctx context.Context, f *acts.Follower, at broker.Position) {
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
