package outcomes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/triggers/commands"
	"tidemill.dev/triggers/deadletters"
)

// Options configure the joining of one scorer's answers with their labels.
type Options struct {
	Broker     *broker.Broker
	Names      tidemill.Names
	Config     config.Scorer // a scorer with labels
	Dir        string        // folder of this scorer for the answers that wait; if empty, a temporary one
	Registerer prometheus.Registerer
	Logger     *slog.Logger

	most int // entries in memory; 0 means mostInMemory
	// crash is called by tests before each step of a commit; its error ends the session like a kill.
	crash func(step string) error
}

const mostInMemory = 1 << 17

// Settings returns the parts of a scorer's config on which outcomes depend.
func Settings(c config.Scorer) any {
	return struct {
		To, Model string
		Labels    config.Labels
	}{c.To, c.Model, *c.Labels}
}

// Run joins answers with labels until the context ends. It takes the scorer from its present owner: after that the
// former owner's Run returns an error that wraps broker.ErrSuperseded.
func Run(ctx context.Context, o Options) (err error) {
	s, err := open(ctx, o)
	if err != nil {
		return fmt.Errorf("join the answers of scorer %s with their labels: %w", o.Config.Name, err)
	}
	err = s.run(ctx)
	if errors.Is(err, errSegment) { // the next owner reads the logs instead
		err = errors.Join(err, s.index.reset())
	}
	if ended := s.close(context.WithoutCancel(ctx)); err == nil || ctx.Err() != nil {
		err = errors.Join(ended, context.Cause(ctx))
	}
	if err != nil {
		err = fmt.Errorf("join the answers of scorer %s with their labels: %w", o.Config.Name, err)
	}
	return err
}

// session is the time in which this process owns the scorer.
type session struct {
	Options
	settings string
	x        *broker.Exclusive
	asked    *commands.Follower // which keys were forgotten
	topic    string             // id of the topic of the answers
	consumer *broker.Consumer   // of both streams
	rest     *broker.Delivery   // delivery of which a full transaction left events; nil if there is none
	taken    int                // number of its events that were taken
	index    *index
	join     *joiner
	out      *output
	metrics  *metrics
	unlisted func() // ends the report of the lag

	answers, labels *input
	written         []int64 // offset of each partition of the outcomes after the last outcome that we know
	marked          marks   // offsets that the group has
	committed       time.Time
	told            time.Time // time of the last log line about crowded values
	markedAll       time.Time
	passed          time.Time
	target          *target
	expired         int64 // time up to which both streams are read, in milliseconds
}

// input is one of the two streams.
type input struct {
	stream string
	read   []int64 // offset of each partition up to which it was read
	done   []int64 // offset up to which everything has expired
	due    []int64 // time at which the event at done expires; 0 if it is not known
	take   func(v *broker.View, at position, ms int64) error
	expire func(v *broker.View, at position, ms int64) error
	mine   bool // whether an unreadable record is a dead letter of ours
}

// target is a moment for which the session waits: all that was on the streams at that time is read.
type target struct {
	at              int64
	answers, labels []broker.Position
}

