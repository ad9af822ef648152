package ledger

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

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
