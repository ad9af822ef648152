package score

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"tidemill.dev/broker"
	"tidemill.dev/triggers/letters"
)

// session is a scorer's place in its group, from joining until it leaves or
// fails. Two goroutines pass batches on to each other: the pipeline gathers and
// computes, the committer sends and commits. There are a few batches and no
// more, so that neither runs ahead.
type session struct {
	*Scorer
	c *broker.Consumer
	t *broker.Transactor
	p *broker.Producer // without transactions

	already   context.Context // that has ended: for what must not wait
	life      context.Context
	end       context.CancelCauseFunc
	running   sync.WaitGroup // of those two, and of what waits for models
	tenures   *tenures
	bell      bell
	free      chan *batch
	computed  chan *batch
	committed atomic.Uint64 // the last batch that has been

	// The pipeline's.
	place   keyPlace
	cache   *cache
	plans   plans
	workers []*worker
	active  []*tenure
	queues  []*target     // that events wait for
	keeps   []*target     // with models that are kept
	asking  int           // keys whose models are being loaded
	over    chan struct{} // closed when it has ended
	seen    uint64        // of the tenures' changes
	places  []int64       // among the facts, that facts says
	facts   string
	last    uint64 // batch
	unread  bool   // something that comes back cannot be read yet
	closing bool

	// The committer's.
	out    *outputs
	aborts int // in a row
	noting sync.Mutex
}

// batches is how many there are: one is gathered and computed while another is
// committed, and one lies between them.
const batches = 3

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
	one := &session{Scorer: s, tenures: newTenures(), free: make(chan *batch, batches), computed: make(chan *batch), over: make(chan struct{}),
		place: newKeyPlace(s.conf.Key, s.conf.Model), cache: newCache(s.conf.Model, mostKeys), plans: plans{fields: fieldsOf(&s.conf)},
		workers: newWorkers(s.conf.Top), out: newOutputs(s.source), facts: factsText(nil)}
	already, over := context.WithCancel(context.Background())
	over()
	one.already = already
	for range batches {
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
		Assigned: s.assigned, Gone: s.givenUp})
	if err != nil {
		return fmt.Errorf("read stream %s: %w", s.conf.From, err)
	}
	// Readers bear with more than publishers may write, and an output carries what
	// its input has.
	o := broker.ProducerOptions{AsRead: true, MaxEvent: letters.MaxBytes}
	if s.t, err = s.c.Transactor(o); err != nil || !s.conf.AtLeastOnce {
		return err
	}
	s.p, err = s.o.Broker.Producer(o)
	return err
}

// Group is the consumer group of a scorer.
func Group(scorer string) string { return "scorer." + scorer }

// pipeline gathers and computes, until nothing comes any more.
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

// batch makes one, and tells whether it was the last.
func (s *session) batch(b *batch) (done bool, err error) {
	b.reset(s.last + 1)
	for b.empty() {
		if err := s.gather(s.life, b); err != nil {
			return false, err
		}
		if b.empty() && s.closing && len(s.queues) == 0 {
			return true, nil
		}
	}
	s.last++
	b.sort()
	s.resolve(b)
	s.compute(b)
	s.finish(b)
	s.told()
	s.bell.commits(1)
	select {
	case s.computed <- b:
		return false, nil
	case <-s.life.Done():
		return true, nil
	}
}

// told counts what is known of models.
func (s *session) told() {
	held := 0
	for _, t := range s.active {
		held += t.held.count()
	}
	s.counts.held.Store(int64(held))
	s.counts.models.Store(int64(len(s.cache.targets)))
}

// finish finds the deliveries that end with the batch: of each tenure those
// before the first that still waits.
func (s *session) finish(b *batch) {
	for i := range b.parts {
		p := &b.parts[i]
		t := p.tenure
		for len(t.turns) > 0 && t.turns[0].waiting == 0 {
			p.next = t.turns[0].d.Next()
			b.ends = append(b.ends, t.turns[0])
			t.turns[0] = nil
			t.turns = t.turns[1:]
		}
		p.whole = len(t.turns) == 0 && t.found == nil
	}
}
