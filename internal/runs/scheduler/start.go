package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/retry"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
)

// move is what a making asks its foreman to do.
type move int

// The moves.
const (
	nothing move = iota
	settles      // put on its dataset what the live run has made
	admits       // have a slot of its pool claimed: its run may be the next
)

// next reads what there is to do from a making alone, so that it does not matter
// who asks, how often, or what came before. Attempts that are under way are no
// part of it: whether they are lost takes a clock, and the patience of [Foreman.Watch].
func next(m *fold.Making, now time.Time) move {
	if m.Live != nil && m.Live.State == tidemill.RunSettling {
		return settles
	}
	if run, due := m.DueRun(); run != nil && !due.After(now) {
		return admits
	}
	return nothing
}

// begun is the attempt that a fact at an offset has begun, if it is under way;
// nil if the log has refused it. Two who start the same attempt write two facts:
// only one of them is at the offset.
func begun(m *fold.Making, run string, number int, offset int64) *tidemill.Attempt {
	if m.Live == nil || m.Live.ID != run {
		return nil
	}
	if a := m.Live.Attempt(); a != nil && a.Number == number && a.Offset == offset {
		return a
	}
	return nil
}

// due is the run of an id if its next attempt may start now.
func due(m *fold.Making, run string, now time.Time) *tidemill.Run {
	if r, at := m.DueRun(); r != nil && r.ID == run && !at.After(now) {
		return r
	}
	return nil
}

// startTries is how often a start is tried again at once because a cause has come
// between: more than a few in so short a time mean that more are to come.
const startTries = 5

// begin starts the next attempt of the run that a slot was claimed for. It is
// false, and the slot given back, if the log would have none of it.
func (f *Foreman) begin(ctx context.Context, s ledger.Slot) (bool, error) {
	ctx, cancel := steady(ctx)
	defer cancel()
	for range startTries {
		m, err := f.ledger.Making(ctx, s.Recipe, s.Key)
		if err != nil {
			return false, f.giveBack(ctx, s, err)
		}
		run := due(m, s.Run, f.now())
		if run == nil {
			break // somebody was quicker, it was cancelled, or a cause has put it off
		}
		begun, err := f.start(ctx, run)
		switch {
		case errors.Is(err, errNotNow):
			return false, f.giveBack(ctx, s, nil)
		case err != nil:
			return false, f.giveBack(ctx, s, err)
		case begun:
			return true, nil
		}
	}
	return false, f.giveBack(ctx, s, nil)
}

// giveBack returns a slot. Where even that fails the claim ends by itself.
func (f *Foreman) giveBack(ctx context.Context, s ledger.Slot, why error) error {
	err := f.ledger.Return(ctx, s)
	if why != nil {
		return fmt.Errorf("begin run %s of recipe %s for key %s: %w", s.Run, s.Recipe, s.Key, why)
	}
	return err
}

// start proposes an attempt, and launches it if the log accepts: no sooner, or
// two who start the same would launch two. It is false if the log refuses. An
// error after the log has accepted is that attempt's, and stands on the log.
func (f *Foreman) start(ctx context.Context, run *tidemill.Run) (bool, error) {
	number := run.NextAttempt()
	defer f.launching.enter(tidemill.AttemptName(run.ID, number))()
	d, fault, err := f.proposal(ctx, run, number)
	if err != nil {
		return false, err
	}
	where, m, err := f.put(ctx, startedFact(run, d), f.now())
	if d.Plan != nil && errors.Is(err, broker.ErrTooLarge) {
		fault = unfitf("its plan is too large for an event; make env and command shorter")
		d.Plan = &tidemill.Plan{Team: d.Plan.Team, Pool: d.Plan.Pool, Attempts: 1}
		where, m, err = f.put(ctx, startedFact(run, d), f.now())
	}
	if err != nil {
		m, err = f.learn(ctx, run, err)
	}
	if err != nil {
		return false, err
	}
	a := begun(m, run.ID, number, where.Offset)
	if a == nil {
		return false, nil
	}
	f.metrics.started(run, number, f.now())
	return true, f.launch(ctx, m.Live, *a, fault)
}

