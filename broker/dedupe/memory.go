package dedupe

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
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

// shelf is one stream: what is known of it, and what waits for the next trip.
// All of it is under the lock of Memory, but for what is run's alone.
type shelf struct {
	stream  string
	key     string
	repeats prometheus.Counter

	known  known
	window time.Duration // the latest that anyone named
	fresh  time.Time     // when the last trip began that brought what others marked

	listed bool
	marks  queue
	page   *page // of those who wait for the next trip; nil is nobody

	after string // the last entry that was read; of run alone
}

// page is those who wait for one trip. Nothing changes after done is closed.
type page struct {
	done    chan struct{}
	waiting int
	failed  bool // the trip did
}

// wait puts somebody on the page of the next trip.
func (s *shelf) wait() *page {
	if s.page == nil {
		s.page = &page{done: make(chan struct{})}
	}
	s.page.waiting++
	return s.page
}

// dismiss lets everyone go who waits, with what is known already.
func (s *shelf) dismiss() (questions int) {
	p := s.page
	if p == nil {
		return 0
	}
	s.page, p.failed = nil, true
	close(p.done)
	return p.waiting
}

// known is what a gateway remembers of one stream. New marks go to the young
// generation. When that has half of the limit, or is older than the window, it
// takes the place of the old one, which is forgotten whole: that is cheap where
// taking out single ids is not, and two lookups find any. Since the time stands
// beside each digest, the window is exact and is the asker's own.
type known struct {
	young, old generation
	forgotten  int64 // no mark up to then counts
}

type generation struct {
	marks  map[digest]int64 // when each was made
	born   int64
	oldest int64 // of the marks
}

// seen says whether the event was marked within the window.
func (k *known) seen(d digest, now time.Time, window time.Duration) bool {
	at, here := k.young.marks[d]
	if !here {
		at, here = k.old.marks[d]
	}
	return here && at > k.forgotten && now.UnixMilli()-at < window.Milliseconds()
}

// add takes a mark in that was made now, and so is the latest of its event.
func (k *known) add(m mark, now time.Time, window time.Duration, limit int) {
	k.turn(now.UnixMilli(), window.Milliseconds(), limit)
	k.young.marks[m.digest] = m.at
	k.young.oldest = min(m.at, k.young.oldest)
}

// learn takes in what another has marked. Of two marks of an event the later
// one counts.
func (k *known) learn(m mark, now time.Time, window time.Duration, limit int) {
	if at, here := k.young.marks[m.digest]; !here || at < m.at {
		k.add(m, now, window, limit)
	}
}

// turn makes the young generation the old one if it is full, or so old that all
// that is in the old one has outlived its window. A new map grows a little at a
// time; one with room for all, or one that is cleared, would hold everybody up.
func (k *known) turn(now, window int64, limit int) {
	if y := &k.young; y.marks == nil || len(y.marks) >= max(1, limit/2) || now-y.born >= window {
		k.old = *y
		*y = generation{marks: map[digest]int64{}, born: now, oldest: now}
	}
}

// since is when the oldest mark was made that is remembered.
func (k *known) since() int64 {
	if k.old.marks != nil {
		return min(k.old.oldest, k.young.oldest)
	}
	return k.young.oldest
}

// maxWaiting is how many marks of a stream wait for Redis: 1.5 MiB.
const maxWaiting = 1 << 16

// maxSpare is the room that is kept for the next marks; what an outage took
// beyond it is given back.
const maxSpare = 4096

// queue holds marks in the order they were made. Two slices take turns, so that
// none is made anew: one fills while a trip carries the other.
type queue struct {
	waiting, spare []mark
}

// add appends a mark. A full queue forgets its oldest quarter, because what is
// repeated is mostly young; it tells how many those were.
func (q *queue) add(m mark) (dropped int) {
	if len(q.waiting) >= maxWaiting {
		dropped = maxWaiting / 4
		q.waiting = slices.Delete(q.waiting, 0, dropped)
	}
	q.waiting = append(q.waiting, m)
	return dropped
}

// take hands out the oldest marks, until they are given to done or restore.
func (q *queue) take(most int) []mark {
	if len(q.waiting) <= most {
		taken := q.waiting
		q.waiting, q.spare = q.spare, nil
		return taken
	}
	taken := append(q.spare, q.waiting[:most]...)
	q.waiting, q.spare = slices.Delete(q.waiting, 0, most), nil
	return taken
}

// done gives back the room of marks that are in Redis.
func (q *queue) done(taken []mark) {
	if cap(taken) <= maxSpare {
		q.spare = taken[:0]
	}
}

