package score

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// collector reports the metrics of one scorer. They are counted once a batch, so that a
// scrape does not slow down events.
type collector struct {
	s                                            *Scorer
	events, latency, batch, held, aborted, swaps *prometheus.Desc
	lag, models                                  *prometheus.Desc
}

func newCollector(s *Scorer) *collector {
	desc := func(name, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc("tidemill_scorer_"+name, help, more, prometheus.Labels{"scorer": s.conf.Name})
	}
	return &collector{s: s,
		events:  desc("events_total", "Events that a scorer is done with, by outcome: scored, passed, dropped, dead-lettered or skipped.", "outcome"),
		latency: desc("latency_seconds", "From an event's place on the log until its output was committed."),
		batch:   desc("batch_events", "Events that were committed at once."),
		held:    desc("waiting", "Events that wait until their models are loaded."),
		aborted: desc("aborted_total", "Transactions that were aborted; their events are scored again."),
		swaps:   desc("swaps_total", "Times that a version has scored a partition's events for the first time."),
		lag:     desc("lag", "Events that are still to be read, of the partitions that are read or prepared here."),
		models:  desc("models", "Models that events were scored by, or wait for, lately."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.events, c.latency, c.batch, c.held, c.aborted, c.swaps, c.lag, c.models} {
		ch <- d
	}
}

// latencyBounds are in milliseconds, batchBounds in events.
var (
	latencyBounds = []int64{1, 3, 5, 11, 23, 47, 95, 223, 447, 895, 3583, 14335, 57343} // read-only; the tops of buckets
	batchBounds   = []int64{1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 2047, 4095, 8191} // read-only
)

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	n := &c.s.counts
	counter := func(d *prometheus.Desc, x uint64, of ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(x), of...)
	}
	gauge := func(d *prometheus.Desc, x int64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(x))
	}
	counter(c.events, n.scored.Load(), "scored")
	counter(c.events, n.passed.Load(), "passed")
	counter(c.events, n.dropped.Load(), "dropped")
	counter(c.events, n.dead.Load(), "dead-lettered")
	counter(c.events, n.skipped.Load(), "skipped")
	counter(c.aborted, n.aborted.Load())
	counter(c.swaps, n.swaps.Load())
	gauge(c.held, n.held.Load())
	gauge(c.lag, n.lag.Load())
	gauge(c.models, n.models.Load())
	histogram(ch, c.latency, n.latency, latencyBounds, 1e-3)
	histogram(ch, c.batch, n.sizes, batchBounds, 1)
}

func histogram(ch chan<- prometheus.Metric, d *prometheus.Desc, l *latencies, bounds []int64, scale float64) {
	counts, n, sum := l.histogram(bounds)
	at := make(map[float64]uint64, len(bounds))
	for i, bound := range bounds {
		at[float64(bound)*scale] = counts[i]
	}
	ch <- prometheus.MustNewConstHistogram(d, n, float64(sum)*scale, at)
}

func (s *Scorer) register() error {
	if s.o.Registerer == nil {
		return nil
	}
	s.collector = newCollector(s)
	if err := s.o.Registerer.Register(s.collector); err != nil {
		return fmt.Errorf("register the metrics of scorer %s: %w", s.conf.Name, err)
	}
	return nil
}

func (s *Scorer) unregister() {
	if s.collector != nil {
		s.o.Registerer.Unregister(s.collector)
	}
}

// counts are totals since a scorer was opened.
type counts struct {
	events, scored, passed, dropped, dead, skipped, aborted, batches, swaps atomic.Uint64

	held   atomic.Int64
	lag    atomic.Int64
	models atomic.Int64

	latency *latencies
	sizes   *latencies // sizes of batches

	mu     sync.Mutex
	newest []Swap // oldest first
	fault  string
	at     time.Time
	rate   rate

	unsaid   uint64    // dead letters since the last log message about them
	saidDead time.Time // time of that message
}

// swapsKept is the number of swaps in a status.
const swapsKept = 50

