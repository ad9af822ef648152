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

// sender sends batches to one server, one request at a time. So the batches of a partition arrive
// in order. Events that arrive during a request are sent with the next request, so batches grow
// with the load and not with a timer.
type sender struct {
	p    *Producer
	node int32
	wake chan struct{}

	mu    sync.Mutex
	ready []*outPartition

	taken []*outPartition // partitions of the request in flight; each becomes nil after its answer
	next  int             // index in taken of the next partition in the answer
	spare []*outPartition
	frame wire.Frame
	buf   []byte

	requests requestContext
}

// sender returns the sender to a server and starts it on first use. After Close has begun, an event
// may still reach a sender that does not run. Close calls the callbacks of such events, and no
// other goroutine touches them.
func (p *Producer) sender(node int32) *sender {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.senders[node]
	if s == nil {
		s = &sender{p: p, node: node, wake: make(chan struct{}, 1), requests: requestContext{parent: p.ctx}}
		p.senders[node] = s
		if p.ctx.Err() == nil {
			p.running.Go(s.run)
		}
	}
	return s
}

// enqueue adds a partition that has events to send.
func (s *sender) enqueue(o *outPartition) {
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

// gather moves due partitions from ready to taken, up to the size of a request. It returns the time
// until more partitions are due.
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
		left := o.remainingLinger(linger, now)
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

// byTopic sorts partitions of one topic together, because a request names each topic once.
func byTopic(parts []*outPartition) {
	cmp := func(a, b *outPartition) int { return strings.Compare(a.topic.name, b.topic.name) }
	if !slices.IsSortedFunc(parts, cmp) {
		slices.SortStableFunc(parts, cmp)
	}
}

// take adds a partition to the next request. The caller holds its lock.
func (s *sender) take(o *outPartition) int {
	o.place = inFlight
	s.taken = append(s.taken, o)
	head := o.queue[0]
	head.sealed = true
	return head.Size()
}

// send sends the heads of the taken partitions and handles the answers. Meanwhile send owns the
// partitions, and other goroutines only append after the heads.
func (s *sender) send() {
	ctx := s.requests.atLeast(s.p.b.requestTimeout)
	if err := s.sealHeads(ctx); err != nil {
		s.handleFailure(err, false)
		return
	}
	s.encode()
	began := time.Now()
	answer, err := s.p.b.call(ctx, s.node, &s.frame, s.buf)
	s.p.counts.countRequest(began)
	if err == nil {
		s.buf, s.next = answer, 0
		err = wire.ReadProduced(answer, s.answered)
	}
	if err == nil {
		// A partition that is missing from the response has no answer.
		err = kafka.NetworkException
	}
	s.handleFailure(err, !errors.Is(err, errUnsent))
}

// handleFailure handles the taken partitions without an answer. doubt means that their batches may
// have arrived.
func (s *sender) handleFailure(err error, doubt bool) {
	for _, o := range s.taken {
		if o != nil {
			o.withHead(func(b *batch) { b.doubt = b.doubt || doubt })
			s.p.retryLater(o, err)
		}
	}
	clear(s.taken)
	s.taken = s.taken[:0]
}

// sealHeads seals the heads and gives them their sequence numbers. A head that was sent before
// keeps its number, so it is safe to send it again.
func (s *sender) sealHeads(ctx context.Context) error {
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
		return s.p.tx.addPartitions(ctx, s.taken)
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
		o.withHead(func(b *batch) { s.frame.Batch(o.index, b.Bytes()) })
	}
	s.frame.End()
}

// sameTopic returns the number of consecutive partitions of one topic, from index i on.
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
			s.p.handleAnswer(o, a)
			return
		}
	}
}
