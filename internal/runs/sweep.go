package runs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"tidemill.dev"
)

// watcher remembers between two sweeps when each attempt was heard of last, or
// when it learned of it: who has just come has heard of none, and has to give
// them the time to be heard. So has who was deaf, for while the ledger or Redis
// is away no agent can say anything. And of a flush, which forgets when they
// were heard of, a sweep may know nothing.
type watcher struct {
	*Foreman
	rules rules
	since map[string]time.Time // by the attempts' names
	asked map[string]time.Time // when the launcher was asked for one that waits, by its name
	deaf  bool                 // since the last sweep
}

// sweep looks at everything that is under way, whatever was missed: it settles
// what has succeeded and finds out who is lost. An error with one run keeps it
// from no other.
func (w *watcher) sweep(ctx context.Context) error {
	live, beats, err := w.listen(ctx)
	if err != nil {
		return err
	}
	var errs []error
	now := w.now()
	w.keep(live, beats, now)
	for i := range live {
		run := &live[i]
		switch {
		case run.State == tidemill.RunSettling:
			_, err = w.settle(ctx, run)
		case run.Attempt() != nil && w.opt.Launcher != nil:
			err = w.tend(ctx, run, now)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// listen reads what is under way, and when it was heard of.
func (w *watcher) listen(ctx context.Context) (live []tidemill.Run, beats map[string]time.Time, err error) {
	if live, err = w.ledger.Live(ctx); err == nil {
		beats, err = w.ledger.Beats(ctx)
	}
	w.deaf = w.deaf || err != nil
	return live, beats, err
}

// keep notes when the attempts were heard of, and forgets those that have ended.
func (w *watcher) keep(live []tidemill.Run, beats map[string]time.Time, now time.Time) {
	if w.deaf {
		w.since, w.deaf = nil, false
	}
	since := make(map[string]time.Time, len(live))
	for i := range live {
		a := live[i].Attempt()
		if a == nil {
			continue
		}
		name := tidemill.AttemptName(live[i].ID, a.Number)
		if since[name] = now; !w.since[name].IsZero() {
			since[name] = w.since[name]
		}
		if beat := beats[name]; beat.After(since[name]) {
			since[name] = beat
		}
	}
	w.since = since
	maps.DeleteFunc(w.asked, func(name string, _ time.Time) bool { return since[name].IsZero() })
}

// tend declares an attempt lost if it is.
func (w *watcher) tend(ctx context.Context, run *tidemill.Run, now time.Time) error {
	a := run.Attempt()
	name := tidemill.AttemptName(run.ID, a.Number)
	s := w.rules.suspect(run, w.since[name], now)
	if !s.any() || w.launching.has(name) || w.waits(a, name, s, now) {
		return nil
	}
	has, err := w.opt.Launcher.Has(ctx, name)
	switch {
	case err != nil:
		return fmt.Errorf("ask whether attempt %s is at work: %w", name, err)
	case has && s.there != "":
		return w.lose(ctx, run, s.there)
	case !has && s.gone != "":
		return w.lose(ctx, run, s.gone)
	}
	return nil
}

// waitsAsked is how often the launcher is asked for an attempt whose pod waits.
const waitsAsked = 30 * time.Second

// waits reports whether an attempt that is silent is known to wait for a node.
// Who watches its pod tells what becomes of it; a thousand that wait are not each
// asked for with every sweep.
func (w *watcher) waits(a *tidemill.Attempt, name string, s suspicion, now time.Time) bool {
	if a.Pending == "" || s.there != "" {
		return false
	}
	if now.Sub(w.asked[name]) < waitsAsked {
		return true
	}
	if w.asked == nil {
		w.asked = map[string]time.Time{}
	}
	w.asked[name] = now
	return false
}

// lose declares an attempt lost, unless it has ended since it was looked at: an
// agent tells of its end before it goes, so that whoever is gone and has not told
// will not tell any more. Then it is stopped, should it be at work after all.
func (w *watcher) lose(ctx context.Context, run *tidemill.Run, why string) error {
	a := run.Attempt()
	m, err := w.ledger.Making(ctx, run.Recipe, run.Key)
	if err != nil {
		return err
	}
	if begun(m, run.ID, a.Number, a.Offset) == nil {
		return nil
	}
	w.log.Warn("an attempt is lost", "recipe", run.Recipe, "key", run.Key, "run", run.ID, "reason", why)
	_, err = w.conclude(ctx, m.Live, byKeeper, tidemill.RunFinished{Attempt: a.Number, Outcome: tidemill.OutcomeLost, Reason: why,
		Result: tidemill.Result{Exit: -1}})
	if err != nil {
		return err
	}
	name := tidemill.AttemptName(run.ID, a.Number)
	if err := w.opt.Launcher.Stop(ctx, name); err != nil {
		return fmt.Errorf("stop attempt %s, which is lost: %w", name, err)
	}
	return nil
}
