package score

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/retry"
	"tidemill.dev/config"
	"tidemill.dev/internal/models/champions"
	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/serving"
	"tidemill.dev/triggers/deadletters"
)

// Options configure a scorer.
type Options struct {
	Broker     *broker.Broker
	Names      tidemill.Names
	Config     config.Scorer
	Champions  *champions.Table
	Models     *serving.Models
	Registerer prometheus.Registerer
	Logger     *slog.Logger

	SessionTimeout time.Duration // time after which a silent process counts as dead; 0 is the broker's default

	held heldOptions // limits for tests, which park few events
}

// Scorer scores one stream together with all scorers of its name. Each has some partitions of it.
type Scorer struct {
	o         Options
	conf      config.Scorer
	source    string
	most      int // largest number of events of a batch
	log       *slog.Logger
	counts    counts
	collector *collector

	mu      sync.Mutex
	session *session // nil between two sessions
	stop    context.CancelFunc
	running sync.WaitGroup
}

// Open joins the scorer's group and starts to score.
func Open(ctx context.Context, o Options) (*Scorer, error) {
	s := &Scorer{o: o, conf: o.Config, source: o.Names.Source("scorer/" + o.Config.Name), most: o.Config.MaxBatch, log: o.Logger}
	s.counts.latency, s.counts.sizes = &latencies{}, &latencies{}
	if s.most <= 0 {
		s.most = mostEvents
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if err := s.register(); err != nil {
		return nil, fmt.Errorf("open scorer %s: %w", s.conf.Name, err)
	}
	first, err := s.open(ctx)
	if err != nil {
		s.unregister()
		return nil, fmt.Errorf("open scorer %s: %w", s.conf.Name, err)
	}
	s.session = first
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.running.Go(func() { s.keepRunning(life) })
	s.running.Go(func() { s.updateLag(life) })
	return s, nil
}

// keepRunning joins the group again when a session has failed, until the scorer is closed.
func (s *Scorer) keepRunning(life context.Context) {
	for {
		s.mu.Lock()
		one := s.session
		s.mu.Unlock()
		select {
		case <-one.life.Done():
		case <-life.Done():
			return
		}
		s.failing(context.Cause(one.life))
		s.log.Error("scorer: stopped; starting again", "scorer", s.conf.Name, "after", restartDelay.String(), "reason", context.Cause(one.life))
		s.reopen(life, one)
		if life.Err() != nil {
			return
		}
	}
}

// restartDelay is how long a scorer waits before it starts again.
const restartDelay = time.Second

// reopen ends a session that has failed and opens the next.
func (s *Scorer) reopen(life context.Context, old *session) {
	s.mu.Lock()
	s.session = nil
	s.mu.Unlock()
	soon, cancel := context.WithTimeout(life, restartDelay)
	if err := old.leave(soon); err != nil {
		s.log.Warn("scorer: leaving the group failed; its partitions are reassigned later", "scorer", s.conf.Name, "reason", err)
	}
	cancel()
	for life.Err() == nil {
		_ = retry.Sleep(life, restartDelay)
		next, err := s.open(life)
		if err == nil {
			s.mu.Lock()
			s.session = next
			s.mu.Unlock()
			return
		}
		s.failing(err)
		s.log.Error("scorer: starting failed; retrying", "scorer", s.conf.Name, "after", restartDelay.String(), "reason", err)
	}
}

// Close ends the batches under way, commits, and leaves the group. Other scorers handle
// the events of batches that do not end in time.
func (s *Scorer) Close(ctx context.Context) error {
	s.stop()
	s.running.Wait()
	s.unregister()
	s.mu.Lock()
	one := s.session
	s.mu.Unlock()
	if one == nil {
		return nil
	}
	return one.close(ctx)
}

// heldUp is how long a failed load counts. The next try comes sooner.
const heldUp = time.Minute

// Check returns the readiness. A scorer is ready but degraded while events wait because
// models cannot be loaded. The models are listed in its status only: their names
// contain keys, and many can read the readiness.
func (s *Scorer) Check() api.Check {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := api.Check{Name: "scorer " + s.conf.Name, Status: api.OK}
	if s.session == nil || s.session.life.Err() != nil {
		s.counts.mu.Lock()
		c.Status, c.Detail = api.Failed, s.counts.fault
		s.counts.mu.Unlock()
		return c
	}
	if at, err := s.o.Models.Failure(); err != nil && !errors.Is(err, infer.ErrUnfit) && s.counts.held.Load() > 0 && time.Since(at) < heldUp {
		c.Status, c.Detail = api.Degraded, fmt.Sprintf("%d events wait, because models cannot be loaded now; tidemill scorers %s shows why", s.counts.held.Load(), s.conf.Name)
	}
	return c
}

// leave gives up the batches under way.
func (s *session) leave(ctx context.Context) error {
	if s.end != nil {
		s.end(broker.ErrClosed)
	}
	return errors.Join(s.shut(ctx))
}

// close stops the consumer, commits the batches under way, and leaves the group.
func (s *session) close(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { s.end(context.Cause(ctx)) })
	defer stop()
	return s.shut(ctx)
}

