package clock

import (
	"context"
	"errors"
	"time"
)

var errLeaseLost = errors.New("another keeper has the lease in Redis")

// await waits until the clock may be had: the lease is ours, or Redis has been
// away for long. A keeper that takes over at once when Redis goes would disturb
// the active one for nothing. It is false when the context has ended.
func (k *Keeper) await(ctx context.Context) bool {
	var since time.Time // Redis is away
	for ctx.Err() == nil {
		ours, err := k.lease.take(ctx)
		switch {
		case err == nil && ours:
			return true
		case err == nil:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
			k.log.Warn("Redis does not say whether another keeper is active", "reason", err)
		case time.Since(since) >= 3*k.opt.Lease:
			return true
		}
		if k.pause(ctx, jittered(k.opt.Lease/3)) != nil {
			return false
		}
	}
	return false
}

// renew keeps the lease while a term lasts, and ends the term if another has it.
// While Redis is away the term goes on.
func (k *Keeper) renew(ctx context.Context, end context.CancelCauseFunc) {
	if k.lease == nil {
		return
	}
	for k.pause(ctx, k.opt.Lease/4) == nil {
		if ours, err := k.lease.take(ctx); err == nil && !ours {
			end(errLeaseLost)
			return
		}
	}
}

func (k *Keeper) pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// now is what the schedules are held against. Marks need not be finer.
func (k *Keeper) now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// sleep waits for the next tick, or for news.
func (k *Keeper) sleep(ctx context.Context, next time.Time, changed news, answered <-chan struct{}) error {
	wait := longestSleep
	if !next.IsZero() {
		wait = max(time.Millisecond, min(wait, time.Until(next)))
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-changed.table:
	case <-changed.paused:
	case <-answered:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// news are closed when there are some.
type news struct{ table, paused <-chan struct{} }

func (k *Keeper) changes() news {
	k.mu.Lock()
	defer k.mu.Unlock()
	return news{k.news, k.opt.Changed()}
}
