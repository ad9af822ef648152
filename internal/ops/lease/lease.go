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
	Part   string        // part of the program, with which log lines begin
	Task   string        // name of the task in log lines, such as "the schedules"
	Redis  *redis.Client // nil means no lease: every process tries, and the task's own fence decides
	Key    string        // key of the lease in Redis
	For    time.Duration // time after which the lease of a dead process expires; 10 s if 0
	Logger *slog.Logger

	// Beaten reports whether an error of the task means that its fence has let another process in.
	Beaten func(error) bool
	// Left, if set, is called after each run of the task. The error is nil if another process has the task.
	Left func(error)
}

// ErrLost is the cause of the end of a task's context if another process has the lease.
var ErrLost = errors.New("another process has the lease in Redis")

const defaultFor = 10 * time.Second

// Hold runs the task whenever this process has the lease, until the context ends. If the task fails or loses the lease,
// Hold waits and tries again. The lease only keeps other processes from trying: while Redis is flushed or away, two
// processes may believe that they have it. So the task itself needs a fence, such as
// [tidemill.dev/broker.Exclusive].
func Hold(ctx context.Context, o Options, task func(context.Context) error) {
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
		l.rest(ctx, err, failures)
	}
}

type lease struct {
	Options
	holder string
}

// rest logs why the task has ended and waits until the next try. Two processes that do not see each other, because Redis
// is away, take turns; the longer each waits, the less they disturb each other. An error of Kafka is retried soon.
func (l *lease) rest(ctx context.Context, err error, failures int) {
	most := l.For
	beaten := l.Beaten(err) || errors.Is(err, ErrLost)
	if beaten {
		most *= 12
	}
	pause := retry.Backoff{First: l.For / 4, Cap: most, Jitter: 0.5}.After(failures)
	if beaten {
		l.Logger.Info(l.Part+": another process has taken over "+l.Task+"; waiting", "reason", err, "after", pause)
		err = nil
	} else {
		l.Logger.Warn(l.Part+": "+l.Task+" stopped; retrying", "reason", err, "after", pause)
	}
	if l.Left != nil {
		l.Left(err)
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

// await waits until this process may begin: it has the lease, or Redis has been away for long. If it took over as soon as
// Redis is away, it would disturb the process with the task for nothing. It returns false when the context has ended.
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
			l.Logger.Warn(l.Part+": taking the lease of "+l.Task+" in Redis failed; another process may have it", "reason", err)
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
