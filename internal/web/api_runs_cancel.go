package web

import (
	"net/http"

	"tidemill.dev"
	"tidemill.dev/internal/api"
)

// cancelRuns asks that runs end.
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
		done.Done = "cancelling" // its agent is told, and tells of the end
	default:
		done.Done, done.Refused = notCancelled(now), true
	}
	return done, nil
}

// notCancelled is why a run cannot be cancelled; empty if it can.
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
