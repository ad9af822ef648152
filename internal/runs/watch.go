package runs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"tidemill.dev/internal/ledger"
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
	return min(firstPause<<min(l.failures-1, 10), lastPause)
}

// rest waits for a pause, and then for something to do.
func (l *loop) rest(ctx context.Context, changed <-chan struct{}, pause time.Duration, now func() time.Time) {
	if !sleep(ctx, nil, pause) {
		return
	}
	next := l.swept.Add(sweepEvery)
	if !l.wake.IsZero() && l.wake.Before(next) {
		next = l.wake
	}
	sleep(ctx, changed, next.Sub(now()))
}

// sleep is false if the context has ended. A nil channel never wakes.
func sleep(ctx context.Context, wake <-chan struct{}, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-wake:
	case <-t.C:
	}
	return true
}