// counted counts a committed batch. The latency of its events ends now, when Kafka has
// confirmed the commit.
func (s *session) counted(b *batch, now time.Time) {
	var n [verdicts]uint64
	var reason error
	var all uint64
	millis := now.UnixMilli()
	s.counts.latency.begin()
	for i := range b.items {
		it := &b.items[i]
		if n[it.verdict]++; it.held == nil && it.verdict != waiting && it.verdict != lost {
			all++
		}
		switch it.verdict {
		case scored:
			s.counts.latency.add(millis - it.logged)
		case dead:
			reason = it.reason
		}
	}
	s.counts.latency.end()
	if letters := s.counts.toSay(n[dead], now); letters > 0 {
		s.log.Warn("scorer: events cannot be scored; they become dead letters", "scorer", s.conf.Name, "stream", s.conf.From, "events", letters, "reason", reason)
	}
	s.swapped(b, now)
	s.counts.add(&n, all, now)
}

// sayDeadEvery limits the log messages about dead letters, because every event of a
// publisher may become one.
const sayDeadEvery = 10 * time.Second

// toSay returns the number of dead letters to log; 0 if some were logged recently.
func (c *counts) toSay(more uint64, now time.Time) (letters uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unsaid += more
	if more == 0 || now.Sub(c.saidDead) < sayDeadEvery {
		return 0
	}
	letters, c.unsaid, c.saidDead = c.unsaid, 0, now
	return letters
}

// add counts the events last, so that a reader that sees an event counted also sees its
// outcome counted.
func (c *counts) add(n *[verdicts]uint64, all uint64, now time.Time) {
	c.scored.Add(n[scored])
	c.passed.Add(n[passed] + n[passedOver])
	c.dropped.Add(n[dropped])
	c.dead.Add(n[dead])
	c.skipped.Add(n[skipped])
	c.batches.Add(1)
	c.sizes.one(int64(all))
	c.mu.Lock()
	c.rate.add(all, now)
	c.mu.Unlock()
	c.events.Add(all)
}

// swapped keeps the newest swaps.
func (s *session) swapped(b *batch, now time.Time) {
	c := &s.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range b.swaps {
		w := &b.swaps[i]
		if w.lost {
			continue
		}
		c.swaps.Add(1)
		if len(c.newest) == 2*swapsKept {
			c.newest = append(c.newest[:0], c.newest[swapsKept:]...)
		}
		c.newest = append(c.newest, Swap{At: now, Model: w.model, Before: w.before, Version: w.version,
			Stream: s.conf.From, Partition: w.assignment.partition, Offset: w.offset})
	}
}

// failing stores the reason why the scorer does not make progress.
func (s *Scorer) failing(err error) {
	s.counts.mu.Lock()
	defer s.counts.mu.Unlock()
	s.counts.fault, s.counts.at = err.Error(), time.Now()
}

// rate counts events a second, for the last seconds.
type rate struct {
	counts [rateSeconds + 1]uint64
	second int64
}

const rateSeconds = 10

func (r *rate) add(n uint64, now time.Time) {
	r.move(now.Unix())
	r.counts[r.second%int64(len(r.counts))] += n
}

// move clears the seconds since the last event.
func (r *rate) move(second int64) {
	for i := max(r.second+1, second-rateSeconds); i <= second; i++ {
		r.counts[i%int64(len(r.counts))] = 0
	}
	r.second = max(r.second, second)
}

// average returns the mean rate over the last whole seconds.
func (r *rate) average(now time.Time) float64 {
	r.move(now.Unix())
	var all uint64
	for i, n := range r.counts {
		if int64(i) != r.second%int64(len(r.counts)) {
			all += n
		}
	}
	return float64(all) / rateSeconds
}

// Standing is the status of a scorer in this process. The counts begin when it is
// opened.
type Standing struct {
	Name         string        `json:"name"`
	Events       uint64        `json:"events"` // events read
	Scored       uint64        `json:"scored"`
	Passed       uint64        `json:"passed"` // events without a model or not selected
	Dropped      uint64        `json:"dropped"`
	DeadLettered uint64        `json:"deadLettered"`
	Held         int64         `json:"held"`    // events that are parked until their models are loaded
	Skipped      uint64        `json:"skipped"` // events that a former owner had scored
	Aborted      uint64        `json:"aborted"` // transactions
	Rate         float64       `json:"rate"`    // events a second, recently
	Lag          int64         `json:"lag"`     // events that are not read yet
	P50          time.Duration `json:"p50"`     // time from the input to the output, recently
	P99          time.Duration `json:"p99"`
	Models       int           `json:"models"` // models in use
	Swaps        []Swap        `json:"swaps"`  // newest swaps, the newest first
	LastError    string        `json:"lastError,omitempty"`
	LastErrorAt  time.Time     `json:"lastErrorAt,omitzero"`
}

