package score

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/triggers/deadletters"
)

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
	asking  int           // number of models that are being loaded for parked events
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
	s.counts.models.Store(int64(len(s.cache.targets)))
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
