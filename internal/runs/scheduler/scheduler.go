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

// Options configures a Foreman.
type Options struct {
	Ledger   *ledger.Ledger
	Store    *store.Store
	Broker   *broker.Broker // source of the events that asked for a run; nil if Again is never called and only the newest event counts
	Names    tidemill.Names
	Config   func() *config.Config
	Asked    func() *commands.State                  // paused recipes and pools; nil means none
	Announce func(context.Context, api.Commit) error // publisher of a commit's event
	Launcher Launcher                                // nil if this process launches nothing
	// Outcomes stores the outcomes of a scorer as a tree, for an input. The key is empty for all keys.
	Outcomes func(ctx context.Context, scorer config.Scorer, key string, last time.Duration) (tidemill.Input, error)
	// Alone says that only this process launches attempts, as on a laptop. An attempt that its
	// launcher does not know is then lost at once, not after Silence.
	Alone      bool
	Tokens     *Tokens
	Dir        string        // base folder of a recipe's relative dir
	Silence    time.Duration // time without a beat after which an attempt is lost; 10 s
	Registerer prometheus.Registerer
	Logger     *slog.Logger
}

const defaultSilence = 10 * time.Second

// Foreman requests runs and starts due ones. Several Foremen may work at once: the log decides.
type Foreman struct {
	opt       Options
	ledger    *ledger.Ledger
	log       *slog.Logger
	metrics   *metrics
	hash      hashes
	launching underWay
	slow      slowPlans
	troubles  troubles
	crowds    waitingRecipes
	health    health
	lacked    sync.Map // time at which the store first lacked a run's output, by run
	resting   atomic.Bool
	now       func() time.Time
}

// New returns a Foreman. A controller runs its Watch.
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
	for _, r := range o.Config().Recipes {
		m.begin(r.Name)
	}
	return &Foreman{opt: o, ledger: o.Ledger, log: o.Logger, metrics: m, now: wholeMilliseconds}, nil
}

// wholeMilliseconds returns the time in the unit of the ledger's queues. With a finer time, a run
// could be due for the scheduler and, for up to a millisecond, not yet due for its queue.
func wholeMilliseconds() time.Time { return time.Now().Truncate(time.Millisecond) }

// steadyFor bounds a step that must not stop halfway.
const steadyFor = time.Minute

// steady returns a context for a step that must finish even if its caller has gone. For example, an
// attempt that the log has begun must be launched; otherwise it holds a slot until it is declared
// lost.
func steady(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), steadyFor)
}

// Launcher starts attempts: as child processes on this machine, or in a cluster. It is the only
// interface between the two.
type Launcher interface {
	// Launch starts an attempt and returns without waiting for its end. It succeeds if the
	// attempt was started before.
	Launch(context.Context, Attempt) error
	// Has reports whether a launched attempt may still run. If it returns false, the attempt
	// never reports again.
	Has(ctx context.Context, name string) (bool, error)
	// Stop kills a superseded attempt without a grace.
	Stop(ctx context.Context, name string) error
	// Slots returns how many attempts a pool may run at once; 0 is no bound.
	Slots(config.Pool) int
}

// Attempt describes an attempt for its launcher.
type Attempt struct {
	Name   string // tidemill.AttemptName
	Run    string
	Recipe string
	Key    string
	Number int
	Token  string // token for this attempt only
	Plan   tidemill.Plan
}

// ErrUnlaunchable is wrapped by a launcher's error if another try would fail too, for example
// because no container engine is installed. The run then fails with that error's text. After any
// other error the attempt counts as lost, and the run gets another attempt.
var ErrUnlaunchable = errors.New("cannot be launched here")

// Status is the state of a Foreman's Watch.
type Status struct {
	Watching bool  // true once a round has succeeded
	Err      error // reason why some due work failed; nil if no work failed
}

type health struct {
	mu  sync.Mutex
	now Status
}

// Status returns the state of Watch. The ledger itself reports whether it is catching up.
func (f *Foreman) Status() Status {
	f.health.mu.Lock()
	defer f.health.mu.Unlock()
	return f.health.now
}

// report records the result of a round. It logs an error only when its text changes.
func (h *health) report(log *slog.Logger, ctx context.Context, err error) {
	if ctx.Err() != nil || errors.Is(err, ledger.ErrCatchingUp) {
		return
	}
	h.mu.Lock()
	was := h.now
	h.now = Status{Watching: was.Watching || err == nil, Err: err}
	h.mu.Unlock()
	switch {
	case err != nil && (was.Err == nil || was.Err.Error() != err.Error()):
		log.Warn("scheduler: starting due runs failed; retrying", "reason", err)
	case err == nil && was.Err != nil:
		log.Info("scheduler: starting due runs works again")
	}
}

