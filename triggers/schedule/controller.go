package schedule

import (
	"context"
	cryptorand "crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/retry"
	"tidemill.dev/config"
)

// Options configure a controller.
type Options struct {
	Broker *broker.Broker
	Names  tidemill.Names
	Config *config.Config
	Redis  *redis.Client // for the lease; nil means no lease
	Kafka  string        // id of the Kafka cluster, because controllers of another cluster may share the Redis
	// Paused reports whether a schedule is paused. Changed returns a channel that is
	// closed when that may have changed. Both may be nil.
	Paused  func(schedule string) bool
	Changed func() <-chan struct{}
	// Keys calls fn with the present keys of a schedule with `each: key`, in any order and
	// perhaps more than once, until fn returns false. The active controller calls it when a
	// scheduled time has come, and again if it fails. Nil has no keys.
	Keys func(ctx context.Context, schedule string, fn func(key string) bool) error
	// Verify makes a new active controller check whether the last ticks of its
	// predecessor reached their stream. The embedded Kafka needs that.
	Verify bool
	// Lease is how long the active controller may be silent before another takes over;
	// 0 is 10 s.
	Lease      time.Duration
	Registerer prometheus.Registerer // may be nil
	Logger     *slog.Logger

	most int // number of keys of a schedule that are kept; 0 is maxRoll
}

const defaultLease = 10 * time.Second

// Controller sends the ticks of a config's schedules while it is the active one of all
// controllers.
type Controller struct {
	opt     Options
	log     *slog.Logger
	lease   *lease
	metrics *metrics
	open    func(context.Context) (*tickWriter, error)

	stop  context.CancelFunc
	ended chan struct{} // closed when all goroutines have ended

	mu     sync.Mutex
	table  *timetable
	news   chan struct{} // closed when the timetable has changed
	status Status
}

// Open starts a controller. The caller closes it.
func Open(o Options) (*Controller, error) {
	k, err := newController(o)
	if err != nil {
		return nil, err
	}
	k.start()
	return k, nil
}

func newController(o Options) (*Controller, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Paused == nil {
		o.Paused = func(string) bool { return false }
	}
	if o.Changed == nil {
		o.Changed = func() <-chan struct{} { return nil }
	}
	if o.Lease == 0 {
		o.Lease = defaultLease
	}
	table, err := newTimetable(o.Config)
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	k := &Controller{opt: o, log: o.Logger, lease: newLease(&o), metrics: m, table: table, news: make(chan struct{})}
	k.open = func(ctx context.Context) (*tickWriter, error) { return openTickWriter(ctx, &k.opt) }
	return k, nil
}

func (k *Controller) start() {
	ctx, stop := context.WithCancel(context.Background())
	k.stop, k.ended = stop, make(chan struct{})
	go func() {
		defer close(k.ended)
		k.run(ctx)
	}()
}

// Close ends the controller, and another takes over at once.
func (k *Controller) Close(ctx context.Context) error {
	k.stop()
	select {
	case <-k.ended:
	case <-ctx.Done():
		return fmt.Errorf("wait for the controller's last transaction: %w", context.Cause(ctx))
	}
	k.become(standby, nil)
	_ = k.lease.drop(ctx) // if Redis is away, the lease expires
	return nil
}

// Apply applies another config.
func (k *Controller) Apply(c *config.Config) error {
	table, err := newTimetable(c)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.table = table
	close(k.news)
	k.news = make(chan struct{})
	return nil
}

func (k *Controller) timetable() *timetable {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.table
}

// run becomes the active controller whenever it can, and stays active as long as it can.
func (k *Controller) run(ctx context.Context) {
	failures := 0
	for k.await(ctx) {
		began := time.Now()
		err := k.runTerm(ctx)
		if ctx.Err() != nil {
			return
		}
		if failures++; time.Since(began) > 6*k.opt.Lease {
			failures = 1
		}
		k.leave(ctx, err, failures)
	}
}

