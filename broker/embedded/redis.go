package embedded

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"

	"tidemill.dev/broker/retry"
	"tidemill.dev/config"
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
	listener  net.Listener
	password  config.Secret
	strangers strangers
	accepts   sync.WaitGroup
}

func startRedis(o Options) (*redisServer, error) {
	if err := checkHost(o.Redis, o.Public); err != nil {
		return nil, fmt.Errorf("listen for redis: %w", err)
	}
	r := &redisServer{Miniredis: miniredis.NewMiniRedis(), password: o.redis}
	if !o.redis.IsZero() {
		r.RequireAuth(o.redis.Reveal())
	}
	err := listenAt(o.Redis, func(addr string) (err error) {
		r.listener, err = o.Network.ListenTCP(context.Background(), addr)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen for redis: %w; give another address, or port 0 for a free one", err)
	}
	if o.Dir != "" {
		if err := restore(r.Miniredis, o.Dir, build()); err != nil {
			return nil, errors.Join(err, r.listener.Close())
		}
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
			r.admit(c)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			time.Sleep(acceptAgain)
		}
	}
}

// admit hands a connection to miniredis, if there is room for one more client that has given no password.
func (r *redisServer) admit(c net.Conn) {
	a := &answerJoiner{Conn: c, guard: commandGuard{password: r.password.Reveal()}}
	if a.guard.password != "" {
		if a.stranger = r.strangers.enter(c); a.stranger == nil {
			_ = c.Close()
			return
		}
	}
	r.Server().ServeConn(a)
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

// answerJoiner joins the answers to a pipeline's commands. miniredis writes each on its own, which costs
// a system call each. While a goroutine of miniredis waits for more commands, answers are sent at
// once. Otherwise there are more commands, and the answers so far are sent with the next.
type answerJoiner struct {
	net.Conn
	guard    commandGuard
	stranger *stranger   // nil if clients need no password
	passed   []byte      // bytes that the guard has passed and Read has not returned
	mu       retry.Mutex // held while answers are sent
	waits    bool        // a goroutine reads from the connection
	answers  []byte
	err      error
}

// joinedBytes is how many bytes of answers are kept at most.
const joinedBytes = 64 << 10

// Read sends the answers that are left, and reads. If the guard refuses a command, Read answers it and
// closes the connection.
func (a *answerJoiner) Read(p []byte) (n int, err error) {
	for len(a.passed) == 0 {
		if err := a.setWaits(true); err != nil {
			return 0, err
		}
		if n, err = a.Conn.Read(p); n == 0 && err != nil {
			return 0, err // answers are still sent at once
		}
		unknown := a.guard.password != ""
		if a.passed, err = a.guard.check(p[:n]); err != nil {
			_, _ = a.Write([]byte("-" + err.Error() + "\r\n")) // the client may have gone
			return 0, closeWith(a.Conn, err)
		}
		if unknown && a.guard.password == "" {
			a.stranger.leave()
		}
	}
	_ = a.setWaits(false) // sends nothing
	n = copy(p, a.passed)
	a.passed = a.passed[n:]
	return n, nil
}

// Close closes the connection; miniredis may call it twice.
func (a *answerJoiner) Close() error {
	a.stranger.leave()
	return a.Conn.Close()
}

func (a *answerJoiner) setWaits(to bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waits = to
	return a.send()
}

// Write keeps the answer, or sends it if no further command has come.
func (a *answerJoiner) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answers = append(a.answers, p...)
	return len(p), a.send()
}

// send sends what is kept if it must not wait. Called with the lock held.
func (a *answerJoiner) send() error {
	if a.err != nil || len(a.answers) == 0 || !a.waits && len(a.answers) < joinedBytes {
		return a.err
	}
	_, a.err = a.Conn.Write(a.answers)
	a.answers = a.answers[:0]
	return a.err
}