func open(ctx context.Context, o Options) (s *session, err error) {
	if o.most == 0 {
		o.most = mostInMemory
	}
	if o.crash == nil {
		o.crash = func(string) error { return nil }
	}
	settings, err := json.Marshal(Settings(o.Config))
	if err != nil {
		return nil, err
	}
	s = &session{Options: o, settings: string(settings)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(context.WithoutCancel(ctx)))
		}
	}()
	m := newMatcher(o.Names, &o.Config)
	l := o.Config.Labels
	s.out = &output{names: o.Names, match: m, answers: o.Config.To, labels: l.From, now: time.Now}
	if s.index, err = openIndex(o.Dir, s.settings, o.most); err != nil {
		return s, err
	}
	s.join = &joiner{match: m, index: s.index, out: s.out, wait: l.Wait.Milliseconds(), missing: l.Missing, torn: map[string][]written{}, lettered: map[position]bool{}}
	s.join.forgotten = func(key string, at position) (bool, error) {
		return s.asked.Passed(ctx, key, tidemill.TypeScored, broker.Position{Stream: o.Config.To, Partition: at.partition, Offset: at.offset}, s)
	}
	s.join.forgets = s.forgets
	s.answers = &input{stream: o.Config.To, take: s.join.answer, expire: s.join.expireAnswer}
	s.labels = &input{stream: l.From, take: s.join.label, expire: s.join.expireLabel, mine: true}
	if s.asked, err = commands.FollowKeys(ctx, o.Broker, o.Logger); err != nil {
		return s, err
	}
	if s.topic, err = o.Broker.TopicID(ctx, o.Config.To); err != nil {
		return s, err
	}
	// From here on no former owner commits, so what is read now stays valid. An outcome repeats attributes of an answer, which may
	// have those that a publisher may not write.
	if s.x, err = o.Broker.Exclusive(ctx, Group(o.Config.Name), broker.ProducerOptions{AsRead: true, MaxEvent: deadletters.MaxBytes}); err != nil {
		return s, err
	}
	if err = s.recover(ctx); errors.Is(err, errSegment) {
		s.Logger.Warn("outcomes: a file of waiting answers is damaged; they are read again from the streams", "scorer", o.Config.Name, "reason", err)
		if err = s.index.reset(); err == nil {
			err = s.recover(ctx)
		}
	}
	if err != nil {
		return s, err
	}
	if s.metrics, err = newMetrics(s); err != nil {
		return s, err
	}
	s.unlisted, err = telemetry.Lag{Registerer: o.Registerer, Task: Group(o.Config.Name), Broker: o.Broker}.Report(s.consumer.Positions)
	return s, err
}

// Topic returns the id of the topic of the answers. See [commands.Lives].
func (s *session) Topic(broker.Position) string { return s.topic }

// close closes what is open, also after a failed open.
func (s *session) close(ctx context.Context) (err error) {
	if s.metrics != nil {
		s.metrics.close()
	}
	if s.unlisted != nil {
		s.unlisted()
	}
	if s.consumer != nil {
		err = errors.Join(err, s.consumer.Close(ctx))
	}
	if s.x != nil {
		ended, cancel := context.WithCancel(ctx)
		cancel() // every transaction has ended or was given up
		_ = s.x.Close(ended)
	}
	if s.asked != nil {
		err = errors.Join(err, s.asked.Close(ctx))
	}
	if s.index != nil {
		err = errors.Join(err, s.index.close())
	}
	return err
}

const (
	mostBatch   = 16 << 10             // events of a transaction
	mostOutputs = 8 << 10              // its outcomes and dead letters
	mostBytes   = 12 << 20             // their bytes; the last event may add the outcomes of a full entry
	together    = 2 * time.Millisecond // wait for further events of a batch
	tellEvery   = time.Minute          // between log lines about crowded values
	markEvery   = time.Second          // between transactions that have only positions
	passEvery   = time.Minute          // between two looks at the outcomes of others
	markAll     = time.Hour            // between marks of all partitions: Kafka forgets positions that are not marked for a week
	// limits of the time between two looks for expired events, which is a hundredth of the wait
	shortestLook, longestLook = 20 * time.Millisecond, 10 * time.Second
)

