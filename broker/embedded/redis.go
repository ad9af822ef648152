package embedded

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// A key may outlive its time to live by a tick. Every tick walks all keys
// under the server's lock, so with many keys ticks grow rarer: they take at
// most one part in tickShare of the time.
const (
	tick      = 100 * time.Millisecond
	tickShare = 50
)

func startRedis(o Options) (*miniredis.Miniredis, error) {
	if err := checkHost(o.Redis, o.Public); err != nil {
		return nil, fmt.Errorf("listen for redis: %w", err)
	}
	m := miniredis.NewMiniRedis()
	if err := m.StartAddr(o.Redis); err != nil {
		return nil, fmt.Errorf("listen for redis: %w; give another address, or port 0 for a free one", err)
	}
	return m, nil
}

// moveTime lets keys expire, until the context ends: miniredis's time stands
// still unless it is moved.
func moveTime(ctx context.Context, m *miniredis.Miniredis) {
	last := time.Now()
	t := time.NewTimer(tick)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now := time.Now()
		m.FastForward(now.Sub(last))
		last = now
		t.Reset(nextTick(time.Since(now)))
	}
}

func nextTick(cost time.Duration) time.Duration { return max(tick, tickShare*cost) }
