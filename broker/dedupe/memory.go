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

// dataVersion is the version of the data in Redis. A process with another version does not see this
// data and keeps its own marks.
const dataVersion = "1"

// Options configure Open.
type Options struct {
	// Redis names the server; the client's own connections are not used. Without Redis no event is
	// remembered.
	Redis *redis.Client
	Names tidemill.Names
	Kafka string // id of the Kafka cluster that has the streams
	// Limit is the largest number of events of a stream that are remembered; 0 means a million. At
	// least half of the limit is remembered. A full stream takes about 50 MB.
	Limit int
	// Stale is the allowed age of the knowledge about other gateways' marks; 0 means 10 ms. While
	// the knowledge is younger, no caller waits for Redis.
	Stale time.Duration
	// Patience is the longest wait for a Redis that does not answer; 0 means 100 ms.
	Patience   time.Duration
	Registerer prometheus.Registerer // nil means that the metrics are not registered
	Logger     *slog.Logger          // nil means no log
}

// Memory knows which events were published before. A nil Memory remembers nothing.
type Memory struct {
	names    tidemill.Names
	kafka    string
	limit    int
	patience time.Duration
	stale    time.Duration
	client   *redis.Client
	log      *slog.Logger
	metrics  *metrics
	self     string // name that distinguishes our entries from those of other gateways

	mu      sync.Mutex
	shelves map[string]*streamMemory // by stream
	busy    []*streamMemory          // streams that are due for a trip, in their order
	urgent  bool                     // whether a caller waits for the trip
	asleep  bool                     // whether runTrips waits for wake
	away    bool                     // whether the circuit is open
	closed  bool

	wake    chan struct{}
	closing chan struct{}
	ended   chan struct{} // closed after runTrips has returned
	ctx     context.Context
	cancel  context.CancelFunc

	failures int       // failures since Redis last answered a trip with work; used by runTrips only
	left     time.Time // time at which the last trip began; used by runTrips only
}

// Open makes no connection yet, so that a process can start while Redis is away. It returns nil if
// there is no Redis.
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
		client: redis.NewClient(clientOptions(o.Redis.Options(), o.Patience)), log: o.Logger, metrics: counts,
		shelves: map[string]*streamMemory{},
		wake:    make(chan struct{}, 1), closing: make(chan struct{}), ended: make(chan struct{})}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	go m.runTrips()
	return m, nil
}

// clientOptions returns the options of a client that gives up when its context ends. Memory itself
// does the retries.
func clientOptions(options *redis.Options, patience time.Duration) *redis.Options {
	o := *options
	o.ContextTimeoutEnabled = true
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = patience, patience, patience, patience
	o.DialerRetries = 1
	o.MaxRetries, o.MinRetryBackoff, o.MaxRetryBackoff = 1, -1, -1 // one more try, for a connection that was closed while idle
	o.PipelinePoolSize = -1
	o.DisableIdentity, o.PushNotificationProcessor = true, nil // the processor belongs to the other client
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	o.ReadBufferSize, o.WriteBufferSize = 64<<10, 64<<10
	return &o
}

// Seen reports whether the event was marked on the stream within the window. If the answer is not
// known, Seen returns false.
func (m *Memory) Seen(ctx context.Context, stream string, window time.Duration, source, id string) bool {
	return m.Ask(stream, window, source, id).Seen(ctx)
}

// Ask starts a question and does not wait, so that a caller can ask about many events and wait
// once.
func (m *Memory) Ask(stream string, window time.Duration, source, id string) Question {
	if m == nil || window <= 0 {
		return Question{}
	}
	q := Question{memory: m, digest: digestOf(source, id), window: window}
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.streamMemory(stream)
	s.window = window
	seen := !m.closed && s.known.isKnown(q.digest, now, window)
	age := now.Sub(s.fresh)
	switch {
	case m.away || m.closed:
		if !seen {
			m.metrics.unchecked.Inc()
			return Question{}
		}
	case age >= m.stale: // the stream may have been created again since then
		q.page = s.addCaller()
		m.scheduleTrip(s, true)
	case age >= m.stale/2:
		m.scheduleTrip(s, false) // early, so that no caller has to wait
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

// Recall remembers an event that reached the log at an earlier time, as if it had been marked then.
// The events of a stream must come in the order of time.
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
	s := m.streamMemory(stream)
	s.window = window
	s.known.addOwn(made, now, window, m.limit)
	if dropped := s.marks.add(made); dropped > 0 {
		m.metrics.dropped.Add(float64(dropped))
	}
	m.scheduleTrip(s, len(s.marks.waiting) >= tripMarks/2)
}

// Away reports whether Redis counts as away, so that repeats of events from other gateways are not
// recognised.
func (m *Memory) Away() bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.away
}