// Rest stops the Foreman from starting attempts, because its launcher is about to close. An
// attempt that can no longer be launched would otherwise count as lost, again and again.
func (f *Foreman) Rest() { f.resting.Store(true) }

// metrics are the Prometheus metrics of this process. The only label with free values is the
// recipe, and a config has few recipes.
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
			Help: "Requests for runs, by result: accepted, merged (into the waiting run) or known."}, []string{"recipe", "result"}),
		starts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_run_attempts_started_total",
			Help: "Attempts that this process has started."}, []string{"recipe"}),
		ends: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_run_attempts_ended_total",
			Help: "Ends of attempts that this process has recorded, by outcome: succeeded, failed, cancelled, left or lost."}, []string{"recipe", "outcome"}),
		waits: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tidemill_run_wait_seconds",
			Help: "Time from a run's first request to its start.", Buckets: seconds}, []string{"recipe"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tidemill_run_attempt_seconds",
			Help: "Time from an attempt's start to its end.", Buckets: seconds}, []string{"recipe"}),
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

// begin exports the ends of a recipe's attempts as 0. Prometheus sees no rise in a series that begins
// with another number, so the alert about failed runs would miss the first of them.
func (m *metrics) begin(recipe string) {
	for _, o := range []tidemill.Outcome{tidemill.OutcomeSucceeded, tidemill.OutcomeFailed, tidemill.OutcomeLost} {
		m.ends.WithLabelValues(recipe, string(o))
	}
}

func (m *metrics) started(run *tidemill.Run, number int, at time.Time) {
	m.begin(run.Recipe) // the recipe may be newer than this process
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

// SecretSize is the size of the secret for [NewTokens] in bytes.
const SecretSize = 32

// tokenSpace is part of each token's input, so that another use of the same secret never produces
// a token.
const tokenSpace = "tidemill attempt token 1"

// lowerBase32 is the alphabet of ids. None of its characters must be escaped in a URL, a header
// or a log.
const lowerBase32 = "abcdefghijklmnopqrstuvwxyz234567"

// Tokens makes and checks the tokens of attempts. A token is an HMAC over the run, the attempt's
// number and the offset of the fact that began it. The offset is the fence: the next attempt
// begins at another offset, so the token of the one before is no longer valid.
type Tokens struct {
	secret []byte
}

// NewTokens takes the 32 secret bytes that all gateways and controllers of an install share.
func NewTokens(secret []byte) (*Tokens, error) {
	if len(secret) != SecretSize {
		return nil, fmt.Errorf("make tokens of attempts: the secret has %d bytes; give %d random ones", len(secret), SecretSize)
	}
	return &Tokens{secret: append([]byte(nil), secret...)}, nil
}

// Of returns the token of an attempt.
func (t *Tokens) Of(run string, a tidemill.Attempt) string {
	return t.mac([]byte(tokenSpace), []byte(run),
		binary.BigEndian.AppendUint64(nil, uint64(a.Number)), binary.BigEndian.AppendUint64(nil, uint64(a.Offset)))
}

// mac returns the HMAC over the fields.
func (t *Tokens) mac(fields ...[]byte) string {
	h := hmac.New(sha256.New, t.secret)
	for _, b := range fields {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(b))))
		h.Write(b)
	}
	return base32.NewEncoding(lowerBase32).WithPadding(base32.NoPadding).EncodeToString(h.Sum(nil))
}

// Counts reports whether a token is the attempt's. The comparison takes the same time for all wrong
// tokens.
func (t *Tokens) Counts(token, run string, a tidemill.Attempt) bool {
	return hmac.Equal([]byte(token), []byte(t.Of(run, a)))
}

// planSpace is part of the input of each plan's MAC, as tokenSpace is of each token.
const planSpace = "tidemill plan 1"

// Sign returns the MAC of a plan of a run. Without the install's secret no client of Kafka or Redis
// can make it, so only the controllers of the install decide which commands run.
func (t *Tokens) Sign(run *tidemill.Run, plan []byte) string {
	return t.mac([]byte(planSpace), []byte(run.ID), []byte(run.Recipe), []byte(run.Key), plan)
}

// Signed reports whether a controller of the install has made the plan of a run, for this run.
func (t *Tokens) Signed(run *tidemill.Run) bool {
	return hmac.Equal([]byte(run.PlanMAC), []byte(t.Sign(run, run.Plan)))
}