// run reads, joins and commits until the context ends.
func (s *session) run(ctx context.Context) error {
	look := min(longestLook, max(shortestLook, s.Config.Labels.Wait/100))
	var looked time.Time
	for ctx.Err() == nil {
		if err := s.gather(ctx, min(look, markEvery)); err != nil {
			return err
		}
		if now := time.Now(); now.Sub(looked) >= look {
			looked = now
			if err := s.expire(ctx, now); err != nil {
				return err
			}
		}
		if err := s.commit(ctx, false); err != nil {
			return err
		}
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := s.commit(ending, true); err != nil || s.index.temp || len(s.index.table.at) == 0 {
		return err
	}
	return s.index.seal(s.settings, s.places()) // so that the next start reads nothing again
}

// gather takes the events that have arrived, up to a batch, or until the index is full. It waits for the first one.
func (s *session) gather(ctx context.Context, wait time.Duration) error {
	for taken := 0; taken < mostBatch && !s.isFull(); wait = together {
		if s.rest == nil {
			limited, cancel := context.WithTimeout(ctx, wait)
			d, err := s.consumer.Poll(limited)
			cancel()
			if err != nil {
				if limited.Err() != nil && !errors.Is(err, broker.ErrClosed) {
					break // nothing arrives
				}
				return err
			}
			s.rest, s.taken = d, 0
		}
		before := s.taken
		if err := s.take(ctx, s.rest); err != nil {
			return err
		}
		taken += s.taken - before
		if s.taken == len(s.rest.Events) {
			s.rest.Done()
			s.rest = nil
		}
	}
	return nil
}

// isFull reports whether a commit must follow before more events are taken.
func (s *session) isFull() bool { return s.out.isFull() || s.index.isFull() }

// take takes the events of a delivery, or some of them if these fill the transaction.
func (s *session) take(ctx context.Context, d *broker.Delivery) error {
	in := s.inputOf(d.Stream)
	for ; s.taken < len(d.Events) && !s.isFull(); s.taken++ {
		i := s.taken
		e := &d.Events[i]
		if e.Err != nil {
			next := d.Next()
			if i+1 < len(d.Events) {
				next = d.Events[i+1].Offset
			}
			err := s.unreadable(in, d.Partition, e, next-1)
			if err == nil && in == s.answers && errors.Is(e.Err, broker.ErrCut) { // perhaps it was created again
				s.topic, err = s.Broker.TopicID(ctx, in.stream)
			}
			if err != nil {
				return err
			}
			continue
		}
		if err := in.take(&e.View, position{d.Partition, e.Offset}, e.Time.UnixMilli()); err != nil {
			return fmt.Errorf("take the event at %s: %w", e.Position().Place(), err)
		}
	}
	return nil
}

// unreadable writes a dead letter for deleted offsets, and for a record among the labels that is not an event.
func (s *session) unreadable(in *input, partition int32, e *broker.Incoming, last int64) error {
	in.grow(int(partition) + 1)
	switch {
	case errors.Is(e.Err, broker.ErrCut):
		s.Logger.Error("outcomes: the stream was cut or created again; outcomes of its lost events may be missing", "scorer", s.Config.Name, "stream", in.stream, "partition", partition, "reason", e.Err)
		s.beginAgain(in, partition, last+1)
		return s.out.lost(in.stream, partition, max(e.Offset, 0), max(last, 0), nil, e.Err.Error())
	case errors.Is(e.Err, broker.ErrDeleted):
		s.Logger.Error("outcomes: events were deleted before they were read; their outcomes are lost", "scorer", s.Config.Name, "stream", in.stream, "partition", partition, "reason", e.Err)
		if in.done[partition] >= e.Offset { // else expirePartition finds the same gap, and names all lost offsets
			in.done[partition] = max(in.done[partition], last+1)
		}
		return s.out.lost(in.stream, partition, e.Offset, last, nil, e.Err.Error())
	case in.mine:
		return s.out.lost(in.stream, partition, e.Offset, e.Offset, broker.RecordOf(&e.View), "this record is not an event: "+e.Err.Error())
	}
	return nil // not an answer of ours
}

// beginAgain forgets what is known of the offsets of a partition from one on: other events will have them.
func (s *session) beginAgain(in *input, partition int32, from int64) {
	in.done[partition], in.due[partition] = min(in.done[partition], from), 0
	s.target = nil // the ends of the log before
	if in == s.labels {
		if int(partition) < len(s.join.replayed) {
			s.join.replayed[partition] = min(s.join.replayed[partition], from)
		}
		maps.DeleteFunc(s.join.lettered, func(at position, _ bool) bool { return at.partition == partition && at.offset >= from })
	}
}

// moveRead moves the offsets of both streams past the events that were taken.
func (s *session) moveRead() {
	for _, p := range s.consumer.Positions() {
		in := s.inputOf(p.Stream)
		in.grow(int(p.Partition) + 1)
		in.read[p.Partition] = p.Offset
	}
	if d := s.rest; d != nil {
		in := s.inputOf(d.Stream)
		in.grow(int(d.Partition) + 1)
		in.read[d.Partition] = d.Events[s.taken].Offset
	}
}

func (s *session) inputOf(stream string) *input {
	if stream == s.labels.stream {
		return s.labels
	}
	return s.answers
}

// grow makes room for partitions that were added to the stream.
func (in *input) grow(n int) {
	for len(in.read) < n {
		in.read, in.done, in.due = append(in.read, 0), append(in.done, 0), append(in.due, 0)
	}
}

// metrics reports what one scorer's owner has done.
type metrics struct {
	registerer    prometheus.Registerer
	events, known *prometheus.Desc
	segments      *prometheus.Desc

	mu      sync.Mutex
	n       counts
	entries int
	files   int
}

func newMetrics(s *session) (*metrics, error) {
	desc := func(name, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc("tidemill_outcomes_"+name, help, more, prometheus.Labels{"scorer": s.Config.Name})
	}
	m := &metrics{registerer: s.Registerer,
		events:   desc("events_total", "Answers and labels, by outcome: answer, label (read), joined, assumed, corrected, repeated, late, unmatched, unreadable, forgotten or crowded.", "outcome"),
		known:    desc("waiting", "Entries of answers and labels that are kept, in memory and on disk; one that changed may count twice."),
		segments: desc("files", "Files of entries on disk."),
	}
	if m.registerer == nil {
		return m, nil
	}
	if err := m.registerer.Register(m); err != nil {
		return nil, fmt.Errorf("register the metrics of outcomes: %w", err)
	}
	return m, nil
}

func (m *metrics) close() {
	if m.registerer != nil {
		m.registerer.Unregister(m)
	}
}

// add adds the counts since the last call.
func (m *metrics) add(s *session) {
	n := &s.join.n
	m.mu.Lock()
	defer m.mu.Unlock()
	m.n.answers += n.answers
	m.n.labels += n.labels
	m.n.joined += n.joined
	m.n.assumed += n.assumed
	m.n.corrected += n.corrected
	m.n.repeated += n.repeated
	m.n.late += n.late
	m.n.unmatched += n.unmatched
	m.n.unreadable += n.unreadable
	m.n.forgotten += n.forgotten
	m.n.crowded += n.crowded
	*n = counts{}
	m.entries, m.files = s.index.count(), len(s.index.segments)
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.events, m.known, m.segments} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	n, entries, files := m.n, m.entries, m.files
	m.mu.Unlock()
	for _, c := range []struct {
		outcome string
		n       uint64
	}{{"answer", n.answers}, {"label", n.labels}, {"joined", n.joined}, {"assumed", n.assumed}, {"corrected", n.corrected}, {"repeated", n.repeated},
		{"late", n.late}, {"unmatched", n.unmatched}, {"unreadable", n.unreadable}, {"forgotten", n.forgotten}, {"crowded", n.crowded}} {
		ch <- prometheus.MustNewConstMetric(m.events, prometheus.CounterValue, float64(c.n), c.outcome)
	}
	ch <- prometheus.MustNewConstMetric(m.known, prometheus.GaugeValue, float64(entries))
	ch <- prometheus.MustNewConstMetric(m.segments, prometheus.GaugeValue, float64(files))
}
