package runs

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/ledger"
	"tidemill.dev/internal/store"
)

// Options say what to work on.
type Options struct {
	Ledger   *ledger.Ledger
	Store    *store.Store
	Broker   *broker.Broker // to read again what asked for a run; nil where nobody asks for one again
	Names    tidemill.Names
	Config   func() *config.Config
	Asked    func() *tidemill.Acts                   // what is paused; nil is nothing
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

// New makes one. Its Watch is what a keeper runs.
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