// Swap is the first event of a partition that a version has scored.
type Swap struct {
	At        time.Time `json:"at"`
	Model     string    `json:"model"`
	Before    int       `json:"before"` // 0 if unknown
	Version   int       `json:"version"`
	Stream    string    `json:"stream"`
	Partition int32     `json:"partition"`
	Offset    int64     `json:"offset"`
}

// Standing returns the status.
func (s *Scorer) Standing() Standing {
	c := &s.counts
	at := Standing{Name: s.conf.Name, Events: c.events.Load(), Scored: c.scored.Load(), Passed: c.passed.Load(), Dropped: c.dropped.Load(),
		DeadLettered: c.dead.Load(), Held: c.held.Load(), Skipped: c.skipped.Load(), Aborted: c.aborted.Load(), Lag: c.lag.Load(),
		P50: time.Duration(c.latency.quantile(.5)) * time.Millisecond, P99: time.Duration(c.latency.quantile(.99)) * time.Millisecond,
		Models: int(c.models.Load()), Swaps: make([]Swap, 0, swapsKept)}
	c.mu.Lock()
	defer c.mu.Unlock()
	at.Rate, at.LastError, at.LastErrorAt = c.rate.average(time.Now()), c.fault, c.at
	if when, err := s.o.Models.Failure(); err != nil && when.After(at.LastErrorAt) {
		at.LastError, at.LastErrorAt = err.Error(), when
	}
	for i := len(c.newest) - 1; i >= 0 && len(at.Swaps) < swapsKept; i-- {
		at.Swaps = append(at.Swaps, c.newest[i])
	}
	return at
}

// latencies counts numbers by size, in buckets that are a quarter as wide as the
// number: in total, and for the recent past.
type latencies struct {
	mu   sync.Mutex
	all  [buckets]uint64
	sum  uint64
	turn [2][buckets]uint64 // present period and the one before
	last time.Time          // beginning of the present period
}

const (
	buckets     = 128
	lately      = 10 * time.Second
	bucketShift = 2
)

// bucketOf returns the bucket of a number: the number itself if it is small, otherwise
// by its highest bits.
func bucketOf(n int64) int {
	if n < 1<<bucketShift {
		return int(max(n, 0))
	}
	shift := bits.Len64(uint64(n)) - bucketShift - 1
	return min(buckets-1, (shift+1)<<bucketShift+int(n>>shift)&(1<<bucketShift-1))
}

// bucketTop returns the largest number of a bucket.
func bucketTop(b int) int64 {
	if b < 1<<bucketShift {
		return int64(b)
	}
	shift := b>>bucketShift - 1
	return (int64(1<<bucketShift+b&(1<<bucketShift-1))+1)<<shift - 1
}

// begin allows calls of add until end, so that a batch takes the lock once.
func (l *latencies) begin() {
	l.mu.Lock()
	l.move(time.Now())
}

func (l *latencies) add(n int64) {
	b := bucketOf(n)
	l.all[b]++
	l.turn[0][b]++
	l.sum += uint64(max(n, 0))
}

func (l *latencies) end() { l.mu.Unlock() }

func (l *latencies) one(n int64) {
	l.begin()
	l.add(n)
	l.end()
}

func (l *latencies) move(now time.Time) {
	switch since := now.Sub(l.last); {
	case since > 2*lately:
		l.turn = [2][buckets]uint64{}
	case since > lately:
		l.turn[1], l.turn[0] = l.turn[0], [buckets]uint64{}
	default:
		return
	}
	l.last = now
}

// quantile returns a number that a share q of the recent numbers does not exceed.
func (l *latencies) quantile(q float64) int64 {
	l.begin()
	defer l.end()
	var all uint64
	for b := range buckets {
		all += l.turn[0][b] + l.turn[1][b]
	}
	left := uint64(q * float64(all))
	for b := range buckets {
		n := l.turn[0][b] + l.turn[1][b]
		if n > left {
			return bucketTop(b)
		}
		left -= n
	}
	return 0
}

// histogram returns how many numbers did not exceed each of some bounds.
func (l *latencies) histogram(bounds []int64) (counts []uint64, n, sum uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	counts = make([]uint64, len(bounds))
	for b := range buckets {
		n += l.all[b]
		for i, bound := range bounds {
			if bucketTop(b) <= bound {
				counts[i] += l.all[b]
			}
		}
	}
	return counts, n, l.sum
}
