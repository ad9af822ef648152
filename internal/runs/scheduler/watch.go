package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker/retry"
	"tidemill.dev/internal/data/ledger"
)

const (
	sweepEvery   = 2 * time.Second
	recoverEvery = time.Minute
	// breath is how long a watcher rests between two looks at the pools, however
	// much happens: who asks for a run, or ends one, looks at its pool itself.
	breath = 50 * time.Millisecond

	firstPause = 100 * time.Millisecond
	lastPause  = 5 * time.Second

	// inARound is how many attempts one of them begins before the rest is looked
	// at again.
	inARound = 100
	// atOnce is how many attempts one look at the pools begins at the same time.
	atOnce = 8
)

// Watch does what needs a clock until the context ends: what is due, who is
// lost, what was not settled. Several may watch at once. It goes by what the log
// says now and by nothing that it was told before, so that nothing it missed is
// missed for ever.
func (f *Foreman) Watch(ctx context.Context) error {
	w := &watcher{Foreman: f, rules: rules{silence: f.opt.Silence, alone: f.opt.Alone}}
	var l loop
	for ctx.Err() == nil {
		changed := f.ledger.Changed()
		err := w.round(ctx, &l)
		f.health.report(f.log, ctx, errors.Join(err, l.mishaps, f.troubles.err(f.now())))
		l.rest(ctx, changed, l.pause(err), f.now)
	}
	return nil
}

// loop is when a watcher does what next.
type loop struct {
	swept, recovered time.Time
	failures         int
	mishaps          error     // of the last sweep: they keep nobody from what is due
	wake             time.Time // something is due then
}

// round looks at the pools, and now and then at everything else. Nothing is
// decided before the ledger has caught up.
func (w *watcher) round(ctx context.Context, l *loop) error {
	w.deaf = w.deaf || w.ledger.Status().Behind > 0
	if err := w.ledger.CaughtUp(ctx); err != nil {
		return err
	}
	sweeps := false
	if now := w.now(); now.Sub(l.swept) >= sweepEvery {
		sweeps = true
		l.swept, l.mishaps = now, errors.Join(w.sweep(ctx), w.recover(ctx, l, now))
	}
	at, due, err := w.ledger.NextDue(ctx, w.now())
	if err == nil && (due > 0 || sweeps) { // most facts make nothing due, and a look costs less than a claim for each pool
		err = w.admitAll(ctx)
		var failed error
		at, _, failed = w.ledger.NextDue(ctx, w.now())
		err = errors.Join(err, failed)
	}
	l.wake = at
	return err
}

// recover tells of the commits that a crash has cut off from their events.
func (w *watcher) recover(ctx context.Context, l *loop, now time.Time) error {
	if now.Sub(l.recovered) < recoverEvery {
		return nil
	}
	if err := w.opt.Store.Recover(ctx, w.opt.Announce); err != nil {
		return fmt.Errorf("announce commits that were cut off: %w", err)
	}
	l.recovered = now
	return nil
}

// admitAll fills every pool.
func (w *watcher) admitAll(ctx context.Context) error {
	c := w.opt.Config()
	var (
		filling sync.WaitGroup
		all     faults
	)
	for i := range c.Pools {
		filling.Go(func() { all.add(w.fill(ctx, c.Pools[i].Name)) })
	}
	filling.Wait()
	return all.err()
}

// fill begins what a pool has slots for, several at a time: each waits for the log
// and the store, and not for the processor.
func (w *watcher) fill(ctx context.Context, pool string) error {
	var (
		beginning sync.WaitGroup
		room      = make(chan struct{}, atOnce)
		fruitless atomic.Int32
		all       faults
	)
	for n := 0; n < inARound && fruitless.Load() < maxFruitless; n++ {
		slot, got, err := w.claim(ctx, pool)
		if all.add(err); err != nil || !got {
			break
		}
		room <- struct{}{}
		beginning.Go(func() {
			begun, err := w.begin(ctx, slot)
			if all.add(err); !begun {
				fruitless.Add(1)
			}
			<-room
		})
	}
	beginning.Wait()
	return all.err()
}

// faults are those of several goroutines.
type faults struct {
	mu  sync.Mutex
	all []error
}

func (f *faults) add(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, err)
}

func (f *faults) err() error { return errors.Join(f.all...) }

// pause is how long the next round is put off at least.
func (l *loop) pause(err error) time.Duration {
	if err == nil || errors.Is(err, ledger.ErrCatchingUp) {
		l.failures = 0
		return breath
	}
	l.failures++
	return retry.Backoff{First: firstPause, Cap: lastPause}.After(l.failures)
}

// rest waits for a pause, and then for something to do.
func (l *loop) rest(ctx context.Context, changed <-chan struct{}, pause time.Duration, now func() time.Time) {
	if retry.Sleep(ctx, pause) != nil {
		return
	}
	next := l.swept.Add(sweepEvery)
	if !l.wake.IsZero() && l.wake.Before(next) {
		next = l.wake
	}
	_ = retry.Wait(ctx, changed, next.Sub(now()))
}

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
	_, err = w.conclude(ctx, m.Live, byController, tidemill.RunFinished{Attempt: a.Number, Outcome: tidemill.OutcomeLost, Reason: why,
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

// underWay are the attempts that this process is about to launch: the log may
// have begun them while their launcher has not, and they are not lost.
type underWay struct {
	mu    sync.Mutex
	names map[string]int // several may try the same
}

// enter notes one until leave is called.
func (u *underWay) enter(name string) (leave func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.names == nil {
		u.names = map[string]int{}
	}
	u.names[name]++
	return func() { u.leave(name) }
}

func (u *underWay) leave(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.names[name]--; u.names[name] == 0 {
		delete(u.names, name)
	}
}

func (u *underWay) has(name string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.names[name] > 0
}