// restore puts marks back before those that came later, and tells how many
// did not fit.
func (q *queue) restore(taken []mark) (dropped int) {
	all := append(taken, q.waiting...)
	if dropped = len(all) - maxWaiting; dropped > 0 {
		all = slices.Delete(all, 0, dropped)
	}
	q.waiting = all
	return max(dropped, 0)
}

// Question is about one event. The zero Question is about one that was never
// here.
type Question struct {
	memory *Memory
	shelf  *shelf
	page   *page // of the trip to wait for; nil where the answer is known
	digest digest
	window time.Duration
}

// Seen waits for the answer. It is false if there will be none, or the context
// ends before.
func (q Question) Seen(ctx context.Context) bool {
	if q.shelf == nil {
		return false
	}
	if q.page != nil {
		select {
		case <-q.page.done:
		case <-ctx.Done():
			return false
		}
		q.memory.mu.Lock()
		seen := q.shelf.known.seen(q.digest, time.Now(), q.window)
		q.memory.mu.Unlock()
		if !seen {
			return false
		}
	}
	q.shelf.repeats.Inc()
	return true
}

// digest stands for a source and an id. A digest that two events share would
// lose the second, so it must not be had by chance or by design: of a million
// remembered events a stranger meets one with odds of 1 to 10^32, and whoever
// chooses ids to meet somebody else's event has to try 2^108 of them. Two of
// his own that meet (2^64 tries) lose one of his own. A faster hash would have
// to be keyed, and every gateway would have to share the key and keep it.
type digest [16]byte

// digestOf puts the length before the source, so that ("ab", "c") and
// ("a", "bc") differ. What most events have fits one block of SHA-256.
func digestOf(source, id string) digest {
	var room [256]byte
	b := binary.AppendUvarint(room[:0], uint64(len(source)))
	b = append(b, source...)
	b = append(b, id...)
	sum := sha256.Sum256(b)
	return digest(sum[:16])
}

// mark says that an event is on the log.
type mark struct {
	digest digest
	at     int64 // milliseconds since 1970
}

// markBytes are a mark's in Redis: its digest, and its time with the big end
// first.
const markBytes = len(digest{}) + 8

func encode(marks []mark) []byte {
	b := make([]byte, 0, len(marks)*markBytes)
	for i := range marks {
		b = append(b, marks[i].digest[:]...)
		b = binary.BigEndian.AppendUint64(b, uint64(marks[i].at))
	}
	return b
}

// decode hands out the marks of an entry. What is no mark, because others write
// to the same Redis, is left out.
func decode(text string, each func(mark)) {
	for ; len(text) >= markBytes; text = text[markBytes:] {
		at := binary.BigEndian.Uint64([]byte(text[len(digest{}):markBytes]))
		each(mark{digest([]byte(text[:len(digest{})])), int64(at)})
	}
}

// longest is how long an event may be remembered, by any config.
const longest = 24 * time.Hour

// keyOf is where a stream's marks lie in Redis. It names the Kafka, lest two
// installs of one name that share a Redis take each other's events for repeats.
func keyOf(names tidemill.Names, kafka, stream string) string {
	return names.Key("repeats", layout, kafka, "{"+stream+"}")
}

// Forget has all gateways forget what was marked on a stream up to now. It is
// for one that has just been made: marks of an earlier stream of its name, or
// from beside another Kafka, are of events that it does not hold. Gateways read
// of it as they read of each other's marks, and each says it on with its own,
// so that it is heard however much is written, and trimmed, behind it.
func Forget(ctx context.Context, client *redis.Client, names tidemill.Names, kafka, stream string) error {
	key := keyOf(names, kafka, stream)
	_, err := client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.Unlink(ctx, key)
		p.XAdd(ctx, &redis.XAddArgs{Stream: key, Values: []any{fieldForget, time.Now().UnixMilli()}})
		p.PExpire(ctx, key, longest)
		return nil
	})
	if err != nil {
		return fmt.Errorf("forget the repeats of stream %s: %w", stream, err)
	}
	return nil
}

// Forget drops what this gateway knows of a stream that has just been made,
// whether or not Redis is there.
func (m *Memory) Forget(stream string) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.shelf(stream)
	s.known = known{forgotten: time.Now().UnixMilli()}
	s.marks.waiting = nil
}

// forgets reads what an entry says of forgetting.
func forgets(entry *redis.XMessage) (upTo int64) {
	text, _ := entry.Values[fieldForget].(string)
	upTo, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return upTo
}