func (s *session) shut(ctx context.Context) error {
	var err error
	if s.c != nil {
		err = s.c.Close(ctx)
	}
	s.running.Wait()
	if s.end != nil {
		s.end(broker.ErrClosed)
	}
	if s.t != nil {
		err = errors.Join(err, s.t.Close(ctx))
	}
	if s.p != nil {
		err = errors.Join(err, s.p.Close(ctx))
	}
	return err
}

// lookEvery is how often the end of the stream is read.
const lookEvery = 2 * time.Second

// updateLag keeps the lag up to date.
func (s *Scorer) updateLag(life context.Context) {
	for life.Err() == nil {
		_ = retry.Sleep(life, lookEvery)
		s.mu.Lock()
		one := s.session
		s.mu.Unlock()
		if one == nil {
			continue
		}
		if lag, err := one.lag(life); err == nil { // otherwise the next look tries again
			s.counts.lag.Store(lag)
		}
	}
}

func (s *session) lag(ctx context.Context) (int64, error) {
	ends, err := s.o.Broker.Ends(ctx, s.conf.From)
	if err != nil {
		return 0, err
	}
	behind := int64(0)
	for _, p := range s.c.Positions() {
		for _, end := range ends {
			if end.Partition == p.Partition {
				behind += max(0, end.Offset-p.Offset)
			}
		}
	}
	return behind, nil
}

// session is a scorer's membership in its group, until it leaves or fails. Two goroutines pass
// batches to each other: the pipeline gathers and computes, the committer sends and commits. The
// number of batches is fixed, so that neither runs ahead.
type session struct {
	taken []int32 // items of a canary, while a group is split
	*Scorer
	c *broker.Consumer
	t *broker.Transactor
	p *broker.Producer // producer; set without transactions

	already     context.Context // ended context, for polls that must not wait
	life        context.Context
	end         context.CancelCauseFunc
	running     sync.WaitGroup // these two goroutines and those that wait for models
	assignments *assignments
	wake        wakeup
	free        chan *batch
	computed    chan *batch
	committed   atomic.Uint64             // number of the last committed batch
	assignedAt  atomic.Pointer[time.Time] // time of the last assignment

	// Used by the pipeline only.
	place   keyPlace
	cache   *cache
	plans   plans
	workers []*worker
	active  []*assignment
	queues  []*target     // models that events wait for
	keeps   []*target     // models that are kept for the batch
	asking  []*target     // models that are being loaded for parked events
	room    int           // number of further models that may be loaded for them, or unknownRoom
	crowded bool          // whether there was no room for a model
	over    chan struct{} // closed when the pipeline has ended
	seen    uint64        // number of changes of the assignments at the last look
	places  []int64       // places among the facts, as facts encodes them
	facts   sharedFacts
	last    uint64 // number of the last batch
	unread  bool   // whether parked events cannot be read yet
	closing bool

	// Used by the committer only.
	out    *outputs
	aborts int // number of aborts in a row
	noting sync.Mutex
}

