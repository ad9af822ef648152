package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
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
	// shortestPause is the shortest time between two rounds, even if many facts arrive. A request,
	// or the end of an attempt, fills its own pool without Watch.
	shortestPause = 50 * time.Millisecond

	firstPause = 100 * time.Millisecond
	lastPause  = 5 * time.Second

	// startsPerLook is how many attempts are begun in one pool before the round continues with
	// other work.
	startsPerLook = 100
	// startsAtOnce is how many attempts are begun in one pool at the same time.
	startsAtOnce = 8
	// sweptAtOnce is how many runs a sweep works on at the same time. Kafka takes their facts together.
	sweptAtOnce = 16

	// planFor is how long a plan may take: an input may have the outcomes of months. A round waits for the starts of a pool
	// for roundFor at most. Those that take longer go on meanwhile.
	planFor  = time.Hour
	roundFor = 5 * time.Second
	// recoverFor is how long the announcement of commits after a crash may take.
	recoverFor = 10 * time.Minute
)

// Watch does the work that needs a clock until the context ends: it starts due runs, finds lost
// attempts and commits outputs. Several processes may run Watch at once. Watch reads the state from
// the log in each round, so work that one round misses is found by a later round.
func (f *Foreman) Watch(ctx context.Context) error {
	w := &watcher{Foreman: f, rules: rules{silence: f.opt.Silence, alone: f.opt.Alone}}
	defer w.starting.Wait()
	var l loop
	for ctx.Err() == nil {
		changed := f.ledger.Changed()
		err := w.lookAround(ctx, &l)
		f.health.report(f.log, ctx, errors.Join(err, l.mishaps, f.troubles.err(f.now())))
		l.waitForWork(ctx, changed, l.pause(err), f.now)
	}
	return nil
}

// loop has the times of a watcher's next work.
type loop struct {
	swept, recovered time.Time
	ended            time.Time // end of the last sweep
	failures         int
	recovering       chan error // gets the result of the recovery under way; nil if there is none
	unrecovered      error      // error of the last recovery
	mishaps          error      // errors of the last sweep; they do not stop due runs
	wake             time.Time  // time of the next due run
}

// lookAround fills the pools, and at longer intervals does the other work. It does nothing before
// the ledger has caught up.
func (w *watcher) lookAround(ctx context.Context, l *loop) error {
	w.missedBeats = w.missedBeats || w.ledger.Status().Behind > 0
	if err := w.ledger.CaughtUp(ctx); err != nil {
		return err
	}
	sweeps, now := false, w.now()
	if now.Before(l.swept) { // the machine's clock was set back: all times so far are in the future
		w.missedBeats, w.asked, l.swept, l.recovered = true, nil, time.Time{}, time.Time{}
	}
	if now.Sub(l.swept) >= sweepEvery {
		sweeps = true
		// The machine was suspended, or its clock was set: no agent could send a beat. During a long sweep they could.
		w.missedBeats = w.missedBeats || !l.swept.IsZero() && now.Round(0).Sub(l.ended) > w.rules.silence+2*sweepEvery
		l.swept, l.mishaps = now, errors.Join(w.sweep(ctx), w.recover(ctx, l, now))
		l.ended = w.now()
	}
	at, due, err := w.ledger.NextDue(ctx, w.now())
	// Most facts make no run due, and NextDue costs less than a claim in each pool.
	if err == nil && (due > 0 || sweeps) {
		err = w.admitAll(ctx)
		var failed error
		at, _, failed = w.ledger.NextDue(ctx, w.now())
		err = errors.Join(err, failed)
	}
	l.wake = at
	return err
}

// recover publishes the missing events of commits after a crash. No round waits for them, because the store may not answer.
// A later sweep reports its error.
func (w *watcher) recover(ctx context.Context, l *loop, now time.Time) error {
	select {
	case l.unrecovered = <-l.recovering: // never, if it is nil
		if l.recovering = nil; l.unrecovered == nil {
			l.recovered = now
		}
	default:
	}
	if l.recovering == nil && now.Sub(l.recovered) >= recoverEvery {
		ended := make(chan error, 1)
		l.recovering = ended
		w.starting.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, recoverFor)
			defer cancel()
			ended <- w.opt.Store.Recover(ctx, w.opt.Announce)
		})
	}
	if l.unrecovered != nil {
		return fmt.Errorf("announce commits that were cut off: %w", l.unrecovered)
	}
	return nil
}

