package scheduler

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
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
	"tidemill.dev/triggers/commands"
)

// Options say what to work on.
type Options struct {
	Ledger   *ledger.Ledger
	Store    *store.Store
	Broker   *broker.Broker // to read again what asked for a run; nil where nobody asks for one again
	Names    tidemill.Names
	Config   func() *config.Config
	Asked    func() *commands.State                  // what is paused; nil is nothing
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
		log.Warn("scheduler: starting due runs failed; retrying", "reason", err)
	case err == nil && was.Err != nil:
		log.Info("scheduler: starting due runs works again")
	}
}

// Rest has the foreman start nothing more, for its launcher is about to close:
// what could not be launched any more would count as lost, again and again.
func (f *Foreman) Rest() { f.resting.Store(true) }

// metrics are what operators see of what this process has done. The only label
// that is not a fixed word is the recipe, of which the config has few.
type metrics struct {
	requests *prometheus.CounterVec
	starts   *prometheus.CounterVec
	ends     *prometheus.CounterVec
	waits    *prometheus.HistogramVec
	took     *prometheus.HistogramVec
}

var seconds = []float64{.01, .03, .1, .3, 1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000} // read only

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_run_requests_total",
			Help: "Wishes for runs, by what became of them: accepted, absorbed by the run that waits, or known."}, []string{"recipe", "result"}),
		starts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_run_attempts_started_total",
			Help: "Attempts that were begun here."}, []string{"recipe"}),
		ends: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_run_attempts_ended_total",
			Help: "Ends of attempts that were told here, by outcome: succeeded, failed, cancelled, left or lost."}, []string{"recipe", "outcome"}),
		waits: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tidemill_run_wait_seconds",
			Help: "From a run's first request until it began.", Buckets: seconds}, []string{"recipe"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tidemill_run_attempt_seconds",
			Help: "From an attempt's begin to its end.", Buckets: seconds}, []string{"recipe"}),
	}
	if r == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.requests, m.starts, m.ends, m.waits, m.took} {
		errs = append(errs, r.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register the metrics of runs: %w", err)
	}
	return m, nil
}

func (m *metrics) started(run *tidemill.Run, number int, at time.Time) {
	m.starts.WithLabelValues(run.Recipe).Inc()
	if number == 1 {
		m.waits.WithLabelValues(run.Recipe).Observe(max(0, at.Sub(run.Asking)).Seconds())
	}
}

func (m *metrics) ended(run *tidemill.Run, o tidemill.Outcome, at time.Time) {
	m.ends.WithLabelValues(run.Recipe, string(o)).Inc()
	if a := run.Attempt(); a != nil {
		m.took.WithLabelValues(run.Recipe).Observe(max(0, at.Sub(a.Started)).Seconds())
	}
}

// SecretSize is how many bytes the secret of [NewTokens] has.
const SecretSize = 32

// tokenSpace keeps the same secret, used for something else, from ever making a
// token.
const tokenSpace = "tidemill attempt token 1"

// lowerBase32 is what ids are written in: no letter that a URL, a header or a
// log would have to escape.
const lowerBase32 = "abcdefghijklmnopqrstuvwxyz234567"

// Tokens makes and checks the tokens of attempts: an HMAC over the run, the
// number and the offset of the fact that began it. The offset is the fence: who
// takes a run over begins another attempt at another offset, and the token of
// the one before is that of nobody.
type Tokens struct {
	secret []byte
}

// NewTokens needs 32 bytes that all gateways and controllers of an install share.
func NewTokens(secret []byte) (*Tokens, error) {
	if len(secret) != SecretSize {
		return nil, fmt.Errorf("make tokens of attempts: the secret has %d bytes; give %d random ones", len(secret), SecretSize)
	}
	return &Tokens{secret: append([]byte(nil), secret...)}, nil
}

// Of is the token of an attempt.
func (t *Tokens) Of(run string, a tidemill.Attempt) string {
	h := hmac.New(sha256.New, t.secret)
	field := func(b []byte) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(b))))
		h.Write(b)
	}
	field([]byte(tokenSpace))
	field([]byte(run))
	field(binary.BigEndian.AppendUint64(nil, uint64(a.Number)))
	field(binary.BigEndian.AppendUint64(nil, uint64(a.Offset)))
	return base32.NewEncoding(lowerBase32).WithPadding(base32.NoPadding).EncodeToString(h.Sum(nil))
}

// Counts reports whether a token is that of an attempt. It takes as long
// whatever is wrong with it.
func (t *Tokens) Counts(token, run string, a tidemill.Attempt) bool {
	return hmac.Equal([]byte(token), []byte(t.Of(run, a)))
}
