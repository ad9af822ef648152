package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
)

// ErrSuperseded is why an attempt ends that counts no more: its command is
// killed at once, and nothing is said.
var ErrSuperseded = errors.New("the attempt counts no more")

// ErrPassing is in an error of Options.Equip that another attempt may not meet.
var ErrPassing = errors.New("it may pass")

// Stopping is the cause of a context that ends since the machine stops, and says
// by when the attempt has to have left.
type Stopping struct{ By time.Time }

func (s *Stopping) Error() string { return "the machine stopped" }

// cancelled is why a run ends that somebody does not want any more.
type cancelled struct{ reason string }

func (c *cancelled) Error() string { return c.reason }

// late is why an attempt ends that has taken too long.
type late struct{ after time.Duration }

func (l *late) Error() string { return fmt.Sprintf("deadline of %s passed", short(l.after)) }

// fault is what is wrong with the command or what it made.
type fault struct {
	permanent bool // another attempt would fail too
	err       error
}

func (f *fault) Error() string { return f.err.Error() }
func (f *fault) Unwrap() error { return f.err }

func permanent(format string, args ...any) error {
	return &fault{permanent: true, err: fmt.Errorf(format, args...)}
}

// verdict is what an attempt tells for an error: why it had to end early counts
// more than what went wrong by that.
func verdict(early, err error) (o tidemill.Outcome, reason string, permanent bool) {
	var (
		stop   *Stopping
		person *cancelled
		f      *fault
	)
	switch {
	case err == nil:
		return tidemill.OutcomeSucceeded, "", false
	case errors.As(early, &stop):
		return tidemill.OutcomeLeft, early.Error(), false
	case errors.As(early, &person):
		return tidemill.OutcomeCancelled, early.Error(), false
	case early != nil:
		return tidemill.OutcomeFailed, early.Error(), false
	}
	return tidemill.OutcomeFailed, err.Error(), errors.As(err, &f) && f.permanent
}

const (
	leaveWithin = 10 * time.Second // where a machine that stops does not say by when
	saveWithin  = 55 * time.Second // what a command leaves behind is saved and told
	tellWithin  = 15 * time.Second // and told alone
	lastWithin  = time.Hour        // how long a gateway that is away is waited for at the end
)

// ends are the contexts of an attempt. Each that is listed ends when the one
// below it does.
//
//	work:  the first reason to end early has come, whichever it is
//	leave: the command may no longer take its time to leave
//	save:  what it leaves behind can no longer be brought away
//	last:  nothing can be said any more
//	dead:  nothing may be said any more
type ends struct {
	dead, last, save, leave, work context.Context
	die, end                      context.CancelCauseFunc
	noLast, noSave, noLeave       context.CancelFunc
	unwatch                       func() bool

	mu     sync.Mutex
	timers []*time.Timer
}

func newEnds(ctx context.Context) *ends {
	e := &ends{}
	e.dead, e.die = context.WithCancelCause(context.WithoutCancel(ctx))
	e.last, e.noLast = context.WithCancel(e.dead)
	e.save, e.noSave = context.WithCancel(e.last)
	e.leave, e.noLeave = context.WithCancel(e.save)
	e.work, e.end = context.WithCancelCause(e.leave)
	e.unwatch = context.AfterFunc(ctx, func() { e.stop(context.Cause(ctx)) })
	return e
}

// stop is called when the caller's context has ended. The command has half of
// the time that there is, what it leaves behind a third, and what is said of it
// the rest; where there is much, saving and telling need no more than they do.
func (e *ends) stop(why error) {
	if errors.Is(why, ErrSuperseded) {
		e.die(why)
		return
	}
	var s *Stopping
	if !errors.As(why, &s) {
		s = &Stopping{By: time.Now().Add(leaveWithin)}
	}
	e.end(s)
	left := max(time.Until(s.By), 0)
	e.after(max(left/2, left-saveWithin), e.noLeave)
	e.after(max(left*5/6, left-tellWithin), e.noSave)
	e.after(left, e.noLast)
}

// over is called when there is nothing left but to bring away what was made, for as
// long as more says, and to tell of it.
func (e *ends) over(more time.Duration) {
	e.after(more+lastWithin*5/6, e.noSave)
	e.after(more+lastWithin, e.noLast)
}