// BeginRecall reports whether the marks of a stream must be read from the log (Recall): Redis has
// none, or the gateway that read them before was killed. So Redis keeps a note until EndRecall.
func (m *Memory) BeginRecall(ctx context.Context, stream string, window time.Duration) (needed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, m.patience)
	defer cancel()
	key := keyOf(m.names, m.kafka, stream)
	pipe := m.client.Pipeline()
	marks, begun := pipe.Exists(ctx, key), pipe.Exists(ctx, recallKey(key))
	if _, err = pipe.Exec(ctx); err == nil {
		if marks.Val() > 0 && begun.Val() == 0 {
			return false, nil
		}
		err = m.client.Set(ctx, recallKey(key), m.self, window).Err()
	}
	if err != nil {
		return true, fmt.Errorf("ask Redis for the events of stream %s: %w", stream, err)
	}
	return true, nil
}

// recallKey is the key of the note that a recall has begun. It is in the same slot as the marks.
func recallKey(key string) string { return key + ":recall" }

// EndRecall makes Redis drop the note of BeginRecall after the marks of all calls of Recall.
func (m *Memory) EndRecall(stream string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.streamMemory(stream)
	s.recalled = true
	m.scheduleTrip(s, true)
}

// streamMemory returns the memory of a stream, and creates it if needed.
func (m *Memory) streamMemory(stream string) *streamMemory {
	s := m.shelves[stream]
	if s == nil {
		s = &streamMemory{stream: stream, repeats: m.metrics.repeats.WithLabelValues(stream),
			key: keyOf(m.names, m.kafka, stream), after: "0"}
		m.shelves[stream] = s
	}
	return s
}

// scheduleTrip adds a stream to the next trip. An urgent trip starts at once; other trips start
// when half of the allowed staleness has passed since the last trip.
func (m *Memory) scheduleTrip(s *streamMemory, urgent bool) {
	news := urgent && !m.urgent || len(m.busy) == 0
	if !s.listed {
		s.listed = true
		m.busy = append(m.busy, s)
	}
	m.urgent = m.urgent || urgent
	if m.asleep && news {
		m.asleep = false
		m.wake <- struct{}{} // has room, because runTrips emptied the channel before it waited
	}
}

// Close writes the waiting marks and ends. If the context ends first, or Redis is away, these marks
// are dropped and counted.
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

// metrics are the metrics for operators. The only label is the stream, and a config has few
// streams.
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
			Help: "1 while Redis is down and repeats are not recognised, else 0."}),
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

// streamMemory holds the knowledge about one stream and its work for the next trip. The lock of
// Memory guards it, except the fields that only runTrips uses.
type streamMemory struct {
	stream  string
	key     string
	repeats prometheus.Counter

	known  marksKnown
	window time.Duration // window of the latest call
	fresh  time.Time     // start of the last trip that read the marks of other gateways

	listed   bool
	recalled bool // whether the note of BeginRecall is to be dropped after the waiting marks
	marks    markQueue
	page     *waitGroup // callers that wait for the next trip; nil if no caller waits

	after string // id of the last entry that was read; used by runTrips only
}

// waitGroup is the group of callers that wait for one trip. A waitGroup does not change after done
// is closed.
type waitGroup struct {
	done    chan struct{}
	waiting int
	failed  bool // whether the trip failed
}

// addCaller adds a caller to the waitGroup of the next trip.
func (s *streamMemory) addCaller() *waitGroup {
	if s.page == nil {
		s.page = &waitGroup{done: make(chan struct{})}
	}
	s.page.waiting++
	return s.page
}

