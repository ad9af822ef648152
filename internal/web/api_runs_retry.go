package web

import (
	"net/http"

	"tidemill.dev"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/runs"
)

// retryRuns asks anew for runs that have ended, with the events that had asked
// for them.
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

// retry asks for a run again. One that was selected, and not named, is left alone
// where its key has a newer one: that has seen what the old one saw.
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

// newer says which run has come after one; empty if none has.
func newer(m *tidemill.Making, id string) string {
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
	return b.request(done, runs.Request{Recipe: run.Recipe, Key: run.Key, Cause: b.cause("again", run.ID), Events: asked.events,
		Delay: b.delay(nth), Priority: run.Priority, By: b.by, Again: run.ID, Correlation: orElse(asked.correlation, b.correlation), Trace: b.trace})
}
