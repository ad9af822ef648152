package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// layout is the version of what lies in Redis: of the fold, and of how it is
// laid out. A process of another version does not see it and fills its own.
const layout = "3"

// Options say what to work on.
type Options struct {
	Broker     *broker.Broker
	Producer   *broker.Producer
	Names      tidemill.Names
	Redis      *redis.Client
	Kafka      string // the id of its cluster
	Registerer prometheus.Registerer
	Logger     *slog.Logger

	atOnce int   // how many facts are folded at once; scriptFacts
	far    int64 // how many facts are many to catch up with; farBehind
	rows   int   // how many are kept unwritten; mostRows
}

// Ledger is the fold in Redis, and one of those who bring it forward. It is safe
// for concurrent use.
//
// Who owns what: the goroutine of run reads the facts, folds them and writes;
// the shelves are its alone. progress is what everybody else knows of it.
type Ledger struct {
	o        Options
	prefix   string
	client   *redis.Client // run's own
	log      *slog.Logger
	metrics  *metrics
	shelves  map[int32]*shelves
	kept     int             // makings on each, at least
	far      map[int32]int64 // up to where what is made of facts may be unwritten; nil once that is near
	progress *progress
	register *register

	doubt   doubt
	own     own
	torn    sync.Once
	stop    context.CancelCauseFunc
	running sync.WaitGroup
}

// Open begins to catch up and returns at once.
func Open(ctx context.Context, o Options) (*Ledger, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if o.Broker == nil || o.Redis == nil {
		return nil, errors.New("open the ledger: it needs a broker and a Redis")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.atOnce, o.far, o.rows = cmp.Or(o.atOnce, scriptFacts), cmp.Or(o.far, farBehind), cmp.Or(o.rows, mostRows)
	l := &Ledger{o: o, client: redis.NewClient(patient(o.Redis.Options())), prefix: o.Names.Key("{ledger}", layout, o.Kafka, ""), log: o.Logger,
		shelves: map[int32]*shelves{}, progress: newProgress(), register: newRegister()}
	var err error
	if l.metrics, err = newMetrics(o.Registerer, l.Status); err != nil {
		return nil, errors.Join(err, l.client.Close())
	}
	life, stop := context.WithCancelCause(context.Background())
	l.stop = stop
	l.running.Go(func() { l.run(life) })
	return l, nil
}

// Close ends it. Those who wait for their facts are told so.
func (l *Ledger) Close(context.Context) error {
	l.stop(ErrClosed)
	err := l.client.Close() // a batch that is being written is written, or not
	l.running.Wait()
	l.progress.close()
	if errors.Is(err, redis.ErrClosed) { // by an earlier Close
		return nil
	}
	return err
}

// Status is how far it has come.
type Status struct {
	Behind int64 // facts that are not folded in yet; 0 once it has caught up
	Total  int64
	Err    error // why it does not come on
}

// Status tells how far the fold in Redis is.
func (l *Ledger) Status() Status { return l.progress.status() }

// CaughtUp waits until the ledger may be decided by.
func (l *Ledger) CaughtUp(ctx context.Context) error { return l.progress.caughtUp(ctx) }

// Changed returns a channel that is closed when facts have been folded in since.
func (l *Ledger) Changed() <-chan struct{} { return l.progress.changes() }

func (l *Ledger) key(name string) string { return l.prefix + name }

// writeWithin is how long a batch may take to write. A busy laptop can take
// seconds, and who gives up earlier does the work again.
const writeWithin = 20 * time.Second

// patient options make a client that waits for a busy Redis, and that leaves
// trying again to us: what has been written need not be sent again.
func patient(options *redis.Options) *redis.Options {
	o := *options
	o.ReadTimeout, o.WriteTimeout = writeWithin, writeWithin
	o.MaxRetries = 1 // for a connection that was cut while idle
	o.PoolSize, o.MinIdleConns = mostLanes+1, 0
	o.DisableIdentity, o.PushNotificationProcessor = true, nil // the other client's own
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return &o
}

// metrics are what operators see.
type metrics struct {
	facts     prometheus.Counter
	illegible prometheus.Counter
	refills   prometheus.Counter
	batches   prometheus.Histogram
	behind    prometheus.GaugeFunc
}

func newMetrics(r prometheus.Registerer, status func() Status) (*metrics, error) {
	m := &metrics{
		facts: prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemill_ledger_facts_total",
			Help: "Facts that this process has folded into Redis."}),
		illegible: prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemill_ledger_illegible_facts_total",
			Help: "Facts that could not be read and were passed over."}),
		refills: prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemill_ledger_refills_total",
			Help: "Times that Redis was found to have forgotten facts and was filled in again."}),
		batches: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tidemill_ledger_batch_seconds",
			Help:    "How long it took to fold a batch of facts into Redis.",
			Buckets: []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1}}),
		behind: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tidemill_ledger_behind_facts",
			Help: "Facts that are to be folded in before anything may be decided; 0 once it has caught up."},
			func() float64 { return float64(status().Behind) }),
	}
	if r == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.facts, m.illegible, m.refills, m.batches, m.behind} {
		errs = append(errs, r.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register the metrics of the ledger: %w", err)
	}
	return m, nil
}
