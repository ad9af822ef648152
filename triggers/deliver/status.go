package deliver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev/api"
)

// Standing is the status of one trigger at this dispatcher. The counts begin when the
// dispatcher was opened.
type Standing struct {
	Name         string
	Delivered    uint64
	Failed       uint64 // failed attempts
	DeadLettered uint64
	Replies      uint64
	Ignored      uint64 // answers with events that were ignored by default
	InFlight     int64
	Parked       int64
	OldestParked time.Time
	Starting     bool   // whether it has not begun on all partitions of this dispatcher
	Waits        string // reason why its events wait for the subscriber; empty if they do not
	LastError    string
	LastErrorAt  time.Time
}

// Standing returns the status of all triggers, by name.
func (d *Dispatcher) Standing() []Standing {
	late := map[string]bool{}
	for _, stream := range d.starting() {
		late[stream] = true
	}
	parked := map[string]waitingItems{}
	starting := map[string]bool{}
	d.mu.Lock()
	for stream, p := range d.plans {
		for _, name := range p.triggers {
			starting[name] = starting[name] || late[stream]
		}
	}
	for _, l := range d.pipelines {
		l.count(parked)
	}
	d.mu.Unlock()
	var all []Standing
	for name, s := range *d.senders.Load() {
		one := s.standing()
		one.Starting = starting[name]
		if why := d.missing.reasonFor(name); why != nil {
			one.Waits = why.Error()
		} else {
			one.Waits = s.whyOpen()
		}
		if w := parked[name]; w.n > 0 {
			one.Parked, one.OldestParked = w.n, w.oldest.time().UTC()
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b Standing) int { return strings.Compare(a.Name, b.Name) })
	return all
}

func (s *sender) standing() Standing {
	one := Standing{Name: s.name, Delivered: s.deliveredN.Load(), Failed: s.failedN.Load() + s.refusedN.Load(), DeadLettered: s.lettersN.Load(),
		Replies: s.repliesN.Load(), Ignored: s.ignoredN.Load(), InFlight: s.inFlight.Load()}
	one.LastError, one.LastErrorAt = s.lastError()
	return one
}

// waitingItems counts the parked items of a trigger.
type waitingItems struct {
	n      int64
	oldest millis
}

func (pl *pipeline) count(parked map[string]waitingItems) {
	for _, s := range pl.assignmentsNow() {
		s.mu.Lock()
		for name, one := range s.p.states {
			if one.parked == 0 {
				continue
			}
			w := parked[name]
			if w.n == 0 {
				w.oldest = never
			}
			parked[name] = waitingItems{w.n + int64(one.parked), min(w.oldest, one.oldest())}
		}
		s.mu.Unlock()
	}
}

// failed reports whether the pipeline has stopped reading although it should read.
func (pl *pipeline) failed() bool {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	return pl.fault != nil
}

// started reports whether the pipeline has its partitions and all its triggers have begun
// on them. A partition that waits for its parked partition begins at its present offset,
// so it counts as begun.
func (pl *pipeline) started() bool {
	stats := pl.c.Stats()
	all := pl.assignmentsNow()
	if stats.Rebalances == 0 || stats.Assigned != len(all) {
		return false
	}
	begun := true
	for _, s := range all {
		s.mu.Lock()
		begun = begun && (s.p.missing || s.p.opened && s.p.wanted == nil && s.p.begunAt != none && (s.p.writing == nil || !s.p.writing.begins))
		s.mu.Unlock()
	}
	return begun
}

// isDone reports whether a pipeline without triggers has nothing left to deliver in any partition of its stream. Called with
// the dispatcher's lock held.
func (pl *pipeline) isDone(ctx context.Context) bool {
	own, done := pl.ownDone()
	return done && pl.othersDone(ctx, own)
}