// releaseCallers lets all waiting callers continue with the present knowledge, and returns their
// number.
func (s *streamMemory) releaseCallers() (questions int) {
	p := s.page
	if p == nil {
		return 0
	}
	s.page, p.failed = nil, true
	close(p.done)
	return p.waiting
}

// marksKnown is the memory of one stream. New marks go to the young generation. When the young
// generation has half of the limit, or is older than the window, it replaces the old one. The old
// generation is dropped as a whole, which is cheaper than the removal of single ids. Two lookups
// find any mark. The time is stored with each digest, so the caller chooses the exact window.
type marksKnown struct {
	young, old generation
	forgotten  int64 // time up to which no mark counts
}

type generation struct {
	marks  map[digest]int64 // time of each mark
	born   int64
	oldest int64 // time of the oldest mark
}

// isKnown reports whether the event was marked within the window.
func (k *marksKnown) isKnown(d digest, now time.Time, window time.Duration) bool {
	at, here := k.young.marks[d]
	if !here {
		at, here = k.old.marks[d]
	}
	return here && at > k.forgotten && now.UnixMilli()-at < window.Milliseconds()
}

// addOwn stores a mark made now, which is the latest mark of its event.
func (k *marksKnown) addOwn(m mark, now time.Time, window time.Duration, limit int) {
	k.rotate(now.UnixMilli(), window.Milliseconds(), limit)
	k.young.marks[m.digest] = m.at
	k.young.oldest = min(m.at, k.young.oldest)
}

// addOther stores the mark of another gateway. Of two marks of an event the later one counts.
func (k *marksKnown) addOther(m mark, now time.Time, window time.Duration, limit int) {
	if at, here := k.young.marks[m.digest]; !here || at < m.at {
		k.addOwn(m, now, window, limit)
	}
}

// rotate makes the young generation the old one if it is full, or if every mark of the old one is
// past its window. The new map grows a little at a time. A map with room for all marks, or one that
// must be cleared, would delay all callers.
func (k *marksKnown) rotate(now, window int64, limit int) {
	if y := &k.young; y.marks == nil || len(y.marks) >= max(1, limit/2) || now-y.born >= window {
		k.old = *y
		*y = generation{marks: map[digest]int64{}, born: now, oldest: now}
	}
}

// oldestTime returns the time of the oldest mark that is remembered.
func (k *marksKnown) oldestTime() int64 {
	if k.old.marks != nil {
		return min(k.old.oldest, k.young.oldest)
	}
	return k.young.oldest
}

// maxWaiting is the largest number of a stream's marks that wait for Redis: 1.5 MiB.
const maxWaiting = 1 << 16

// maxSpare is the capacity that is kept for later marks. A larger slice, as after an outage, is
// freed.
const maxSpare = 4096

// markQueue holds marks in the order in which they were made. A markQueue uses two slices in turn
// to avoid allocations: one slice fills while a trip sends the other.
type markQueue struct {
	waiting, spare []mark
}

// add appends a mark. A full queue drops its oldest quarter, because most repeats are of recent
// events. add returns the number of dropped marks.
func (q *markQueue) add(m mark) (dropped int) {
	if len(q.waiting) >= maxWaiting {
		dropped = maxWaiting / 4
		q.waiting = slices.Delete(q.waiting, 0, dropped)
	}
	q.waiting = append(q.waiting, m)
	return dropped
}

// takeMarks removes and returns the oldest marks. The caller later passes these marks to reuseSlice
// or restore.
func (q *markQueue) takeMarks(most int) []mark {
	if len(q.waiting) <= most {
		taken := q.waiting
		q.waiting, q.spare = q.spare, nil
		return taken
	}
	taken := append(q.spare, q.waiting[:most]...)
	q.waiting, q.spare = slices.Delete(q.waiting, 0, most), nil
	return taken
}

// reuseSlice keeps the slice of marks that are now in Redis for reuse.
func (q *markQueue) reuseSlice(taken []mark) {
	if cap(taken) <= maxSpare {
		q.spare = taken[:0]
	}
}

// restore puts marks back before later marks, and returns the number of marks that did not fit.
func (q *markQueue) restore(taken []mark) (dropped int) {
	all := append(taken, q.waiting...)
	if dropped = len(all) - maxWaiting; dropped > 0 {
		all = slices.Delete(all, 0, dropped)
	}
	q.waiting = all
	return max(dropped, 0)
}