// leave logs why a term has ended and waits until the next try. Two controllers that do
// not see each other, because Redis is away, take turns; the longer each waits, the
// less they disturb each other. An error of Kafka is retried before a tick would be
// late.
func (k *Controller) leave(ctx context.Context, err error, failures int) {
	most := k.opt.Lease
	beaten := errors.Is(err, broker.ErrSuperseded) || errors.Is(err, errLeaseLost)
	if beaten {
		most, err = 12*most, fmt.Errorf("another controller has taken it over: %w", err)
	}
	pause := retry.Backoff{First: k.opt.Lease / 4, Cap: most, Jitter: 0.5}.After(failures)
	if beaten {
		k.become(standby, nil)
		k.log.Info("controller: another controller is active; waiting", "reason", err, "after", pause)
	} else {
		k.become(standby, err)
		k.log.Warn("controller: the schedules have stopped; retrying", "reason", err, "after", pause)
	}
	_ = retry.Sleep(ctx, pause)
}

// runTerm runs a term until it fails or another controller has the lease.
func (k *Controller) runTerm(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	var renewing sync.WaitGroup
	defer renewing.Wait()
	defer end(nil)
	renewing.Go(func() { k.renew(ctx, end) })
	err := k.runLeadership(ctx)
	if cause := context.Cause(ctx); errors.Is(cause, errLeaseLost) {
		return cause
	}
	return err
}

var errLeaseLost = errors.New("another controller has the lease in Redis")

// await waits until this controller may become active: it has the lease, or Redis has
// been away for long. If it took over as soon as Redis is away, it would disturb the
// active one for nothing. It returns false when the context has ended.
func (k *Controller) await(ctx context.Context) bool {
	var since time.Time // time when Redis went away
	for ctx.Err() == nil {
		ours, err := k.lease.acquire(ctx)
		switch {
		case err == nil && ours:
			return true
		case err == nil:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
			k.log.Warn("controller: taking the lease in Redis failed; another controller may be active", "reason", err)
		case time.Since(since) >= 3*k.opt.Lease:
			return true
		}
		if retry.Sleep(ctx, retry.Jitter(k.opt.Lease/3, 0.5)) != nil {
			return false
		}
	}
	return false
}

// renew keeps the lease during a term, and ends the term if another controller has the
// lease. While Redis is away the term goes on.
func (k *Controller) renew(ctx context.Context, end context.CancelCauseFunc) {
	if k.lease == nil {
		return
	}
	for retry.Sleep(ctx, k.opt.Lease/4) == nil {
		if ours, err := k.lease.acquire(ctx); err == nil && !ours {
			end(errLeaseLost)
			return
		}
	}
}

// now returns the time for schedules in milliseconds, the precision of the marks.
func (k *Controller) now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// sleep waits for the next tick, a change or an answer.
func (k *Controller) sleep(ctx context.Context, next time.Time, changed news, answered <-chan struct{}) error {
	wait := longestSleep
	if !next.IsZero() {
		wait = max(time.Millisecond, min(wait, time.Until(next)))
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-changed.table:
	case <-changed.paused:
	case <-answered:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// news has channels that are closed when the timetable or a pause has changed.
type news struct{ table, paused <-chan struct{} }

func (k *Controller) changes() news {
	k.mu.Lock()
	defer k.mu.Unlock()
	return news{k.news, k.opt.Changed()}
}

// lease stores in Redis which controller is active, so that the others need not try. It
// decides nothing: without it, or if two controllers believe that they have it, Kafka
// lets only one commit. A nil lease is always granted.
type lease struct {
	redis  *redis.Client
	key    string
	holder string
	ttl    time.Duration
}

func newLease(o *Options) *lease {
	if o.Redis == nil {
		return nil
	}
	return &lease{redis: o.Redis, key: o.Names.Key(reader, o.Kafka), holder: cryptorand.Text(), ttl: o.Lease}
}

const (
	takeLease = `local holder = redis.call("GET", KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call("SET", KEYS[1], ARGV[1], "PX", ARGV[2])
return 1`
	dropLease = `if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end
return 0`
)

// acquire takes or keeps the lease and reports whether it is ours. After an error the owner
// is unknown.
func (l *lease) acquire(ctx context.Context) (ours bool, err error) {
	if l == nil {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.ttl/4)
	defer cancel()
	return l.redis.Eval(ctx, takeLease, []string{l.key}, l.holder, l.ttl.Milliseconds()).Bool()
}

// drop gives up the lease, so that another controller need not wait until it expires.
func (l *lease) drop(ctx context.Context) error {
	if l == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.ttl/4)
	defer cancel()
	return l.redis.Eval(ctx, dropLease, []string{l.key}, l.holder).Err()
}
