package embedded

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
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

// redisServer is miniredis on a listener of ours.
type redisServer struct {
	*miniredis.Miniredis
	listener net.Listener
	accepts  sync.WaitGroup
}

func startRedis(o Options) (*redisServer, error) {
	if err := checkHost(o.Redis, o.Public); err != nil {
		return nil, fmt.Errorf("listen for redis: %w", err)
	}
	r := &redisServer{Miniredis: miniredis.NewMiniRedis()}
	err := listenAt(o.Redis, func(addr string) (err error) {
		r.listener, err = o.Network.ListenTCP(context.Background(), addr)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen for redis: %w; give another address, or port 0 for a free one", err)
	}
	starter, err := r.Dial() // starts miniredis without a second listener
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start redis: %w", err), r.listener.Close())
	}
	_ = starter.Close()
	r.accepts.Go(r.accept)
	return r, nil
}

// accept hands connections to miniredis until close.
func (r *redisServer) accept() {
	for {
		c, err := r.listener.Accept()
		switch {
		case err == nil:
			r.Server().ServeConn(c)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			time.Sleep(acceptAgain)
		}
	}
}

// close waits until every connection is closed.
func (r *redisServer) close() {
	_ = r.listener.Close() // ends accept also after an error
	r.accepts.Wait()
	r.Miniredis.Close()
}

// moveTime advances miniredis's clock until the context ends, so that keys expire;
// miniredis does not advance it. In virtual time miniredis follows the clock itself, because ticks
// would make a virtual week take half a minute. It looks at all keys before each command then.
func (r *redisServer) moveTime(ctx context.Context, virtual bool) {
	if virtual {
		r.ClockTTL(true)
		return
	}
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
		r.FastForward(ageTime(now.Sub(last), due))
		last, due = now, nextTick(time.Since(now))
		t.Reset(due)
	}
}

// ageTime returns the time by which a tick ages all keys, even recently set ones. If a
// tick is late on a busy machine, a lease of half a second that was taken in the meantime
// must not expire at once.
func ageTime(since, due time.Duration) time.Duration { return min(since, due) }

func nextTick(cost time.Duration) time.Duration { return max(tick, tickShare*cost) }
