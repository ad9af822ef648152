package dedupe

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"tidemill.dev"
)

const (
	defaultLimit    = 1_000_000
	defaultPatience = 100 * time.Millisecond
	defaultStale    = 10 * time.Millisecond
)

// layout is the version of what lies in Redis. A process of another version
// does not see it, and remembers for itself.
const layout = "1"

// Options say what to open.
type Options struct {
	// Redis says where Redis is; its connections are not used. Without one
	// nothing is remembered.
	Redis *redis.Client
	Names tidemill.Names
	Kafka string // the id of the cluster that the streams are on
	// Limit is how many events of a stream are remembered at most, a million
	// if it is 0. At least half of it are. A full one takes some 50 MB.
	Limit int
	// Stale is how old may be what is known of other gateways' marks, 10 ms if
	// it is 0. Below it nobody waits for Redis.
	Stale time.Duration
	// Patience is how long anyone waits for a Redis that does not answer, 100 ms
	// if it is 0.
	Patience   time.Duration
	Registerer prometheus.Registerer // nil keeps the metrics to itself
	Logger     *slog.Logger          // nil is silence
}

// Memory knows which events were here before. A nil Memory remembers nothing.
type Memory struct {
	names    tidemill.Names
	kafka    string
	limit    int
	patience time.Duration
	stale    time.Duration
	client   *redis.Client
	log      *slog.Logger
	metrics  *metrics
	self     string // tells our entries from those of others

	mu      sync.Mutex
	shelves map[string]*shelf // by stream
	busy    []*shelf          // those that a trip is due for, next first
	urgent  bool              // somebody waits for it
	asleep  bool              // run waits for wake
	away    bool              // the circuit is open
	closed  bool

	wake    chan struct{}
	closing chan struct{}
	ended   chan struct{} // run has returned
	ctx     context.Context
	cancel  context.CancelFunc

	failures int       // of run alone: since Redis last did any work
	left     time.Time // of run alone: when the last trip began
}

// Open connects to nothing yet: a process that starts while Redis is away shall
// start. It gives nil where there is no Redis.
func Open(o Options) (*Memory, error) {
	if o.Redis == nil {
		return nil, nil
	}
	if o.Limit <= 0 {
		o.Limit = defaultLimit
	}
	if o.Patience <= 0 {
		o.Patience = defaultPatience
	}
	if o.Stale <= 0 {
		o.Stale = defaultStale
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	counts, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	m := &Memory{names: o.Names, kafka: o.Kafka, limit: o.Limit, patience: o.Patience, stale: o.Stale, self: rand.Text(),
		client: redis.NewClient(impatient(o.Redis.Options(), o.Patience)), log: o.Logger, metrics: counts,
		shelves: map[string]*shelf{},
		wake:    make(chan struct{}, 1), closing: make(chan struct{}), ended: make(chan struct{})}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	go m.run()
	return m, nil
}

// impatient options make a client that gives up when its context ends, and that
// leaves trying again to us.
func impatient(options *redis.Options, patience time.Duration) *redis.Options {
	o := *options
	o.ContextTimeoutEnabled = true
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = patience, patience, patience, patience
	o.DialerRetries = 1
	o.MaxRetries, o.MinRetryBackoff, o.MaxRetryBackoff = 1, -1, -1 // one more for a connection that was cut while idle
	o.PipelinePoolSize = -1
	o.DisableIdentity, o.PushNotificationProcessor = true, nil // the other client's own
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	o.ReadBufferSize, o.WriteBufferSize = 64<<10, 64<<10
	return &o
}

// Seen says whether the event was marked on the stream within the window. It is
// false whenever that is not known.
func (m *Memory) Seen(ctx context.Context, stream string, window time.Duration, source, id string) bool {
	return m.Ask(stream, window, source, id).Seen(ctx)
}

// Ask asks without waiting, so that whoever has many events asks for all and
// waits once.
func (m *Memory) Ask(stream string, window time.Duration, source, id string) Question {
	if m == nil || window <= 0 {
		return Question{}
	}
	q := Question{memory: m, digest: digestOf(source, id), window: window}
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.shelf(stream)
	s.window = window
	seen := !m.closed && s.known.seen(q.digest, now, window)
	age := now.Sub(s.fresh)
	switch {
	case m.away || m.closed:
		if !seen {
			m.metrics.unchecked.Inc()
			return Question{}
		}
	case age >= m.stale: // the stream may have been made anew since
		q.page = s.wait()
		m.list(s, true)
	case age >= m.stale/2:
		m.list(s, false) // so that nobody has to wait
	}
	if seen || q.page != nil {
		q.shelf = s
		return q
	}
	return Question{}
}

// Mark remembers an event that is on the log. It never waits.
func (m *Memory) Mark(stream string, window time.Duration, source, id string) {
	m.Recall(stream, window, source, id, time.Now())
}

// Recall remembers an event that came to the log a while ago, as if it had been
// marked then. Those of a stream come in the order of time.
func (m *Memory) Recall(stream string, window time.Duration, source, id string, at time.Time) {
	if m == nil || window <= 0 {
		return
	}
	now := time.Now()
	made := mark{digestOf(source, id), min(at.UnixMilli(), now.UnixMilli())}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		m.metrics.dropped.Inc()
		return
	}
	s := m.shelf(stream)
	s.window = window
	s.known.add(made, now, window, m.limit)
	if dropped := s.marks.add(made); dropped > 0 {
		m.metrics.dropped.Add(float64(dropped))
	}
	m.list(s, len(s.marks.waiting) >= tripMarks/2)
}

