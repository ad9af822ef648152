package broker

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

// sender sends batches to one server, one request at a time: a partition's
// batches then arrive in order, and what gathers while a request is on its way
// becomes the next one, so batches grow with the load and not with a timer.
type sender struct {
	p    *Producer
	node int32
	wake chan struct{}

	mu    sync.Mutex
	ready []*outPartition

	taken []*outPartition // of the request in flight; nil where answered
	next  int             // in taken, where the answer's next partition should be
	spare []*outPartition
	frame wire.Frame
	buf   []byte
}

// sender returns the sender to a server, started on first use. An event that
// passed the closed door may still come to one that does not run: Close tells
// what it was given, and nobody else touches that any more.
func (p *Producer) sender(node int32) *sender {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.senders[node]
	if s == nil {
		s = &sender{p: p, node: node, wake: make(chan struct{}, 1)}
		p.senders[node] = s
		if p.ctx.Err() == nil {
			p.running.Go(s.run)
		}
	}
	return s
}

// list takes over a partition that has something to send.
func (s *sender) list(o *outPartition) {
	s.mu.Lock()
	s.ready = append(s.ready, o)
	s.mu.Unlock()
	s.nudge()
}

func (s *sender) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *sender) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := s.gather()
		if len(s.taken) > 0 {
			s.send()
			continue
		}
		if wait > 0 {
			timer.Reset(wait)
		}
		select {
		case <-s.wake:
		case <-timer.C:
		case <-s.p.ctx.Done():
			return
		}
	}
}

// gather moves what is due from ready to taken, up to a request's size, and
// returns how long until more is due.
func (s *sender) gather() time.Duration {
	s.mu.Lock()
	s.ready, s.spare = s.spare[:0], s.ready
	s.mu.Unlock()
	linger := s.p.opt.Linger
	if s.p.flushing.Load() > 0 {
		linger = 0
	}
	now, size, wait := time.Now(), 0, time.Duration(0)
	s.taken = s.taken[:0]
	keep := s.spare[:0]
	for _, o := range s.spare {
		o.mu.Lock()
		left := o.due(linger, now)
		if left <= 0 && size < targetRequest {
			size += s.take(o)
		} else {
			keep = append(keep, o)
			if left > 0 && (wait == 0 || left < wait) {
				wait = left
			}
		}
		o.mu.Unlock()
	}
	if len(keep) > 0 {
		s.mu.Lock()
		s.ready = append(s.ready, keep...)
		s.mu.Unlock()
	}
	clear(s.spare)
	s.spare = s.spare[:0]
	byTopic(s.taken)
	return wait
}

// byTopic puts partitions of one topic together: a request names a topic once.
func byTopic(parts []*outPartition) {
	cmp := func(a, b *outPartition) int { return strings.Compare(a.topic.name, b.topic.name) }
	if !slices.IsSortedFunc(parts, cmp) {
		slices.SortStableFunc(parts, cmp)
	}
}

// take makes a partition part of the next request. Called with its lock held.
func (s *sender) take(o *outPartition) int {
	o.place = inFlight
	s.taken = append(s.taken, o)
	head := o.queue[0]
	head.sealed = true
	return head.Size()
}

// send sends the heads of the taken partitions and deals with the answers. It
// owns the partitions meanwhile; others only append behind the heads.
func (s *sender) send() {
	ctx, cancel := s.p.b.within(s.p.ctx)
	defer cancel()
	if err := s.stamp(ctx); err != nil {
		s.failed(err, false)
		return
	}
	s.encode()
	began := time.Now()
	answer, err := s.p.b.call(ctx, s.node, &s.frame, s.buf)
	s.p.counts.asked(began)
	if err == nil {
		s.buf, s.next = answer, 0
		err = wire.ReadProduced(answer, s.answered)
	}
	if err == nil {
		// A partition that the answer does not name has no answer.
		err = kafka.NetworkException
	}
	s.failed(err, !errors.Is(err, errUnsent))
}

// failed deals with the taken partitions that got no answer. In doubt are
// those whose batch may have arrived.
func (s *sender) failed(err error, doubt bool) {
	for _, o := range s.taken {
		if o != nil {
			o.queue0(func(b *batch) { b.doubt = b.doubt || doubt })
			s.p.again(o, err)
		}
	}
	clear(s.taken)
	s.taken = s.taken[:0]
}

// stamp seals the heads and gives them their place in the sequence. A head
// that was sent before is stamped as it was, which is what makes sending it
// again safe.
func (s *sender) stamp(ctx context.Context) error {
	for _, o := range s.taken {
		o.mu.Lock()
		id, head := o.id, o.queue[0]
		o.mu.Unlock()
		if id == noIdentity {
			fresh, err := s.p.identity(ctx)
			if err != nil {
				return err
			}
			o.mu.Lock()
			o.id, o.sequence, id = fresh, 0, fresh
			o.mu.Unlock()
		}
		if !head.packed {
			if err := head.Seal(s.p.codec); err != nil {
				return err
			}
			head.packed = true
		}
		head.Stamp(wire.Identity{Producer: id.producer, Epoch: id.epoch, Sequence: o.sequence, Transactional: s.p.tx != nil})
	}
	if s.p.tx != nil {
		return s.p.tx.include(ctx, s.taken)
	}
	return nil
}

