package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// layout is the version of the data in Redis: of the fold, and of the keys and values. A
// process of another version uses other keys, and fills them itself.
const layout = "12"

// Options are the options of Open.
type Options struct {
	Broker     *broker.Broker
	Producer   *broker.Producer
	Names      tidemill.Names
	Redis      *redis.Client
	Kafka      string // id of the Kafka cluster
	Registerer prometheus.Registerer
	Logger     *slog.Logger
	Layout     string // layout of the data in Redis; empty for that of this version. Only tests of upgrades set it

	atOnce int   // number of facts that are folded at once; 0 means scriptFacts
	far    int64 // number of facts to catch up with that counts as far behind; 0 means farBehind
	rows   int   // number of rows that may be unwritten; 0 means mostRows
}

// Ledger reads the state of runs and models from Redis, and folds new facts into it. It is
// safe for concurrent use.
//
// The goroutine of run reads the facts, folds them and writes; only it uses the caches.
// Other goroutines see its progress in the field progress.
type Ledger struct {
	o           Options
	prefix      string
	claims      string        // key of the claims, which all layouts share
	client      *redis.Client // client that only run uses
	log         *slog.Logger
	metrics     *metrics
	caches      map[int32]*caches
	kept        int             // least number of makings in each cache
	far         map[int32]int64 // offsets up to which changes may stay unwritten; nil near the end of the log
	progress    *progress
	register    *register[entry]    // all models
	keyRegister *register[keyEntry] // all keys of recipes
	fleet       fleetCache

	partitions int // number of partitions whose facts are folded; run and its consumer's hook use it

	recheck    recheck
	ownFacts   ownFacts
	guarded    time.Time   // time of the last check for eviction; only run uses it
	checked    time.Time   // time of the last comparison of Redis with the log; only run uses it
	memory     *memory     // of the session
	suspected  atomic.Bool // whether an append has found that the log was cut
	skipLogged sync.Once

	policyLogged sync.Once
	stop         context.CancelCauseFunc
	running      sync.WaitGroup
}

// Open starts to catch up with the facts, and returns at once.
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
	l := &Ledger{o: o, client: redis.NewClient(patientOptions(o.Redis.Options())), prefix: o.Names.Key("{ledger}", cmp.Or(o.Layout, layout), o.Kafka, ""), claims: o.Names.Key("{ledger}", "claims", o.Kafka), log: o.Logger,
		caches: map[int32]*caches{}, progress: newProgress(), memory: newMemory(),
		register: newRegister(hashListed, hashEntries, parseEntry), keyRegister: newRegister(hashKeyListed, hashKeyEntries, parseKeyEntry)}
	var err error
	if l.metrics, err = newMetrics(o.Registerer, l.Status); err != nil {
		return nil, errors.Join(err, l.client.Close())
	}
	life, stop := context.WithCancelCause(context.Background())
	l.stop = stop
	l.running.Go(func() { l.run(life) })
	return l, nil
}

// Close stops the ledger. Callers that wait for a fact get ErrClosed.
func (l *Ledger) Close(context.Context) error {
	l.stop(ErrClosed)
	err := l.client.Close() // a batch in progress is written as a whole, or not at all
	l.running.Wait()
	l.progress.close()
	if errors.Is(err, redis.ErrClosed) { // an earlier Close has closed it
		return nil
	}
	return err
}

// Status is the progress of the fold in Redis.
type Status struct {
	Behind int64 // number of facts that are not folded yet; 0 only once it has caught up
	Total  int64
	Left   time.Duration // estimate of the time until it has caught up; 0 if it is not known
	Err    error         // error that stops the progress; nil if there is none

	// Stopped is true if the ledger decides nothing until a person has acted; Err says why.
	Stopped bool
}

// Progress says how far a ledger is that catches up.
func (s Status) Progress() string {
	text := fmt.Sprintf("%v: %d of %d left", ErrCatchingUp, s.Behind, max(s.Total, s.Behind))
	if s.Left > 0 {
		text += fmt.Sprintf(", about %d s", int(math.Ceil(s.Left.Seconds())))
	}
	return text
}

// Status returns the progress of the fold in Redis.
func (l *Ledger) Status() Status { return l.progress.status() }

// CaughtUp waits until the ledger has caught up, so that decisions may rely on it.
func (l *Ledger) CaughtUp(ctx context.Context) error { return l.progress.caughtUp(ctx) }

// AwaitFolded waits until the facts of a partition before an offset have been folded in. So a caller
// that reads the facts itself can wait until the answers of the ledger have them.
func (l *Ledger) AwaitFolded(ctx context.Context, partition int32, next int64) error {
	return l.progress.awaitFolded(ctx, partition, next)
}

// Changed returns a channel that is closed when further facts have been folded in.
func (l *Ledger) Changed() <-chan struct{} { return l.progress.changes() }

func (l *Ledger) key(name string) string { return l.prefix + name }

// writeWithin limits the time of writing a batch. While Redis is filled, a batch has tens of thousands of
// facts, and three of them wait for each other. A busy laptop can take half a minute for them; with a
// shorter limit the same work would be done twice.
const writeWithin = time.Minute

// patientOptions returns options of a client that waits for a busy Redis. Retries are left to the
// ledger, because it does not send again what Redis has already.
func patientOptions(options *redis.Options) *redis.Options {
	o := *options
	o.ReadTimeout, o.WriteTimeout = writeWithin, writeWithin
	o.MaxRetries = 1 // a connection may have been cut while it was idle
	o.PoolSize, o.MinIdleConns = mostLanes+1, 0
	o.DisableIdentity, o.PushNotificationProcessor = true, nil // the processor belongs to the other client
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return &o
}

// metrics are the ledger's metrics.
type metrics struct {
	facts     prometheus.Counter
	illegible prometheus.Counter
	refills   prometheus.Counter
	batches   prometheus.Histogram
	behind    prometheus.GaugeFunc
	stopped   prometheus.GaugeFunc
}

func newMetrics(r prometheus.Registerer, status func() Status) (*metrics, error) {
	m := &metrics{
		facts: prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemill_ledger_facts_total",
			Help: "Facts that this process has folded into Redis."}),
		illegible: prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemill_ledger_illegible_facts_total",
			Help: "Facts that could not be read and were skipped."}),
		refills: prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemill_ledger_refills_total",
			Help: "Times that Redis had forgotten facts and was filled again."}),
		batches: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tidemill_ledger_batch_seconds",
			Help:    "How long it took to fold a batch of facts into Redis.",
			Buckets: []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1}}),
		behind: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tidemill_ledger_behind_facts",
			Help: "Facts that the ledger has yet to fold in before it allows decisions; 0 once it has caught up."},
			func() float64 { return float64(status().Behind) }),
		stopped: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tidemill_ledger_stopped",
			Help: "1 if the ledger decides nothing until a person has acted, 0 otherwise."},
			func() float64 {
				if status().Stopped {
					return 1
				}
				return 0
			}),
	}
	if r == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.facts, m.illegible, m.refills, m.batches, m.behind, m.stopped} {
		errs = append(errs, r.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register the metrics of the ledger: %w", err)
	}
	return m, nil
}
