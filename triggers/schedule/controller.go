package schedule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/ops/lease"
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
	k := &Controller{opt: o, log: o.Logger, metrics: m, table: table, news: make(chan struct{})}
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
	lease.Hold(ctx, lease.Options{Part: "controller", Task: "the schedules", Redis: k.opt.Redis, Key: k.opt.Names.Key(reader, k.opt.Kafka), For: k.opt.Lease, Logger: k.log,
		Beaten: func(err error) bool { return errors.Is(err, broker.ErrSuperseded) },
		Left:   func(err error) { k.become(standby, err) }}, k.runLeadership)
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

// Status is the state of a controller.
type Status struct {
	Active bool
	// Err is the reason why the last attempt to become active failed. Waiting while
	// another controller is active is not an error.
	Err error
	// Delayed lists the schedules whose ticks wait because their keys are unknown, with
	// the reasons.
	Delayed map[string]error
}

type role bool

const (
	standby role = false
	active  role = true
)

// Status returns the present state.
func (k *Controller) Status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.status
	s.Delayed = maps.Clone(s.Delayed)
	return s
}

func (k *Controller) become(r role, err error) {
	k.mu.Lock()
	was := k.status
	k.status = Status{Active: bool(r), Err: err}
	k.mu.Unlock()
	if k.metrics.active.Set(0); r == active {
		k.metrics.active.Set(1)
	}
	if r == active && !was.Active {
		k.log.Info("controller: this process sends the ticks", "schedules", len(k.timetable().entries))
	}
}

// delayed records the reason why the keys of a schedule are unknown; nil if they are known.
func (k *Controller) delayed(schedule string, err error) {
	k.mu.Lock()
	_, was := k.status.Delayed[schedule]
	switch {
	case err == nil:
		delete(k.status.Delayed, schedule)
	case k.status.Delayed == nil:
		k.status.Delayed = map[string]error{schedule: err}
	default:
		k.status.Delayed[schedule] = err
	}
	k.mu.Unlock()
	switch {
	case err != nil && !was:
		k.log.Warn("controller: listing the keys of a schedule failed; retrying", "schedule", schedule, "reason", err)
	case err == nil && was:
		k.log.Info("controller: a schedule no longer waits for its keys", "schedule", schedule)
	}
}

// report counts and logs the decisions of a plan.
func (k *Controller) report(p plan, now time.Time) {
	for i := range p.ticks {
		t := &p.ticks[i]
		k.metrics.ticks.WithLabelValues(t.Schedule).Inc()
		k.metrics.late.Observe(max(0, now.Sub(t.due)).Seconds())
	}
	for _, n := range p.notes {
		switch n.what {
		case skipped:
			k.metrics.missed.WithLabelValues(n.schedule).Add(float64(n.ticks))
			k.log.Info("controller: ticks were missed; they are skipped", "schedule", n.schedule, "events", n.ticks)
		case leftOut:
			k.metrics.missed.WithLabelValues(n.schedule).Add(float64(n.ticks))
			k.log.Warn("controller: too many ticks were missed; the oldest are skipped", "schedule", n.schedule, "events", n.ticks)
		case forgot:
			k.log.Warn("controller: the marks of a schedule have expired; only its newest missed tick is sent", "schedule", n.schedule, "events", n.ticks)
		}
	}
}

// metrics are the controller's metrics. The only label is the schedule, and a config has few.
type metrics struct {
	ticks  *prometheus.CounterVec
	missed *prometheus.CounterVec
	late   prometheus.Histogram
	active prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		ticks: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_clock_ticks_total",
			Help: "Ticks that were sent."}, []string{"schedule"}),
		missed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_clock_missed_total",
			Help: "Ticks that were missed and will not be sent."}, []string{"schedule"}),
		late: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tidemill_clock_late_seconds",
			Help:    "How long after they were due ticks were sent.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 5, 15, 60, 300, 3600, 86400}}),
		active: prometheus.NewGauge(prometheus.GaugeOpts{Name: "tidemill_clock_active",
			Help: "1 while this process sends the ticks, 0 while another one does."}),
	}
	if r == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.ticks, m.missed, m.late, m.active} {
		errs = append(errs, r.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register the metrics of the clock: %w", err)
	}
	return m, nil
}
