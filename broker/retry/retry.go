package retry

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// Sleep waits for d. If the context ends first, Sleep returns its cause.
func Sleep(ctx context.Context, d time.Duration) error { return Wait(ctx, nil, d) }

// Wait waits for d or until wake delivers or is closed, whichever comes first; a
// nil wake does neither. If the context ends first, Wait returns its cause. With
// no time to wait it returns at once.
func Wait(ctx context.Context, wake <-chan struct{}, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-wake:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// Backoff is the growing pause between attempts of one thing. Copy a configured
// value to start; it is not safe for concurrent use.
type Backoff struct {
	First  time.Duration // pause after the first failure
	Cap    time.Duration // longest pause
	Factor int           // growth from one pause to the next; 0 means 2
	Jitter float64       // random share of each pause, from 0 to 1

	failures int
}

// Next counts a failure and returns the pause after it.
func (b *Backoff) Next() time.Duration {
	b.failures++
	return b.After(b.failures)
}

// Sleep counts a failure and waits for the pause after it.
func (b *Backoff) Sleep(ctx context.Context) error { return Sleep(ctx, b.Next()) }

// Reset sets the number of failures to zero.
func (b *Backoff) Reset() { b.failures = 0 }

// After returns the pause after so many failures in a row, for callers that count
// failures themselves.
func (b Backoff) After(failures int) time.Duration {
	d, factor := min(b.First, b.Cap), time.Duration(max(b.Factor, 2))
	for n := 1; n < failures && d < b.Cap; n++ {
		if d > b.Cap/factor {
			d = b.Cap
			break
		}
		d *= factor
	}
	return Jitter(d, b.Jitter)
}

// Jitter replaces a share of d by a random part of it, so that many clients of a
// restarted server do not return at the same moment.
func Jitter(d time.Duration, share float64) time.Duration {
	random := time.Duration(float64(d) * share)
	if random <= 0 {
		return d
	}
	return d - random + rand.N(random)
}

// Mutex is a lock whose holder may wait for the network. In a testing/synctest bubble, time moves on
// while goroutines wait for a Mutex; while they wait for a sync.Mutex it stands still, and the
// holder's wait would never end. The zero value is unlocked.
type Mutex struct {
	once sync.Once
	held chan struct{} // full while the lock is held
}

// Lock waits until the lock is free.
func (m *Mutex) Lock() {
	m.once.Do(func() { m.held = make(chan struct{}, 1) })
	m.held <- struct{}{}
}

// Unlock lets the next goroutine in.
func (m *Mutex) Unlock() { <-m.held }
