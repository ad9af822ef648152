package clock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
)

// Options say what a keeper works on.
type Options struct {
	Broker *broker.Broker
	Names  tidemill.Names
	Config *config.Config
	Redis  *redis.Client // for the lease; nil is none
	Kafka  string        // the id of its cluster: another's keepers may share the Redis
	// Paused says whether a schedule shall not tick, and Changed returns a channel
	// that is closed when that may have changed. Nil is never.
	Paused  func(schedule string) bool
	Changed func() <-chan struct{}
	// Keys are those that a schedule with `each: key` ticks for now, in any order.
	// The active keeper asks when a scheduled time has come, and again if that
	// fails. Nil is none.
	Keys func(ctx context.Context, schedule string) ([]string, error)
	// Verify has a keeper that becomes active look whether the ticks of the one
	// before came to stand on their stream, as the embedded Kafka needs.
	Verify bool
	// Lease is for how long the active keeper may not be heard of before another
	// takes over; 10 s.
	Lease      time.Duration
	Registerer prometheus.Registerer // nil is none
	Logger     *slog.Logger
}

const defaultLease = 10 * time.Second

// Keeper sends the ticks of a config's schedules while it is the active one of
// all keepers.
type Keeper struct {
	opt     Options
	log     *slog.Logger
	lease   *lease
	metrics *metrics
	open    func(context.Context) (*desk, error)

	stop  context.CancelFunc
	ended chan struct{} // closed when nothing runs any more

	mu     sync.Mutex
	table  *timetable
	news   chan struct{} // closed when the timetable is another
	status Status
}

// Open starts a keeper. Close it.
func Open(o Options) (*Keeper, error) {
	k, err := newKeeper(o)
	if err != nil {
		return nil, err
	}
	k.start()
	return k, nil
}

func newKeeper(o Options) (*Keeper, error) {
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
	k := &Keeper{opt: o, log: o.Logger, lease: newLease(&o), metrics: m, table: table, news: make(chan struct{})}
	k.open = func(ctx context.Context) (*desk, error) { return openDesk(ctx, &k.opt) }
	return k, nil
}

func (k *Keeper) start() {
	ctx, stop := context.WithCancel(context.Background())
	k.stop, k.ended = stop, make(chan struct{})
	go func() {
		defer close(k.ended)
		k.run(ctx)
	}()
}

// Close ends the keeper and lets another take over at once.
func (k *Keeper) Close(ctx context.Context) error {
	k.stop()
	select {
	case <-k.ended:
	case <-ctx.Done():
		return fmt.Errorf("wait for the keeper's last transaction: %w", context.Cause(ctx))
	}
	k.become(standby, nil)
	_ = k.lease.drop(ctx) // Redis may be away, and the lease ends by itself
	return nil
}

// Apply has the keeper follow another config from now on.
func (k *Keeper) Apply(c *config.Config) error {
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

func (k *Keeper) timetable() *timetable {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.table
}

// run takes the clock over whenever it can be had, and keeps it while it can.
func (k *Keeper) run(ctx context.Context) {
	failures := 0
	for k.await(ctx) {
		began := time.Now()
		err := k.reign(ctx)
		if ctx.Err() != nil {
			return
		}
		if failures++; time.Since(began) > 6*k.opt.Lease {
			failures = 1
		}
		k.leave(ctx, err, failures)
	}
}

// leave says why a term has ended, and waits until the next is worth a try. Two
// keepers that know nothing of each other, for want of Redis, take turns; the
// longer each waits, the less they disturb each other. What Kafka fails in is
// tried again before a tick would be too late.
func (k *Keeper) leave(ctx context.Context, err error, failures int) {
	most := k.opt.Lease
	beaten := errors.Is(err, broker.ErrSuperseded) || errors.Is(err, errLeaseLost)
	if beaten {
		most, err = 12*most, fmt.Errorf("another keeper has taken it over: %w", err)
	}
	pause := jittered(min(k.opt.Lease/8<<min(failures, 10), most))
	if beaten {
		k.become(standby, nil)
		k.log.Info("the clock does not run here any more", "reason", err, "after", pause)
	} else {
		k.become(standby, err)
		k.log.Warn("the clock has stopped, and is tried again", "reason", err, "after", pause)
	}
	_ = k.pause(ctx, pause)
}

func jittered(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// reign is a term for as long as no other keeper has the lease.
func (k *Keeper) reign(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	var renewing sync.WaitGroup
	defer renewing.Wait()
	defer end(nil)
	renewing.Go(func() { k.renew(ctx, end) })
	err := k.lead(ctx)
	if cause := context.Cause(ctx); errors.Is(cause, errLeaseLost) {
		return cause
	}
	return err
}