// Away tells whether Redis is taken to be away, so that what other gateways
// stored is not recognised.
func (m *Memory) Away() bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.away
}

// Known asks Redis whether it knows of any event of a stream.
func (m *Memory) Known(ctx context.Context, stream string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, m.patience)
	defer cancel()
	n, err := m.client.Exists(ctx, keyOf(m.names, m.kafka, stream)).Result()
	if err != nil {
		return false, fmt.Errorf("ask Redis what it knows of stream %s: %w", stream, err)
	}
	return n > 0, nil
}

// shelf finds a stream's shelf, or puts one up.
func (m *Memory) shelf(stream string) *shelf {
	s := m.shelves[stream]
	if s == nil {
		s = &shelf{stream: stream, repeats: m.metrics.repeats.WithLabelValues(stream),
			key: keyOf(m.names, m.kafka, stream), after: "0"}
		m.shelves[stream] = s
	}
	return s
}

// list tells run that a trip is due for a shelf: at once, or when the last one
// is half as long ago as knowledge may be old.
func (m *Memory) list(s *shelf, urgent bool) {
	news := urgent && !m.urgent || len(m.busy) == 0
	if !s.listed {
		s.listed = true
		m.busy = append(m.busy, s)
	}
	m.urgent = m.urgent || urgent
	if m.asleep && news {
		m.asleep = false
		m.wake <- struct{}{} // has room: run took the last one before it fell asleep
	}
}

// Close writes the marks that wait, then ends. If the context ends before, or
// Redis is away, they are dropped, and counted.
func (m *Memory) Close(ctx context.Context) error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	again := m.closed
	m.closed = true
	m.mu.Unlock()
	if !again {
		close(m.closing)
	}
	select {
	case <-m.ended:
	case <-ctx.Done():
	}
	m.cancel()
	<-m.ended
	if again {
		return nil
	}
	return m.client.Close()
}

// metrics are what operators see. The only label is the stream, of which the
// config has few.
type metrics struct {
	repeats   *prometheus.CounterVec
	unchecked prometheus.Counter
	dropped   prometheus.Counter
	away      prometheus.Gauge
	trips     prometheus.Histogram
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		repeats: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_repeats_total",
			Help: "Events that were here before and were not stored again."}, []string{"stream"}),
		unchecked: prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemill_dedupe_unchecked_total",
			Help: "Events that were accepted without asking whether they were here before, because Redis was away."}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemill_dedupe_dropped_marks_total",
			Help: "Stored events that will not be recognised if they are repeated, because Redis was away for too long."}),
		away: prometheus.NewGauge(prometheus.GaugeOpts{Name: "tidemill_dedupe_unavailable",
			Help: "1 while Redis is away and repeats are not recognised, else 0."}),
		trips: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tidemill_dedupe_round_trip_seconds",
			Help:    "How long Redis took to answer a batch of questions and marks.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1}}),
	}
	if r == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.repeats, m.unchecked, m.dropped, m.away, m.trips} {
		errs = append(errs, r.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register the metrics of repeats: %w", err)
	}
	return m, nil
}
