package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/store"
)

// Options say what to work on.
type Options struct {
	Ledger   *ledger.Ledger
	Store    *store.Store
	Broker   *broker.Broker // to read again what asked for a run; nil where nobody asks for one again
	Names    tidemill.Names
	Config   func() *config.Config
	Asked    func() *tidemill.Commands               // what is paused; nil is nothing
	Announce func(context.Context, api.Commit) error // publishes a commit's event
	Launcher Launcher                                // nil where nothing can be launched
	// Alone says that nobody but this process launches, as on a laptop: what its
	// launcher has not is lost at once, and not after a silence.
	Alone      bool
	Tokens     *Tokens
	Dir        string        // that a recipe's dir is relative to
	Silence    time.Duration // after which an attempt that is not heard of is lost; 10 s
	Registerer prometheus.Registerer
	Logger     *slog.Logger
}

const defaultSilence = 10 * time.Second

// Foreman asks for runs and starts those that are due. Several may work at once:
// the log decides.
type Foreman struct {
	opt       Options
	ledger    *ledger.Ledger
	log       *slog.Logger
	metrics   *metrics
	hash      hashes
	launching underWay
	troubles  troubles
	crowds    crowds
	health    health
	resting   atomic.Bool
	now       func() time.Time
}

// New makes one. Its Watch is what a controller runs.
func New(o Options) (*Foreman, error) {
	switch {
	case o.Ledger == nil || o.Store == nil || o.Config == nil:
		return nil, errors.New("make a foreman: it needs a ledger, a store and a config")
	case o.Launcher != nil && o.Tokens == nil:
		return nil, errors.New("make a foreman that launches: it needs the tokens of attempts")
	}
	if o.Silence <= 0 {
		o.Silence = defaultSilence
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	return &Foreman{opt: o, ledger: o.Ledger, log: o.Logger, metrics: m, now: wholeMilliseconds}, nil
}

// wholeMilliseconds is the time as queues count it. A fact of half a millisecond
// later would make a run due when, for its queue, it is not yet.
func wholeMilliseconds() time.Time { return time.Now().Truncate(time.Millisecond) }

// steadyFor is how long a step may take that is not left halfway.
const steadyFor = time.Minute

// steady is a context for what shall come to its end although whoever asked has
// gone: an attempt that the log has begun must be launched, or a slot is held
// until somebody notices.
func steady(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), steadyFor)
}

// Launcher starts attempts where there is hardware: in child processes here, or
// in a cluster. It is the one seam between the two.
type Launcher interface {
	// Launch starts an attempt and returns without waiting for its end. One that
	// was started before is a success.
	Launch(context.Context, Attempt) error
	// Has reports whether an attempt that was launched may still be at work. What
	// it has not, nobody will hear of again.
	Has(ctx context.Context, name string) (bool, error)
	// Stop ends an attempt that counts no more, without asking it.
	Stop(ctx context.Context, name string) error
	// Slots is how many attempts a pool takes; 0 is no bound.
	Slots(config.Pool) int
}

// Attempt is what a launcher starts.
type Attempt struct {
	Name   string // tidemill.AttemptName
	Run    string
	Recipe string
	Key    string
	Number int
	Token  string // of this attempt alone
	Plan   tidemill.Plan
}

// ErrUnlaunchable is what a launcher's error wraps where another try would fail
// too: there is no engine for images, say. The run then fails, with the error's
// words. After any other error the attempt counts as lost, and the run gets
// another one.
var ErrUnlaunchable = errors.New("cannot be launched here")

// Status is how a foreman's watch is.
type Status struct {
	Watching bool      // it has looked at everything at least once
	Err      error     // why not all that is due can be done; nil if it can
	Since    time.Time // of the error
}

type health struct {
	mu  sync.Mutex
	now Status
}

// Status is how the watch is now. That the ledger is catching up is the
// ledger's to tell.
func (f *Foreman) Status() Status {
	f.health.mu.Lock()
	defer f.health.mu.Unlock()
	return f.health.now
}

// report notes how a round went. An error that lasts is told once.
func (h *health) report(log *slog.Logger, ctx context.Context, err error) {
	if ctx.Err() != nil || errors.Is(err, ledger.ErrCatchingUp) {
		return
	}
	h.mu.Lock()
	was := h.now
	switch {
	case err == nil:
		h.now = Status{Watching: true}
	case was.Err == nil:
		h.now = Status{Watching: was.Watching, Err: err, Since: time.Now()}
	default:
		h.now.Err = err
	}
	h.mu.Unlock()
	switch {
	case err != nil && (was.Err == nil || was.Err.Error() != err.Error()):
		log.Warn("what is due cannot be done; it is tried again", "reason", err)
	case err == nil && was.Err != nil:
		log.Info("what is due can be done again")
	}
}

// Rest has the foreman start nothing more, for its launcher is about to close:
// what could not be launched any more would count as lost, again and again.
func (f *Foreman) Rest() { f.resting.Store(true) }