// Question is a question about one event. The zero Question is about an event that was never seen.
type Question struct {
	memory *Memory
	shelf  *streamMemory
	page   *waitGroup // waitGroup of the trip to wait for; nil if the answer is known
	digest digest
	window time.Duration
}

// Seen waits for the answer. It returns false if there is no answer, or if the context ends first.
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
		seen := q.shelf.known.isKnown(q.digest, time.Now(), q.window)
		q.memory.mu.Unlock()
		if !seen {
			return false
		}
	}
	q.shelf.repeats.Inc()
	return true
}

// digest represents a source and an id. If two events shared a digest, the second event would be
// lost. So a shared digest must not happen by chance or by intent. Of a million remembered events,
// a random one is hit with odds of 1 to 10^32. An attacker who wants to hit the event of another
// publisher must try 2^108 ids. Two of the attacker's own events that collide (2^64 tries) lose
// only one of these two. A faster hash would need a secret key that all gateways share.
type digest [16]byte

// digestOf puts the length before the source, so that ("ab", "c") and ("a", "bc") differ. The input
// of most events fits one block of SHA-256.
func digestOf(source, id string) digest {
	var room [256]byte
	b := binary.AppendUvarint(room[:0], uint64(len(source)))
	b = append(b, source...)
	b = append(b, id...)
	sum := sha256.Sum256(b)
	return digest(sum[:16])
}

// mark records that an event is on the log.
type mark struct {
	digest digest
	at     int64 // milliseconds since 1970
}

// markBytes is the length of a mark in Redis: its digest and its time in big-endian order.
const markBytes = len(digest{}) + 8

func encode(marks []mark) []byte {
	b := make([]byte, 0, len(marks)*markBytes)
	for i := range marks {
		b = append(b, marks[i].digest[:]...)
		b = binary.BigEndian.AppendUint64(b, uint64(marks[i].at))
	}
	return b
}

// decodeMarks calls the function each with the marks of an entry. It ignores an incomplete mark at
// the end, because other programs may write to the same Redis.
func decodeMarks(text string, each func(mark)) {
	for ; len(text) >= markBytes; text = text[markBytes:] {
		at := binary.BigEndian.Uint64([]byte(text[len(digest{}):markBytes]))
		each(mark{digest([]byte(text[:len(digest{})])), int64(at)})
	}
}

// maxWindow is the longest time for which any config may remember an event.
const maxWindow = 24 * time.Hour

// keyOf returns the key of a stream's marks in Redis. It contains the Kafka cluster's id, so that
// two installs of one name that share a Redis do not take each other's events for repeats.
func keyOf(names tidemill.Names, kafka, stream string) string {
	return names.Key("repeats", dataVersion, kafka, "{"+stream+"}")
}

// Forget makes all gateways forget the marks of a stream up to now. Call Forget for a stream that
// has just been created, because older marks of this name belong to events of another stream or
// Kafka cluster. Gateways read this entry like each other's marks, and each gateway repeats the
// entry with its own marks. So all gateways see the entry even after Redis has trimmed it.
func Forget(ctx context.Context, client *redis.Client, names tidemill.Names, kafka, stream string) error {
	key := keyOf(names, kafka, stream)
	_, err := client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.Unlink(ctx, key)
		p.XAdd(ctx, &redis.XAddArgs{Stream: key, Values: []any{fieldForget, time.Now().UnixMilli()}})
		p.PExpire(ctx, key, maxWindow)
		return nil
	})
	if err != nil {
		return fmt.Errorf("forget the repeats of stream %s: %w", stream, err)
	}
	return nil
}

// Forget drops this gateway's marks of a stream that has just been created, whether or not Redis
// answers.
func (m *Memory) Forget(stream string) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.streamMemory(stream)
	s.known = marksKnown{forgotten: time.Now().UnixMilli()}
	s.marks.waiting = nil
}

// forgetTime returns the time up to which an entry says to forget.
func forgetTime(entry *redis.XMessage) (upTo int64) {
	text, _ := entry.Values[fieldForget].(string)
	upTo, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return upTo
}