func (s *sender) encode() {
	topics := 0
	for i, o := range s.taken {
		if i == 0 || s.taken[i-1].topic != o.topic {
			topics++
		}
	}
	h := wire.ProduceHead{Client: s.p.b.names.Install(), Topics: topics, TimeoutMillis: int32(s.p.b.requestTimeout.Milliseconds())}
	if s.p.tx != nil {
		h.Transactional = s.p.tx.id
	}
	s.frame.BeginProduce(h)
	for i, o := range s.taken {
		if i == 0 || s.taken[i-1].topic != o.topic {
			s.frame.Topic(o.topic.name, s.sameTopic(i))
		}
		o.queue0(func(b *batch) { s.frame.Batch(o.index, b.Bytes()) })
	}
	s.frame.End()
}

// sameTopic counts how many partitions from i on are of one topic.
func (s *sender) sameTopic(i int) int {
	n := 1
	for i+n < len(s.taken) && s.taken[i+n].topic == s.taken[i].topic {
		n++
	}
	return n
}

func (s *sender) answered(a wire.Produced) {
	for range s.taken {
		i := s.next
		s.next = (s.next + 1) % len(s.taken)
		if o := s.taken[i]; o != nil && o.index == a.Partition && o.topic.name == a.Topic {
			s.taken[i] = nil
			s.p.settle(o, a)
			return
		}
	}
}

// resolver holds partitions that could not be sent to where they were thought
// to live, waits their backoff, finds their leader and lists them again.
type resolver struct {
	mu   sync.Mutex
	list []lost
	wake chan struct{}
}

type lost struct {
	o    *outPartition
	at   time.Time // when to try again
	last error
}

// add takes over a partition.
func (r *resolver) add(o *outPartition, err error) {
	o.mu.Lock()
	o.place = homeless
	wait := o.queue[0].retries.next()
	o.mu.Unlock()
	r.mu.Lock()
	r.list = append(r.list, lost{o, time.Now().Add(wait), err})
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *resolver) run(p *Producer) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		due, wait := r.due(time.Now())
		r.resolveAll(p, due)
		if len(due) > 0 {
			continue
		}
		timer.Reset(wait)
		select {
		case <-r.wake:
		case <-timer.C:
		case <-p.ctx.Done():
			return
		}
	}
}

func (r *resolver) due(now time.Time) (due []lost, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wait = time.Hour
	keep := r.list[:0]
	for _, l := range r.list {
		if left := l.at.Sub(now); left > 0 {
			keep = append(keep, l)
			wait = min(wait, left)
		} else {
			due = append(due, l)
		}
	}
	r.list = keep
	return due, wait
}

// fresh is how old a leader may be that is asked for after a failure. The
// backoff is longer on average, so what is served was asked after it.
const fresh = 10 * time.Millisecond

// resolveAll asks once for each topic. A cluster that does not even refuse
// costs the whole wait each time, and a topic may have a thousand partitions
// whose events are to be given up in time.
func (r *resolver) resolveAll(p *Producer, due []lost) {
	failed := map[*outTopic]error{}
	for _, l := range due {
		r.resolve(p, l, failed)
	}
}

func (r *resolver) resolve(p *Producer, l lost, failed map[*outTopic]error) {
	if p.tx != nil && p.tx.faulty() != nil { // it aborts: nothing of it is sent any more
		l.o.fail(p, p.tx.faulty())
		p.relist(l.o)
		return
	}
	if !l.o.expire(p, l.last) {
		return
	}
	if p.tx != nil && p.tx.faulty() != nil {
		p.again(l.o, l.last)
		return
	}
	var leaders []int32
	err := failed[l.o.topic]
	if err == nil {
		ctx, cancel := context.WithTimeout(p.ctx, 2*time.Second)
		leaders, err = p.b.leaders(ctx, l.o.topic.name, fresh)
		cancel()
		failed[l.o.topic] = err
	}
	if p.ctx.Err() != nil {
		return // closing: Close tells the events
	}
	if err != nil || int(l.o.index) >= len(leaders) || leaders[l.o.index] < 0 {
		if err == nil {
			err = l.last
		}
		r.add(l.o, err)
		return
	}
	l.o.mu.Lock()
	l.o.place, l.o.leader = listed, leaders[l.o.index]
	l.o.mu.Unlock()
	p.sender(leaders[l.o.index]).list(l.o)
}
