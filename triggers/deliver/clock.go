package deliver

import (
	"math"
	"sync"
	"time"

	"tidemill.dev/config"
)

// millis is a time in milliseconds since 1970. It is used because it is small and
// compares in one instruction, and millions of items may wait.
type millis int64

const never millis = math.MaxInt64

func millisOf(t time.Time) millis { return millis(t.UnixMilli()) }

// add returns m plus d, rounded up so that nothing is due too early.
func (m millis) add(d time.Duration) millis {
	ms := millis((d + time.Millisecond - 1) / time.Millisecond)
	if ms > never-m {
		return never
	}
	return m + ms
}

// untilDue returns the time until m, but at most most: no timer notices that a machine sleeps
// or that its clock is set.
func (m millis) untilDue(now millis, most time.Duration) time.Duration {
	if m-now >= millis(most/time.Millisecond) {
		return most
	}
	return max(time.Duration(m-now)*time.Millisecond, 0)
}

func (m millis) time() time.Time { return time.UnixMilli(int64(m)) }

// steadyClock is the clock of all waiting in this package. It never goes back: if the system's
// clock were set back, waiting items would wait longer, and items to be parked would delay their
// partition. Instead this clock stays ahead until the system's clock has caught up. If the system's
// clock jumps forward, as after a sleep, this clock follows at once.
type steadyClock struct {
	mu    sync.Mutex
	last  time.Time
	ahead time.Duration // lead over the system's clock
}

func (w *steadyClock) now() millis {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if w.last.IsZero() {
		w.last = now
	}
	passed, moved := now.Sub(w.last), now.Round(0).Sub(w.last.Round(0))
	w.last = now
	return w.read(now, passed, moved)
}

// read returns the time at the system time now. Since the last call, the time passed has
// gone by on a monotonic clock, and the system's clock has moved by moved.
func (w *steadyClock) read(now time.Time, passed, moved time.Duration) millis {
	w.ahead = max(w.ahead+passed-moved, 0)
	return millisOf(now.Add(w.ahead))
}

// delay returns how long to wait after a failed attempt; attempts count from one.
// random is in [0, 1). after is the subscriber's Retry-After; it is a lower bound, and
// the policy's maximum does not apply to it.
func delay(b config.Backoff, attempt int, random float64, after time.Duration) time.Duration {
	wait := growth(b, max(attempt, 1))
	if b.Cap > 0 {
		wait = min(wait, b.Cap)
	}
	if b.Jitter {
		// The wait is between half and all of it: events that failed together do not
		// return together, and none returns at once.
		wait -= time.Duration(float64(wait/2) * (1 - random))
	}
	return max(wait, after, 0)
}

// growth returns the longest duration on an overflow.
func growth(b config.Backoff, attempt int) time.Duration {
	const longest = time.Duration(math.MaxInt64)
	n := time.Duration(attempt)
	switch {
	case b.First <= 0:
		return 0
	case b.Kind == config.Linear:
		if b.First > longest/n {
			return longest
		}
		return b.First * n
	case b.Kind == config.Exponential:
		if n > 63 || b.First > longest>>(n-1) {
			return longest
		}
		return b.First << (n - 1)
	}
	return b.First
}