func (w *watcher) admitAll(ctx context.Context) error {
	c := w.opt.Config()
	var (
		filling sync.WaitGroup
		all     faults
	)
	for i := range c.Pools {
		pool, room := c.Pools[i].Name, w.roomOf(c.Pools[i].Name)
		filling.Go(func() { all.add(w.fill(ctx, pool, room)) })
	}
	filling.Wait()
	return all.err()
}

// roomOf returns the channel that limits the starts of a pool.
func (w *watcher) roomOf(pool string) chan struct{} {
	if w.rooms[pool] == nil {
		if w.rooms == nil {
			w.rooms = map[string]chan struct{}{}
		}
		w.rooms[pool] = make(chan struct{}, startsAtOnce)
	}
	return w.rooms[pool]
}

// fill starts runs in the free slots of a pool. It starts several runs at the same time because
// each start waits for the log and the store, not for the processor.
func (w *watcher) fill(ctx context.Context, pool string, room chan struct{}) error {
	var (
		beginning sync.WaitGroup
		fruitless atomic.Int32
		all       faults
	)
	late := time.NewTimer(roundFor)
	defer late.Stop()
	for n := 0; n < startsPerLook && fruitless.Load() < maxFruitless; n++ {
		select {
		case room <- struct{}{}:
		case <-late.C:
			return all.err()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		slot, got, err := w.claim(ctx, pool)
		if all.add(err); err != nil || !got {
			<-room
			break
		}
		beginning.Add(1)
		w.starting.Go(func() {
			defer beginning.Done()
			planning, cancel := context.WithTimeout(ctx, planFor)
			defer cancel()
			begun, err := w.begin(planning, slot, true)
			if all.add(err); !begun {
				fruitless.Add(1)
			}
			<-room
		})
	}
	waitAtMost(&beginning, late.C)
	return all.err()
}

// waitAtMost waits until the work of a group is done, or it is late.
func waitAtMost(work *sync.WaitGroup, late <-chan time.Time) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		work.Wait()
	}()
	select {
	case <-done:
	case <-late:
	}
}

// faults collects the errors of several goroutines.
type faults struct {
	mu  sync.Mutex
	all []error
}

func (f *faults) add(err error) {
	if err == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, err)
}

// mostFaults is how many errors are named. Thousands of runs may have the same one.
const mostFaults = 10

// err joins the errors in the order of their texts, because a changed text is logged.
func (f *faults) err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	slices.SortFunc(f.all, func(x, y error) int { return strings.Compare(x.Error(), y.Error()) })
	named := slices.Clone(f.all[:min(len(f.all), mostFaults)])
	if more := len(f.all) - len(named); more > 0 {
		named = append(named, fmt.Errorf("and %d more", more))
	}
	return errors.Join(named...)
}

// pause returns the shortest wait before the next round.
func (l *loop) pause(err error) time.Duration {
	if err == nil || errors.Is(err, ledger.ErrCatchingUp) {
		l.failures = 0
		return shortestPause
	}
	l.failures++
	return retry.Backoff{First: firstPause, Cap: lastPause}.After(l.failures)
}

// waitForWork waits for a pause, then for a change, the next due run or the next sweep.
func (l *loop) waitForWork(ctx context.Context, changed <-chan struct{}, pause time.Duration, now func() time.Time) {
	if retry.Sleep(ctx, pause) != nil {
		return
	}
	next := l.swept.Add(sweepEvery)
	if !l.wake.IsZero() && l.wake.Before(next) {
		next = l.wake
	}
	_ = retry.Wait(ctx, changed, min(next.Sub(now()), sweepEvery)) // the clock may have been set back
}

// watcher remembers between two sweeps when it saw a new beat of each attempt, because a flush of Redis
// removes the beats. Without a beat, the time counts from the moment when the watcher first saw the
// attempt. The time starts again after the ledger or Redis was down, because no agent could send a
// beat meanwhile. The time in a beat is that of a gateway, whose clock may differ from the watcher's.
type watcher struct {
	*Foreman
	starting    sync.WaitGroup           // starts and a recovery under way, also those of earlier rounds
	rooms       map[string]chan struct{} // limits of these starts, by pool
	rules       rules
	since       map[string]time.Time // last sign of life, by the attempt's name
	beats       map[string]time.Time // last beat, by the attempt's name
	asked       map[string]time.Time // time of the last question to the launcher for a waiting attempt, by its name
	missedBeats bool                 // whether beats may have been missed since the last sweep
}

