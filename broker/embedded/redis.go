package embedded

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// A key may live longer than its TTL by a tick and a tick's delay, and may miss a tick. Every tick
// visits all keys under the server's lock. So ticks are rarer with many keys, and take at most
// 1/tickShare of the time.
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

// moveTime advances miniredis's clock until the context ends, so that keys expire;
// miniredis does not advance it.
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
		m.FastForward(ageTime(now.Sub(last), due))
		last, due = now, nextTick(time.Since(now))
		t.Reset(due)
	}
}

// ageTime returns the time by which a tick ages all keys, even recently set ones. If a
// tick is late on a busy machine, a lease of half a second that was taken in the meantime
// must not expire at once.
func ageTime(since, due time.Duration) time.Duration { return min(since, due) }

func nextTick(cost time.Duration) time.Duration { return max(tick, tickShare*cost) }