// errNotNow says that a run cannot begin for now, which has been noted.
var errNotNow = errors.New("it cannot begin for now")

// learn waits for what the log makes of a start that is on it, where Redis was
// flushed just then. Whoever gave up here would leave an attempt that the log has
// begun to be found lost.
func (f *Foreman) learn(ctx context.Context, run *tidemill.Run, err error) (*fold.Making, error) {
	there, ok := errors.AsType[*ledger.AppendedError](err)
	for ok {
		changed := f.ledger.Changed()
		m, wrong := f.ledger.Making(ctx, run.Recipe, run.Key)
		switch {
		case wrong == nil && m.Next > there.Position.Offset:
			return m, nil
		case wrong != nil && !errors.Is(wrong, ledger.ErrCatchingUp):
			return nil, errors.Join(err, wrong)
		}
		ok = retry.Wait(ctx, changed, learnEvery) == nil
	}
	return nil, err
}

// learnEvery is how often it is asked although nothing is known to have changed.
const learnEvery = time.Second

// proposal is the fact that begins an attempt. Which cause was the newest stands
// in the run, which was read before its inputs are looked up: one that comes
// since makes the log refuse the start, so that no run begins without the data
// of an event that it has absorbed.
//
// The fault is why the run ends with its first attempt. The error is errNotNow.
func (f *Foreman) proposal(ctx context.Context, run *tidemill.Run, number int) (d tidemill.RunStarted, fault, err error) {
	d = tidemill.RunStarted{Attempt: number, Seen: run.LastAsked()}
	if number > 1 {
		return d, nil, nil
	}
	r, there := f.opt.Config().Recipe(run.Recipe)
	if !there {
		return d, nil, errNotNow // it waits until its recipe comes back, or it is cancelled
	}
	plan, err := f.settlePlan(ctx, r, run)
	if _, hopeless := errors.AsType[*unfit](err); hopeless {
		fault, err = err, nil
	}
	if err != nil {
		if f.troubles.add(r.Name, err, f.now()) {
			f.log.Warn("a run cannot begin for now; it is tried again", "recipe", run.Recipe, "key", run.Key, "run", run.ID, "reason", err)
		}
		return d, nil, errNotNow
	}
	f.troubles.over(r.Name)
	d.Plan = &plan
	return d, fault, nil
}

// launch has an attempt launched that the log has begun, or tells the log why
// that cannot be.
func (f *Foreman) launch(ctx context.Context, run *tidemill.Run, a tidemill.Attempt, fault error) error {
	var plan tidemill.Plan
	if err := json.Unmarshal(run.Plan, &plan); err != nil {
		fault = unfitf("its plan cannot be read: %v", err)
	}
	if fault == nil && !made(plan) {
		fault = unfitf("its plan could not be made when it began; ask for it again")
	}
	if fault != nil {
		return f.stillborn(ctx, run, a, fault)
	}
	f.log.Debug("an attempt begins", "recipe", run.Recipe, "key", run.Key, "run", run.ID)
	err := f.opt.Launcher.Launch(ctx, Attempt{Name: tidemill.AttemptName(run.ID, a.Number), Run: run.ID, Recipe: run.Recipe,
		Key: run.Key, Number: a.Number, Token: f.opt.Tokens.Of(run.ID, a), Plan: plan})
	if err != nil {
		return f.stillborn(ctx, run, a, fmt.Errorf("it could not be launched: %w", err))
	}
	return nil
}

// stillborn ends an attempt that never ran. The run goes on with another one if
// there is hope.
func (f *Foreman) stillborn(ctx context.Context, run *tidemill.Run, a tidemill.Attempt, why error) error {
	d := tidemill.RunFinished{Attempt: a.Number, Outcome: tidemill.OutcomeLost, Reason: why.Error(), Result: tidemill.Result{Exit: -1}}
	if _, hopeless := errors.AsType[*unfit](why); hopeless || errors.Is(why, ErrUnlaunchable) {
		d.Outcome, d.Permanent = tidemill.OutcomeFailed, true
	}
	f.log.Warn("an attempt could not begin", "recipe", run.Recipe, "key", run.Key, "run", run.ID, "reason", why)
	_, err := f.conclude(ctx, run, byController, d)
	return err
}