// Longest is how long an attempt may take, once its agent has begun: its deadline
// until its command has been asked to leave, its grace, the deadline once more for
// what is brought away, and what it may take to tell of it. An agent that is there
// for longer hangs.
func Longest(deadline, grace time.Duration) time.Duration { return 2*deadline + grace + lastWithin }

func (e *ends) after(d time.Duration, fn func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.timers = append(e.timers, time.AfterFunc(d, fn))
}

// early is why the attempt ends before its command does; nil if it does not.
func (e *ends) early() error { return context.Cause(e.work) }

// isDead reports whether the attempt counts no more.
func (e *ends) isDead() bool { return e.dead.Err() != nil }

func (e *ends) close() {
	e.unwatch()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, t := range e.timers {
		t.Stop()
	}
	e.die(nil)
}

// short is a duration without its zeros: 1h, and not 1h0m0s.
func short(d time.Duration) string {
	switch {
	case d >= time.Hour && d%time.Hour == 0:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d >= time.Minute && d%time.Minute == 0:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return d.String()
}

// measured reads what the command has measured.
func (a *attempt) measured() error {
	all, left, err := metricsOf(a.dirs.out())
	if left > 0 {
		a.log.note("%s has %d numbers more than are kept: the first by their names are", metricsName, left)
	}
	a.metrics = all
	return err
}

// report says the last word.
func (a *attempt) report(err error) error {
	a.ends.over(0)
	if !a.party.first() {
		return a.leave(err)
	}
	if err != nil && a.ending == nil && a.order.Run != "" {
		a.log.note("%v", err) // who looks for the command's words finds why there are none
	}
	if err != nil && a.ending != nil && a.metrics == nil {
		a.metrics, _, _ = metricsOf(a.dirs.out()) // as far as it came; the failure is told already
	}
	a.log.close()
	if a.ends.isDead() {
		return ErrSuperseded
	}
	return a.say(a.lastWord(err))
}

// say tells of the end, and of a failure instead where the gateway does not take
// that.
func (a *attempt) say(word api.Finish) error {
	a.telling.Store(true)
	said := a.finish(word)
	if r := new(refusal); errors.As(said, &r) && !a.ends.isDead() {
		said = a.finish(instead(word, r))
	}
	if a.ends.isDead() {
		return ErrSuperseded
	}
	if said == nil {
		a.told = word.Outcome
	}
	return said
}

func (a *attempt) finish(f api.Finish) error {
	if err := a.door.tell(a.ends.last, "/finish", f, &api.Finished{}); err != nil {
		return fmt.Errorf("tell how attempt %s has ended (%s): %w", a.o.Attempt, f.Outcome, err)
	}
	return nil
}

// lastWord is how the attempt has ended.
func (a *attempt) lastWord(err error) api.Finish {
	f := api.Finish{Where: a.where, Inside: a.o.Inside, Files: []api.File{}, Result: tidemill.Result{
		Exit: -1, PeakMemory: a.peak, GPUSeconds: float64(a.gpus()) * a.seconds, Stages: a.stages, Metrics: a.metrics,
		LastLines: a.log.tail(), LogBytes: a.log.told, Cut: a.log.cut()}}
	f.Outcome, f.Reason, f.Permanent = verdict(a.ends.early(), err)
	if a.ending != nil {
		f.Result.Exit, f.Result.Signal = a.ending.exit, a.ending.signal
		if a.gear.Engine != "" && a.contained() {
			f.Where.Image = digestOf(a.gear.Engine, a.order.Plan.Image)
		}
	}
	if f.Outcome == tidemill.OutcomeSucceeded {
		f.Files = append(f.Files, a.made...)
	}
	return f
}

// gpus is how many the attempt has held, at all of its workers.
func (a *attempt) gpus() int {
	n := len(a.gear.GPUs)
	if a.o.Inside {
		n = a.order.Plan.GPUs // a card that no program of its maker's lists is held all the same
	}
	return n * max(1, len(a.o.Workers))
}

// instead is what is said where the gateway does not take the last word: that
// can be, and without it the run would be taken for lost, and begun again.
func instead(f api.Finish, refused error) api.Finish {
	why := fmt.Sprintf("the gateway does not take how it ended: %v", refused)
	if f.Reason != "" {
		why = f.Reason + "; " + why
	}
	if f.Outcome == tidemill.OutcomeSucceeded {
		f.Outcome, f.Permanent = tidemill.OutcomeFailed, true
	}
	f.Reason, f.Files = why, []api.File{}
	f.Result.Metrics, f.Result.LastLines = nil, ""
	return f
}