// batchCount is the number of batches: one is gathered and computed, one is committed, and
// one is between them.
const batchCount = 3

// open joins the group.
func (s *Scorer) open(ctx context.Context) (*session, error) {
	one := s.newSession()
	if err := one.join(ctx); err != nil {
		return nil, errors.Join(err, one.leave(ctx))
	}
	one.life, one.end = context.WithCancelCause(context.WithoutCancel(ctx))
	one.running.Go(one.pipeline)
	one.running.Go(one.committer)
	return one, nil
}

func (s *Scorer) newSession() *session {
	one := &session{Scorer: s, assignments: newAssignments(), free: make(chan *batch, batchCount), computed: make(chan *batch), over: make(chan struct{}),
		place: newKeyPlace(s.conf.Key, s.conf.Model), cache: newCache(s.conf.Model, mostKeys), plans: plans{fields: fieldsOf(&s.conf)},
		workers: newWorkers(s.conf.Top), out: newOutputs(s.source, s.conf.Labels), facts: factsText(nil)}
	already, over := context.WithCancel(context.Background())
	over()
	one.already = already
	for range batchCount {
		one.free <- one.newBatch()
	}
	return one
}

func (s *session) join(ctx context.Context) (err error) {
	start := broker.Earliest()
	if s.conf.Latest {
		start = broker.Latest()
	}
	s.c, err = s.o.Broker.Consumer(ctx, broker.ConsumerOptions{Group: Group(s.conf.Name), Streams: []string{s.conf.From}, Start: start, SessionTimeout: s.o.SessionTimeout,
		Companions: []string{tidemill.ScorerParked(s.conf.Name)}, Assigned: s.assigned, Gone: s.givenUp})
	if err != nil {
		return fmt.Errorf("read stream %s: %w", s.conf.From, err)
	}
	// An output carries attributes of its input, and inputs may have attributes that a
	// publisher may not write.
	o := broker.ProducerOptions{AsRead: true, MaxEvent: deadletters.MaxBytes}
	if s.t, err = s.c.Transactor(o); err != nil || !s.conf.AtLeastOnce {
		return err
	}
	s.p, err = s.o.Broker.Producer(o)
	return err
}

// Group is the consumer group of a scorer.
func Group(scorer string) string { return "scorer." + scorer }

// pipeline gathers and computes until the session ends.
func (s *session) pipeline() {
	defer close(s.over)
	defer close(s.computed)
	for {
		select {
		case b := <-s.free:
			done, err := s.batch(b)
			if err != nil {
				s.end(err)
			}
			if done || err != nil {
				return
			}
		case <-s.life.Done():
			return
		}
	}
}

// batch makes one batch and reports whether it was the last.
func (s *session) batch(b *batch) (done bool, err error) {
	b.reset(s.last + 1)
	for b.isEmpty() {
		if err := s.gather(s.life, b); err != nil {
			return false, err
		}
		if b.isEmpty() && s.closing && len(s.queues) == 0 {
			return true, nil
		}
	}
	s.last++
	b.sort()
	s.resolve(b)
	s.compute(b)
	s.finish(b)
	s.reportHeld()
	s.wake.commits(1)
	select {
	case s.computed <- b:
		return false, nil
	case <-s.life.Done():
		return true, nil
	}
}

// reportHeld updates the counts of models and parked events.
func (s *session) reportHeld() {
	held := 0
	for _, t := range s.active {
		held += t.held.count()
	}
	s.counts.held.Store(int64(held))
	s.counts.models.Store(int64(s.cache.slots))
}

// finish finds the deliveries that end with the batch: those of each assignment before
// the first that still waits.
func (s *session) finish(b *batch) {
	for i := range b.parts {
		p := &b.parts[i]
		t := p.of
		n := 0
		for ; n < len(t.deliveries) && t.deliveries[n].waiting == 0; n++ {
			p.next = t.deliveries[n].d.Next()
			b.ends = append(b.ends, t.deliveries[n])
		}
		t.deliveries = slices.Delete(t.deliveries, 0, n)
		p.whole = len(t.deliveries) == 0 && t.found == nil
	}
}
