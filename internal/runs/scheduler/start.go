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

// move is the next step for a making.
type move int

// The moves.
const (
	nothing move = iota
	settles      // commit the output of the live run to its dataset
	admits       // claim a slot in the pool of its due run
)

// nextStep returns the next step for a making. The step depends only on the making and the time, so
// any process may call nextStep at any time. It ignores attempts under way, because only
// [Foreman.Watch] can find out over time that an attempt is lost.
func nextStep(m *fold.Making, now time.Time) move {
	if m.Live != nil && m.Live.State == tidemill.RunCommitting {
		return settles
	}
	if run, due := m.DueRun(); run != nil && !due.After(now) {
		return admits
	}
	return nothing
}

// begun returns the attempt that the fact at an offset has begun, if it is under way; nil if the
// log has refused the fact. If two processes start the same attempt, they write two facts, and only
// one of these facts is at the offset.
func begun(m *fold.Making, run string, number int, offset int64) *tidemill.Attempt {
	if m.Live == nil || m.Live.ID != run {
		return nil
	}
	if a := m.Live.Attempt(); a != nil && a.Number == number && a.Offset == offset {
		return a
	}
	return nil
}

// dueRun returns the run with an id if its next attempt may start now.
func dueRun(m *fold.Making, run string, now time.Time) *tidemill.Run {
	if r, at := m.DueRun(); r != nil && r.ID == run && !at.After(now) {
		return r
	}
	return nil
}

// startTries is how often a start is tried again at once because a new cause arrived meanwhile. The
// second try begins the run unless a cause has postponed it, or another process is quicker.
const startTries = 5

// begin starts the next attempt of the run for which a slot was claimed. It returns false, and
// gives the slot back, if the attempt did not start. The context limits how long the plan may take.
//
// A plan may take longer than the claim of its slot lasts. If this process plans the run already, or leaves it to Watch,
// the claim is kept: it holds the slot for the run, and lets other runs start meanwhile.
func (f *Foreman) begin(ctx context.Context, s ledger.Slot, patient bool) (bool, error) {
	for range startTries {
		m, err := f.ledger.Making(ctx, s.Recipe, s.Key)
		if err != nil {
			return false, f.giveBack(ctx, s, err)
		}
		run := dueRun(m, s.Run, f.now())
		if run == nil {
			break // another process was quicker, or the run was cancelled or postponed
		}
		if f.launching.has(tidemill.AttemptName(run.ID, run.NextAttempt())) || !patient && f.slow.has(run.ID) {
			return false, nil
		}
		begun, err := f.start(ctx, run)
		switch {
		case errors.Is(err, errNotNow):
			return false, f.giveBack(ctx, s, nil)
		case errors.Is(err, errTrouble):
			return false, f.postpone(ctx, s, asideUntil(run, f.now()))
		case err != nil:
			return false, f.giveBack(ctx, s, err)
		case begun:
			return true, nil
		}
	}
	return false, f.giveBack(ctx, s, nil)
}

// giveBack returns a slot. If that fails too, the claim expires.
func (f *Foreman) giveBack(ctx context.Context, s ledger.Slot, why error) error {
	ctx, cancel := steady(ctx)
	defer cancel()
	err := f.ledger.Return(ctx, s)
	if why != nil {
		return fmt.Errorf("begin run %s of recipe %s for key %s: %w", s.Run, s.Recipe, s.Key, why)
	}
	return err
}

// postpone gives back the slot of a run that cannot be planned for now.
func (f *Foreman) postpone(ctx context.Context, s ledger.Slot, until time.Time) error {
	ctx, cancel := steady(ctx)
	defer cancel()
	return f.ledger.Postpone(ctx, s, until)
}

