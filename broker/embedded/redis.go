package embedded

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// A key may outlive its time to live by a tick, and by what ticks come late, and
// may miss a tick of it. Every tick walks all keys under the server's lock, so
// with many keys ticks grow rarer: they take at most one part in tickShare of the
// time.
const (
	tick      = 100 * time.Millisecond
	tickShare = 50
)

func startRedis(o Options) (*miniredis.Miniredis, error) {
	if err := checkHost(o.Redis, o.Public); err != nil {
		return nil, fmt.Errorf("listen for redis: %w", err)
	}
	m := miniredis.NewMiniRedis()
	if err := listenAt(o.Redis, m.StartAddr); err != nil {
		return nil, fmt.Errorf("listen for redis: %w; give another address, or port 0 for a free one", err)
	}
	return m, nil
}

// moveTime lets keys expire, until the context ends: miniredis's time stands
// still unless it is moved.
func moveTime(ctx context.Context, m *miniredis.Miniredis) {
	last, due := time.Now(), tick
	t := time.NewTimer(due)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now := time.Now()
		m.FastForward(aged(now.Sub(last), due))
		last, due = now, nextTick(time.Since(now))
		t.Reset(due)
	}
}

// aged is by how much a tick ages all keys, also those that were set just before
// it. On a busy machine it comes late, and a lease of half a second that was taken
// in the meantime must not end with it.
func aged(since, due time.Duration) time.Duration { return min(since, due) }

func nextTick(cost time.Duration) time.Duration { return max(tick, tickShare*cost) }