// ownDone reports whether everything of the partitions of this dispatcher has been delivered, and returns these partitions.
func (pl *pipeline) ownDone() (own map[int32]bool, done bool) {
	if !pl.started() {
		return nil, false
	}
	left, acts := false, pl.d.commands.Now().Next()
	own = map[int32]bool{}
	for _, s := range pl.assignmentsNow() {
		own[s.p.number] = true
		s.mu.Lock()
		left = left || s.p.busy() || s.p.progress.next < acts || len(s.p.progress.open) > 0
		for _, one := range s.p.states {
			left = left || !one.isEmpty()
		}
		s.mu.Unlock()
	}
	return own, !left
}

// starting lists streams on which a trigger has not begun everywhere yet.
func (d *Dispatcher) starting() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []string
	for stream := range d.plans {
		if l := d.pipelines[stream]; l == nil || !l.started() {
			all = append(all, stream)
		}
	}
	slices.Sort(all)
	return all
}

const readyEvery = 5 * time.Millisecond

// Ready waits until every trigger has begun on all partitions of this dispatcher.
// Events published after that reach the triggers.
func (d *Dispatcher) Ready(ctx context.Context) error {
	t := time.NewTicker(readyEvery)
	defer t.Stop()
	for {
		waits := d.starting()
		if len(waits) == 0 {
			return nil
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for the triggers of %s to begin: %w", strings.Join(waits, ", "), context.Cause(ctx))
		}
	}
}

// Check returns the dispatcher's readiness.
func (d *Dispatcher) Check() api.Check {
	c := api.Check{Name: "triggers", Status: api.OK}
	d.mu.Lock()
	for stream, err := range d.faults {
		c.Status, c.Detail = api.Failed, fmt.Sprintf("the triggers of stream %s are not served: %s", stream, err)
	}
	for stream, l := range d.pipelines {
		if lone := l.unparked(); len(lone) > 0 && c.Status == api.OK {
			c.Status, c.Detail = api.Degraded, fmt.Sprintf("%d partitions of stream %s wait, for stream %s does not have as many", len(lone), stream, l.parked())
		}
	}
	d.mu.Unlock()
	if waits := d.starting(); c.Status == api.OK && len(waits) > 0 {
		c.Status, c.Detail = api.Degraded, "triggers are still to begin on "+strings.Join(waits, ", ")
	}
	return c
}

// attemptCounts counts the outcomes of a trigger's attempts.
type attemptCounts struct {
	deliveredN, failedN, refusedN, lettersN, repliesN, ignoredN atomic.Uint64

	inFlight     atomic.Int64
	ignoredQuiet atomic.Int64 // Unix time in nanoseconds before which no ignored reply is logged

	errMu   sync.Mutex
	lastErr string
	lastAt  time.Time
	latency func(seconds float64) // observer; may be nil
}

func (t *attemptCounts) attempted(o *attemptResult) {
	switch o.kind {
	case delivered:
		t.repliesN.Add(uint64(len(o.replies)))
		return
	case again:
		t.failedN.Add(1)
	default:
		t.refusedN.Add(1)
	}
	t.errMu.Lock()
	t.lastErr, t.lastAt = o.attempt.Error, o.attempt.At
	t.errMu.Unlock()
}

func (t *attemptCounts) delivered(took time.Duration) {
	t.deliveredN.Add(1)
	if t.latency != nil {
		t.latency(took.Seconds())
	}
}

func (t *attemptCounts) deadLettered(reason string) {
	t.lettersN.Add(1)
}

func (t *attemptCounts) lastError() (string, time.Time) {
	t.errMu.Lock()
	defer t.errMu.Unlock()
	return t.lastErr, t.lastAt
}

// counts are the dispatcher's metrics. Those of a trigger are created when they are
// first needed. The only label is the trigger's name.
type counts struct {
	latency      *prometheus.HistogramVec
	transactions *prometheus.CounterVec
	unread       *prometheus.CounterVec
	collector    *collector
}