// start proposes an attempt, and launches it if the log accepts. If it launched the attempt
// earlier, two processes could launch the same attempt. It returns false if the log refuses. If the
// launch fails, the attempt ends with that error, and the error is on the log.
func (f *Foreman) start(ctx context.Context, run *tidemill.Run) (bool, error) {
	number := run.NextAttempt()
	defer f.launching.enter(tidemill.AttemptName(run.ID, number))()
	d, fault, err := f.proposal(ctx, run, number)
	if err != nil {
		return false, err
	}
	ctx, cancel := steady(ctx)
	defer cancel()
	where, m, err := f.appendStart(ctx, run, d)
	if d.Plan != nil && errors.Is(err, broker.ErrTooLarge) {
		fault = unfitf("its plan is too large for an event; make env and command shorter")
		d.Plan = &tidemill.Plan{Team: d.Plan.Team, Pool: d.Plan.Pool, Attempts: 1}
		where, m, err = f.appendStart(ctx, run, d)
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

// appendStart appends the fact that begins an attempt, with the MAC of its plan.
func (f *Foreman) appendStart(ctx context.Context, run *tidemill.Run, d tidemill.RunStarted) (broker.Position, *fold.Making, error) {
	if d.Plan != nil {
		plan, err := json.Marshal(d.Plan)
		if err != nil {
			return broker.Position{}, nil, fmt.Errorf("write the plan of run %s: %w", run.ID, err)
		}
		d.MAC = f.opt.Tokens.Sign(run, plan)
	}
	return f.appendFact(ctx, startedFact(run, d), f.now())
}

// errNotNow says that a run cannot begin for now; the reason is recorded.
var errNotNow = errors.New("it cannot begin for now")

// errTrouble says that a run cannot be planned for now, and that its trouble is recorded.
var errTrouble = errors.New("it cannot be planned for now")

// learn waits for the result of a start that is on the log, after Redis was flushed in between.
// Otherwise an attempt that the log has begun would not be launched, and would be declared lost.
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

// learnEvery is the interval at which learn reads the state if no change is signalled.
const learnEvery = time.Second

// proposal returns the fact that begins an attempt. It contains the number of causes, which is read
// before the inputs are looked up. If another cause comes after that, the log does not begin the
// attempt, and closes the run to further causes. So no run begins without the data of an event that
// was merged into it, and the next try begins it.
//
// A later attempt uses the plan of the run. If that plan has no MAC, it is of an earlier version, or
// another client of Kafka has written it. Nothing tells the two apart, so the plan is made again. So
// is a plan that could not be made before because a commit was not in the store yet.
//
// The returned fault is the reason why the run ends with this attempt. The error is errNotNow or errTrouble.
func (f *Foreman) proposal(ctx context.Context, run *tidemill.Run, number int) (d tidemill.RunStarted, fault, err error) {
	d = tidemill.RunStarted{Attempt: number, Causes: run.Causes, Seen: run.LastAsked()}
	if number > 1 && run.PlanMAC != "" && hasPlan(run) { // launch checks the MAC
		d.Plan = f.movedPlan(run)
		return d, nil, nil
	}
	r, there := f.opt.Config().Recipe(run.Recipe)
	if !there {
		return d, nil, errNotNow // the run waits until it is cancelled or its recipe is in the config again
	}
	r, rollout, err := f.wayOf(r, run.Key)
	var plan tidemill.Plan
	if err == nil {
		plan, err = f.settlePlan(ctx, r, run)
		plan.Rollout = rollout
	}
	if _, unfit := errors.AsType[*planError](err); unfit {
		fault, err = err, nil
	}
	switch {
	case errors.Is(ctx.Err(), context.Canceled): // this process stops
		return d, nil, err
	case errors.Is(ctx.Err(), context.DeadlineExceeded) && f.slow.add(run.ID):
		return d, nil, errNotNow
	case err != nil:
		if f.troubles.add(run, err, f.now()) {
			f.log.Warn("scheduler: starting a run failed; retrying", "recipe", run.Recipe, "key", run.Key, "run", run.ID, "reason", err)
		}
		return d, nil, errTrouble
	}
	f.troubles.notePlanned(run)
	d.Plan = &plan
	return d, fault, nil
}

// movedPlan returns the plan of a run whose recipe is in another pool now: the claimed slot is there, and the old pool
// may no longer exist. It is nil if the plan stays. A plan without our MAC is not signed again.
func (f *Foreman) movedPlan(run *tidemill.Run) *tidemill.Plan {
	r, there := f.opt.Config().Recipe(run.Recipe)
	var p tidemill.Plan
	if !there || !f.opt.Tokens.Signed(run) || json.Unmarshal(run.Plan, &p) != nil || p.Pool == r.Run.Pool {
		return nil
	}
	p.Pool = r.Run.Pool
	return &p
}

// hasPlan reports whether a run's plan can be launched.
func hasPlan(run *tidemill.Run) bool {
	var plan tidemill.Plan
	return json.Unmarshal(run.Plan, &plan) == nil && made(plan)
}

// unsigned is the reason against the launch of a plan whose MAC is wrong, with the run's id.
const unsigned = "its plan was not made with the present run secret of this install, so nothing was launched: the secret was replaced since the run began, " +
	"or another client of Kafka or Redis has written the plan. If the secret is the same, find out who can write there. " +
	"To start the run again: tidemill runs retry %s"

// launch launches an attempt that the log has begun, or appends the reason against the launch.
func (f *Foreman) launch(ctx context.Context, run *tidemill.Run, a tidemill.Attempt, fault error) error {
	var plan tidemill.Plan
	if !f.opt.Tokens.Signed(run) {
		fault = unfitf(unsigned, run.ID)
	} else if err := json.Unmarshal(run.Plan, &plan); err != nil {
		fault = unfitf("its plan cannot be read: %v", err)
	}
	if fault == nil && !made(plan) {
		fault = unfitf("its plan could not be made when it began; ask for it again")
	}
	if fault != nil {
		return f.failLaunch(ctx, run, a, fault)
	}
	f.log.Debug("scheduler: starting an attempt", "recipe", run.Recipe, "key", run.Key, "run", run.ID)
	err := f.opt.Launcher.Launch(ctx, Attempt{Name: tidemill.AttemptName(run.ID, a.Number), Run: run.ID, Recipe: run.Recipe,
		Key: run.Key, Number: a.Number, Token: f.opt.Tokens.Of(run.ID, a), Plan: plan})
	if err != nil {
		return f.failLaunch(ctx, run, a, fmt.Errorf("it could not be launched: %w", err))
	}
	return nil
}

// failLaunch ends an attempt that never ran. The run gets another attempt if that may succeed.
func (f *Foreman) failLaunch(ctx context.Context, run *tidemill.Run, a tidemill.Attempt, why error) error {
	d := tidemill.RunFinished{Attempt: a.Number, Outcome: tidemill.OutcomeLost, Reason: why.Error(), Result: tidemill.Result{Exit: -1}}
	if wrong, ok := errors.AsType[*planError](why); ok && !wrong.again || errors.Is(why, ErrUnlaunchable) {
		d.Outcome, d.Permanent = tidemill.OutcomeFailed, true
	}
	f.log.Warn("scheduler: starting an attempt failed", "recipe", run.Recipe, "key", run.Key, "run", run.ID, "reason", why)
	_, err := f.conclude(ctx, run, byController, d)
	return err
}
