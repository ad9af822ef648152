package deliver

import (
	"math"
	"time"

	"tidemill.dev/config"
)

// delay is how long to wait after the given attempt, which is counted from one
// and has failed. random is from 0 to 1, the latter excluded. after is what the
// subscriber asked for: it is a floor, and the cap does not bound it.
func delay(b config.Backoff, attempt int, random float64, after time.Duration) time.Duration {
	wait := growth(b, max(attempt, 1))
	if b.Cap > 0 {
		wait = min(wait, b.Cap)
	}
	if b.Jitter {
		// From a half to the whole: events that failed together do not come
		// back together, and none comes back at once.
		wait -= time.Duration(float64(wait/2) * (1 - random))
	}
	return max(wait, after, 0)
}

// growth stays at the longest duration there is where it would exceed it.
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