// sweep commits outputs and finds lost attempts among all runs under way. An error with one run
// does not stop the work on other runs. It works on several runs at the same time because each waits for the log and the
// store. Thousands have work after an outage, and no run starts before the sweep is done.
func (w *watcher) sweep(ctx context.Context) error {
	live, beats, err := w.listen(ctx)
	if err != nil {
		return err
	}
	var (
		working sync.WaitGroup
		all     faults
	)
	now, room := w.now(), make(chan struct{}, sweptAtOnce)
	w.updateSigns(live, beats, now)
	for i := range live {
		if ctx.Err() != nil {
			break
		}
		if work := w.workOn(&live[i], now); work != nil {
			room <- struct{}{}
			working.Go(func() {
				all.add(work(ctx))
				<-room
			})
		}
	}
	working.Wait()
	return all.err()
}

// workOn returns the work of a sweep on one run; nil if there is none.
func (w *watcher) workOn(run *tidemill.Run, now time.Time) func(context.Context) error {
	if run.State == tidemill.RunCommitting {
		return func(ctx context.Context) error {
			_, err := w.commitOutput(ctx, run)
			return err
		}
	}
	a := run.Attempt()
	if a == nil || w.opt.Launcher == nil {
		return nil
	}
	name := tidemill.AttemptName(run.ID, a.Number)
	s := w.rules.suspect(run, w.since[name], now)
	if !s.any() || w.launching.has(name) || w.waitsForNode(a, name, s, now) {
		return nil
	}
	return func(ctx context.Context) error { return w.tend(ctx, run, name, s) }
}

// listen reads the runs under way and their beats.
func (w *watcher) listen(ctx context.Context) (live []tidemill.Run, beats map[string]time.Time, err error) {
	if live, err = w.ledger.Live(ctx); err == nil {
		beats, err = w.ledger.Beats(ctx)
	}
	w.missedBeats = w.missedBeats || err != nil
	return live, beats, err
}

// updateSigns updates the last sign of life of each attempt, and forgets ended attempts.
func (w *watcher) updateSigns(live []tidemill.Run, beats map[string]time.Time, now time.Time) {
	if w.missedBeats {
		w.since, w.missedBeats = nil, false
	}
	since, last := make(map[string]time.Time, len(live)), make(map[string]time.Time, len(live))
	for i := range live {
		a := live[i].Attempt()
		if a == nil {
			continue
		}
		name := tidemill.AttemptName(live[i].ID, a.Number)
		if last[name] = beats[name]; last[name].IsZero() {
			last[name] = w.beats[name]
		}
		if since[name] = now; !w.since[name].IsZero() && last[name].Equal(w.beats[name]) {
			since[name] = w.since[name]
		}
	}
	w.since, w.beats = since, last
	maps.DeleteFunc(w.asked, func(name string, _ time.Time) bool { return since[name].IsZero() })
}

// tend declares a suspected attempt lost, unless its launcher knows the attempt and that refutes the suspicion.
func (w *watcher) tend(ctx context.Context, run *tidemill.Run, name string, s suspicion) error {
	ctx, cancel := context.WithTimeout(ctx, steadyFor) // the launcher may wait for a process that even the kernel cannot end
	defer cancel()
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

// waitsAsked is how often the launcher is asked about an attempt whose pod waits.
const waitsAsked = 30 * time.Second

// waitsForNode reports whether a silent attempt is known to wait for a node. The watcher of its pod
// reports when that changes. So the launcher is asked rarely, because a thousand attempts may wait.
func (w *watcher) waitsForNode(a *tidemill.Attempt, name string, s suspicion, now time.Time) bool {
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

// lose declares an attempt lost, unless it has ended meanwhile. An agent reports the end before it
// exits, so an agent that has exited without a report never reports again. The attempt is then
// stopped, in case it still runs.
func (w *watcher) lose(ctx context.Context, run *tidemill.Run, why string) error {
	a := run.Attempt()
	m, err := w.ledger.Making(ctx, run.Recipe, run.Key)
	if err != nil {
		return err
	}
	if begun(m, run.ID, a.Number, a.Offset) == nil {
		return nil
	}
	w.log.Warn("scheduler: an attempt is lost", "recipe", run.Recipe, "key", run.Key, "run", run.ID, "reason", why)
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

// underWay are the attempts that this process is about to launch. Such an attempt is not lost, even
// if the log has begun it and the launcher does not know it yet.
type underWay struct {
	mu    sync.Mutex
	names map[string]int // number of goroutines that start the attempt
}

// enter adds an attempt until leave is called.
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
