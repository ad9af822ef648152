package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev/broker/retry"
)

// Options describe a task that one process does at a time.
type Options struct {
	Task   string        // name of the task in log lines
	Redis  *redis.Client // nil means no lease: every process tries, and the task's own fence decides
	Key    string        // key of the lease in Redis
	For    time.Duration // time after which the lease of a dead process expires; 15 s if 0
	Logger *slog.Logger
}

// ErrLost is the cause of the end of a task's context if another process has the lease.
var ErrLost = errors.New("another process has the lease in Redis")

const defaultFor = 15 * time.Second

// Hold runs the task whenever this process has the lease, until the context ends. If the task fails or
// loses the lease, Hold waits and tries again. The lease only keeps other processes from trying: while
// Redis is flushed or away, two processes may believe that they have it. So the task needs a fence of
// its own, such as [tidemill.dev/broker.Exclusive]. beaten reports whether an error means that this
// fence has let another process in; then Hold waits longer.
func Hold(ctx context.Context, o Options, beaten func(error) bool, task func(context.Context) error) {
	if o.For == 0 {
		o.For = defaultFor
	}
	l := &lease{Options: o, holder: rand.Text()}
	defer l.drop(context.WithoutCancel(ctx))
	failures := 0
	for l.await(ctx) {
		began := time.Now()
		err := l.run(ctx, task)
		if ctx.Err() != nil {
			return
		}
		if failures++; time.Since(began) > 6*o.For {
			failures = 1
		}
		l.rest(ctx, err, beaten(err) || errors.Is(err, ErrLost), failures)
	}
}

type lease struct {
	Options
	holder string
}

// rest waits until the next try. Two processes that do not see each other, because Redis is away, take
// turns; the longer each waits, the less they disturb each other.
func (l *lease) rest(ctx context.Context, err error, beaten bool, failures int) {
	most := l.For
	if beaten {
		most *= 12
	}
	pause := retry.Backoff{First: l.For / 15, Cap: most, Jitter: 0.5}.After(failures)
	if beaten {
		l.Logger.Info("observer: another process has taken "+l.Task+" over; waiting", "reason", err, "after", pause)
	} else {
		l.Logger.Warn("observer: "+l.Task+" has failed; retrying", "reason", err, "after", pause)
	}
	_ = retry.Sleep(ctx, pause)
}

// run runs the task until it ends or another process has the lease.
func (l *lease) run(ctx context.Context, task func(context.Context) error) error {
	ctx, end := context.WithCancelCause(ctx)
	var renewing sync.WaitGroup
	defer renewing.Wait()
	defer end(nil)
	renewing.Go(func() { l.renew(ctx, end) })
	err := task(ctx)
	if cause := context.Cause(ctx); errors.Is(cause, ErrLost) {
		return cause
	}
	return err
}

// await waits until this process may begin: it has the lease, or Redis has been away for long. It
// returns false when the context has ended.
func (l *lease) await(ctx context.Context) bool {
	var since time.Time // time when Redis went away
	for ctx.Err() == nil {
		ours, err := l.acquire(ctx)
		switch {
		case err == nil && ours:
			return true
		case err == nil:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
			l.Logger.Warn("observer: taking the lease of "+l.Task+" in Redis failed; another process may have it", "reason", err)
		case time.Since(since) >= 3*l.For:
			return true
		}
		if retry.Sleep(ctx, retry.Jitter(l.For/3, 0.5)) != nil {
			return false
		}
	}
	return false
}

// renew keeps the lease, and ends the context if another process has it. While Redis is away the task
// goes on.
func (l *lease) renew(ctx context.Context, end context.CancelCauseFunc) {
	if l.Redis == nil {
		return
	}
	for retry.Sleep(ctx, l.For/4) == nil {
		if ours, err := l.acquire(ctx); err == nil && !ours {
			end(ErrLost)
			return
		}
	}
}

const (
	take = `local holder = redis.call("GET", KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call("SET", KEYS[1], ARGV[1], "PX", ARGV[2])
return 1`
	giveUp = `if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end
return 0`
)

// acquire takes or keeps the lease and reports whether it is ours. After an error the owner is unknown.
func (l *lease) acquire(ctx context.Context) (ours bool, err error) {
	if l.Redis == nil {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.For/4)
	defer cancel()
	return l.Redis.Eval(ctx, take, []string{l.Key}, l.holder, l.For.Milliseconds()).Bool()
}

// drop gives up the lease, so that another process need not wait until it expires. If Redis is away,
// the lease expires.
func (l *lease) drop(ctx context.Context) {
	if l.Redis == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, l.For/4)
	defer cancel()
	_ = l.Redis.Eval(ctx, giveUp, []string{l.Key}, l.holder).Err()
}