func (d *Dispatcher) register() error {
	d.counts = counts{
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tidemill_trigger_latency_seconds",
			Help:    "Time from an event's arrival on the log until its delivery.",
			Buckets: []float64{.001, .002, .005, .01, .02, .05, .1, .25, .5, 1, 5, 30, 120, 600, 3600}}, []string{"trigger"}),
		transactions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_waiting_transactions_total",
			Help: "Transactions that store events to wait and end waiting ones, by outcome: committed or aborted."}, []string{"outcome"}),
		unread: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_trigger_replay_skipped_total",
			Help: "Offsets that a range replay skipped because their stream no longer had them."}, []string{"trigger"}),
		collector: newCollector(d),
	}
	if d.o.Registerer == nil {
		return nil
	}
	for _, c := range d.counts.all() {
		if err := d.o.Registerer.Register(c); err != nil {
			return fmt.Errorf("register the metrics of triggers: %w", err)
		}
	}
	return nil
}

func (c *counts) all() []prometheus.Collector {
	return []prometheus.Collector{c.latency, c.transactions, c.unread, c.collector}
}

func (d *Dispatcher) unregister() {
	if d.o.Registerer == nil || d.counts.latency == nil {
		return
	}
	for _, c := range d.counts.all() {
		d.o.Registerer.Unregister(c)
	}
}

func (c *counts) latencyOf(trigger string) func(float64) {
	if c.latency == nil {
		return nil
	}
	return c.latency.WithLabelValues(trigger).Observe
}

func (c *counts) forget(trigger string) {
	if c.latency != nil {
		c.latency.DeleteLabelValues(trigger)
		c.unread.DeleteLabelValues(trigger)
	}
}

func (c *counts) skipped(trigger string, n int64) {
	if c.unread != nil {
		c.unread.WithLabelValues(trigger).Add(float64(n))
	}
}

func (c *counts) transaction(err error) {
	outcome := "committed"
	if err != nil {
		outcome = "aborted"
	}
	c.transactions.WithLabelValues(outcome).Inc()
}

// collector reports the triggers' status when Prometheus asks.
type collector struct {
	d                                                            *Dispatcher
	events, attempts, replies, ignored, flying, parked, of, open *prometheus.Desc
}

func newCollector(d *Dispatcher) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("tidemill_trigger_"+name, help, append(labels, "trigger"), nil)
	}
	return &collector{d: d,
		events:   desc("events_total", "Events that ended for a trigger, by outcome: delivered or dead-lettered.", "outcome"),
		attempts: desc("failed_attempts_total", "Attempts that did not deliver."),
		replies:  desc("replies_total", "Events that a subscriber replied and that were published."),
		ignored:  desc("ignored_replies_total", "Answers with events that were ignored because the trigger names no replies."),
		flying:   desc("in_flight", "Running attempts."),
		parked:   desc("waiting", "Events that wait for another attempt."),
		open:     desc("circuit_open", "1 while the subscriber cannot be reached and one event at a time is tried, else 0."),
		of:       desc("oldest_waiting_seconds", "How long the oldest waiting event has waited; 0 if none waits."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.events, c.attempts, c.replies, c.ignored, c.flying, c.parked, c.of, c.open} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, s := range c.d.Standing() {
		count(c.events, s.Delivered, "delivered", s.Name)
		count(c.events, s.DeadLettered, "dead-lettered", s.Name)
		count(c.attempts, s.Failed, s.Name)
		count(c.replies, s.Replies, s.Name)
		count(c.ignored, s.Ignored, s.Name)
		gauge(c.flying, float64(s.InFlight), s.Name)
		gauge(c.parked, float64(s.Parked), s.Name)
		age := 0.0
		if !s.OldestParked.IsZero() {
			age = max(time.Since(s.OldestParked).Seconds(), 0)
		}
		gauge(c.of, age, s.Name)
	}
	for name, s := range *c.d.senders.Load() {
		open := 0.0
		if s.isOpen() {
			open = 1
		}
		gauge(c.open, open, name)
	}
}

var _ prometheus.Collector = (*collector)(nil)
