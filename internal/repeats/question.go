package repeats

import (
	"context"
	"time"
)

// Question is about one event. The zero Question is about one that was never
// here.
type Question struct {
	memory *Memory
	shelf  *shelf
	page   *page // of the trip to wait for; nil where the answer is known
	digest digest
	window time.Duration
}

// Seen waits for the answer. It is false if there will be none, or the context
// ends before.
func (q Question) Seen(ctx context.Context) bool {
	if q.shelf == nil {
		return false
	}
	if q.page != nil {
		select {
		case <-q.page.done:
		case <-ctx.Done():
			return false
		}
		q.memory.mu.Lock()
		seen := q.shelf.known.seen(q.digest, time.Now(), q.window)
		q.memory.mu.Unlock()
		if !seen {
			return false
		}
	}
	q.shelf.repeats.Inc()
	return true
}
