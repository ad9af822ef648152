package broker

import (
	"context"
	"errors"
	"fmt"
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

// verdict is the meaning of an answer for its batch.
type verdict int8

const (
	stored      verdict = iota
	tryAgain            // send the unchanged batch again under the same sequence number
	maybeStored         // send the unchanged batch again; it may be on the log already
	relabel             // the batch is not on the log, and its sequence number cannot be used
	takeApart           // one event of the batch is the cause and must be found
	refused             // another try would have the same result
)

// codeVerdict maps Kafka's error codes to verdicts. No other function knows what an error code
// means for a batch.
func codeVerdict(code kafka.Error, events int) verdict {
	switch code {
	case 0, kafka.DuplicateSequenceNumber:
		return stored
	case kafka.OutOfOrderSequenceNumber, kafka.UnknownProducerId,
		kafka.InvalidProducerEpoch, kafka.InvalidProducerIDMapping:
		// The broker has forgotten the producer or had to drop records. The broker has not stored
		// this batch: only one batch of a partition is in flight at a time, so the broker would
		// have reported a stored one.
		return relabel
	case kafka.MessageSizeTooLarge, kafka.InvalidTimestamp, kafka.InvalidRecord, kafka.RecordListTooLarge:
		if events > 1 {
			return takeApart
		}
	}
	switch {
	case !passingCode(code):
		return refused
	case provesAbsence(code):
		return tryAgain
	}
	// A leader may append the batch and then lose its leadership, its disk or the topic while the
	// replicas catch up. Then the leader answers with the same codes as a leader that never had the
	// batch.
	return maybeStored
}

// provesAbsence reports whether a refusal means that the batch is not on the log. After any other
// refusal, above all UNKNOWN_SERVER_ERROR and NOT_LEADER_OR_FOLLOWER, the batch may be on the log.
// Then Kafka would drop the next batch under the same sequence number as a repetition.
func provesAbsence(code kafka.Error) bool {
	switch code {
	case kafka.MessageSizeTooLarge, kafka.RecordListTooLarge, kafka.InvalidRecord, kafka.InvalidTimestamp,
		kafka.TopicAuthorizationFailed, kafka.ClusterAuthorizationFailed, kafka.TransactionalIDAuthorizationFailed,
		kafka.InvalidTopic, kafka.InvalidRequiredAcks, kafka.UnsupportedVersion, kafka.UnsupportedForMessageFormat,
		kafka.PolicyViolation, kafka.UnsupportedCompressionType, kafka.InvalidTransactionState, kafka.ProducerFenced,
		kafka.NotEnoughReplicas, kafka.InvalidMessage, kafka.ConcurrentTransactions:
		return true
	}
	return false
}

// handleAnswer handles the answer to a partition's head.
func (p *Producer) handleAnswer(o *outPartition, a wire.Produced) {
	code := kafka.Error(a.Error)
	var head *batch
	o.withHead(func(b *batch) { head = b })
	v := codeVerdict(code, head.Len())
	if p.tx != nil && (v == relabel || code == kafka.ProducerFenced) {
		// A transaction cannot continue under a new producer id, so the transaction aborts.
		p.tx.poison(code)
		v = refused
	}
	switch v {
	case stored:
		p.stored(o, head, a)
	case maybeStored:
		head.doubt = true
		p.retryLater(o, code)
	case tryAgain:
		p.retryLater(o, code)
	case relabel:
		p.relabel(o, head, code)
	case takeApart:
		p.takeApart(o, head, code)
	case refused:
		head.doubt = head.doubt || !provesAbsence(code)
		o.failHead(p, refusalError(code, a.Message))
		p.requeue(o)
	}
}

func (p *Producer) stored(o *outPartition, head *batch, a wire.Produced) {
	offset := a.BaseOffset
	if a.Error != 0 {
		offset = -1
	}
	n := int32(head.Len())
	p.counts.stored(int(n), head.bytes)
	head.callCallbacks(o.receipt(offset), nil)
	o.mu.Lock()
	o.sequence = (o.sequence + n) & 0x7fffffff
	o.mu.Unlock()
	o.pop(p)
	p.requeue(o)
}

func (p *Producer) relabel(o *outPartition, head *batch, code kafka.Error) {
	o.mu.Lock()
	p.b.log.Warn("producer: a partition gets a new producer id", "stream", o.topic.stream, "partition", o.index,
		"producer", o.id.producer, "sequence", o.sequence, "reason", code.Title())
	p.ident.invalidate(o.id)
	o.id = noIdentity
	head.doubt = false
	o.mu.Unlock()
	p.retryLater(o, code)
}

// retryLater gives a partition to the resolver, which sends the batch again when the leader is
// known and the backoff is over.
func (p *Producer) retryLater(o *outPartition, err error) {
	if p.ctx.Err() != nil {
		return // Close calls the callbacks
	}
	if p.tx != nil && p.tx.faulty() != nil || !isTransient(err) && !relabelled(err) {
		o.failHead(p, err)
		p.requeue(o)
		return
	}
	p.counts.retries.Add(1)
	p.resolve.add(o, err)
}

func relabelled(err error) bool {
	var code kafka.Error
	return errors.As(err, &code) && codeVerdict(code, 1) == relabel
}

// requeue moves a partition to its sender after its head was removed, or to idle if no batch is
// left.
func (p *Producer) requeue(o *outPartition) {
	o.mu.Lock()
	more, leader := len(o.queue) > 0, o.leader
	o.place = idle
	if more {
		o.place = listed
	}
	o.mu.Unlock()
	if more {
		p.sender(leader).enqueue(o)
	}
}

// takeApart replaces a refused batch by one batch for each of its events, so that only the event
// that causes the refusal fails.
func (p *Producer) takeApart(o *outPartition, head *batch, code kafka.Error) {
	parts, err := p.split(head)
	if err != nil {
		o.failHead(p, errors.Join(refusalError(code, ""), err))
		p.requeue(o)
		return
	}
	o.mu.Lock()
	parts[len(parts)-1].gone = head.gone // the last batch whose callbacks are called
	o.queue = append(parts, o.queue[1:]...)
	o.mu.Unlock()
	p.batches.Put(head)
	p.requeue(o)
}

func (p *Producer) split(head *batch) ([]*batch, error) {
	encoded, _, ok, err := wire.NextBatch(head.Bytes())
	if err != nil || !ok {
		return nil, fmt.Errorf("read back a batch of %d events: %w", head.Len(), err)
	}
	var records wire.Records
	if _, err := records.Open(encoded, nil); err != nil {
		return nil, err
	}
	var parts []*batch
	var r wire.Record
	left := head.bytes
	for i := 0; records.Next(&r); i++ {
		b := p.newBatch()
		b.born, b.sealed = head.born, true
		b.Append(&r)
		b.done = append(b.done, head.done[i])
		b.bytes = min(left, int64(wire.RecordSize(&r)))
		left -= b.bytes
		parts = append(parts, b)
	}
	if len(parts) > 0 {
		parts[0].bytes += left
	}
	return parts, records.Err()
}

// refusalError turns a code into an error that names the next step.
func refusalError(code kafka.Error, message string) error {
	if message != "" {
		message = " (" + message + ")"
	}
	switch code {
	case kafka.MessageSizeTooLarge, kafka.RecordListTooLarge:
		return fmt.Errorf("%w for the stream%s; make it smaller or raise the topic's max.message.bytes", ErrTooLarge, message)
	case kafka.TopicAuthorizationFailed, kafka.ClusterAuthorizationFailed, kafka.TransactionalIDAuthorizationFailed:
		return fmt.Errorf("this user may not write to the topic%s; grant it write: %w", message, code)
	case kafka.Unknown: // UNKNOWN_SERVER_ERROR, which carries no reason
		return fmt.Errorf("the write failed in Kafka%s, whose log has the reason (a full disk?): %w", message, code)
	}
	return fmt.Errorf("refused by Kafka%s: %w", message, code)
}
