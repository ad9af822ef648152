package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

// verdict is the meaning of an answer for its batch.
type verdict int8

const (
	stored      verdict = iota
	tryAgain            // unchanged, under the same sequence number
	maybeStored         // unchanged; the batch may be on the log already
	relabel             // the batch is not on the log, and its sequence number cannot be used
	takeApart           // one of its events is the cause and must be found
	refused             // another try would not help
)

// judge maps Kafka's codes to verdicts. No other code knows what they mean for a batch.
func judge(code kafka.Error, events int) verdict {
	switch code {
	case 0, kafka.DuplicateSequenceNumber:
		return stored
	case kafka.OutOfOrderSequenceNumber, kafka.UnknownProducerId,
		kafka.InvalidProducerEpoch, kafka.InvalidProducerIDMapping:
		// The broker has forgotten the producer or had to drop records. If it had stored this
		// batch, it would have answered so, because only one batch of a partition is ever in
		// flight.
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
	// replicas catch up. It then answers with the same codes as a leader that never had the batch.
	return maybeStored
}

// provesAbsence reports whether a refusal means that the batch is not on the log. After any other
// refusal, above all UNKNOWN_SERVER_ERROR and NOT_LEADER_OR_FOLLOWER, it may be. Then Kafka would
// take the next batch under its sequence number for a repetition and drop it.
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

// settle handles the answer to a partition's head.
func (p *Producer) settle(o *outPartition, a wire.Produced) {
	code := kafka.Error(a.Error)
	var head *batch
	o.queue0(func(b *batch) { head = b })
	v := judge(code, head.Len())
	if p.tx != nil && (v == relabel || code == kafka.ProducerFenced) {
		// A new producer id would tear the transaction apart, so it aborts.
		p.tx.poison(code)
		v = refused
	}
	switch v {
	case stored:
		p.stored(o, head, a)
	case maybeStored:
		head.doubt = true
		p.again(o, code)
	case tryAgain:
		p.again(o, code)
	case relabel:
		p.relabel(o, head, code)
	case takeApart:
		p.takeApart(o, head, code)
	case refused:
		head.doubt = head.doubt || !provesAbsence(code)
		o.fail(p, refusal(code, a.Message))
		p.relist(o)
	}
}

func (p *Producer) stored(o *outPartition, head *batch, a wire.Produced) {
	offset := a.BaseOffset
	if a.Error != 0 {
		offset = -1
	}
	n := int32(head.Len())
	p.counts.stored(int(n), head.bytes)
	head.report(o.receipt(offset), nil)
	o.mu.Lock()
	o.sequence = (o.sequence + n) & 0x7fffffff
	o.mu.Unlock()
	o.pop(p)
	p.relist(o)
}

func (p *Producer) relabel(o *outPartition, head *batch, code kafka.Error) {
	o.mu.Lock()
	p.b.log.Warn("a partition takes a new producer id", "stream", o.topic.stream, "partition", o.index,
		"producer", o.id.producer, "sequence", o.sequence, "reason", code.Title())
	p.ident.burn(o.id)
	o.id = noIdentity
	head.doubt = false
	o.mu.Unlock()
	p.again(o, code)
}

// again gives a partition to the resolver, which tries again when the leader is known and the
// backoff is over.
func (p *Producer) again(o *outPartition, err error) {
	if p.ctx.Err() != nil {
		return // Close calls the callbacks
	}
	if p.tx != nil && p.tx.faulty() != nil || !passing(err) && !relabelled(err) {
		o.fail(p, err)
		p.relist(o)
		return
	}
	p.counts.retries.Add(1)
	p.resolve.add(o, err)
}

func relabelled(err error) bool {
	var code kafka.Error
	return errors.As(err, &code) && judge(code, 1) == relabel
}

// relist moves a partition to its sender, or to idle, after its head was removed.
func (p *Producer) relist(o *outPartition) {
	o.mu.Lock()
	more, leader := len(o.queue) > 0, o.leader
	o.place = idle
	if more {
		o.place = listed
	}
	o.mu.Unlock()
	if more {
		p.sender(leader).list(o)
	}
}

// takeApart replaces a refused batch by one batch for each of its events, so that only the event
// that causes the refusal fails.
func (p *Producer) takeApart(o *outPartition, head *batch, code kafka.Error) {
	parts, err := p.split(head)
	if err != nil {
		o.fail(p, errors.Join(refusal(code, ""), err))
		p.relist(o)
		return
	}
	o.mu.Lock()
	parts[len(parts)-1].gone = head.gone // the last batch whose callbacks are called
	o.queue = append(parts, o.queue[1:]...)
	o.mu.Unlock()
	p.batches.Put(head)
	p.relist(o)
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

// refusal turns a code into an error that names the next step.
func refusal(code kafka.Error, message string) error {
	if message != "" {
		message = " (" + message + ")"
	}
	switch code {
	case kafka.MessageSizeTooLarge, kafka.RecordListTooLarge:
		return fmt.Errorf("%w for the stream%s; make it smaller or raise the topic's max.message.bytes", ErrTooLarge, message)
	case kafka.TopicAuthorizationFailed, kafka.ClusterAuthorizationFailed, kafka.TransactionalIDAuthorizationFailed:
		return fmt.Errorf("this user may not write to the topic%s; grant it write: %w", message, code)
	case kafka.Unknown: // UNKNOWN_SERVER_ERROR, which carries no reason
		return fmt.Errorf("the write failed in Kafka%s, whose log says why (a full disk?): %w", message, code)
	}
	return fmt.Errorf("refused by Kafka%s: %w", message, code)
}

// budget limits the bytes of events without an answer, and counts these events. Both are under one
// lock, because every event takes and gives both. While the budget is spent, senders wait until
// acknowledgements return some of it: that is the back-pressure. Close waits until no event is
// counted.
type budget struct {
	mu      sync.Mutex
	left    int64
	events  int
	closed  bool
	waiting []waiter
	idle    chan struct{} // closed when events becomes zero; nil if Close does not wait
}

type waiter struct {
	n     int64
	ready chan struct{}
}

// take takes n bytes for one event. An event larger than the whole budget passes as soon as budget
// is left, so that it is slow and does not wait for ever.
func (b *budget) take(ctx, closed context.Context, n int64) error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return ErrClosed
	}
	if len(b.waiting) == 0 && b.left > 0 {
		b.left -= n
		b.events++
		b.mu.Unlock()
		return nil
	}
	w := waiter{n, make(chan struct{})}
	b.waiting = append(b.waiting, w)
	b.mu.Unlock()

	var err error
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-closed.Done():
		err = context.Cause(closed)
	}
	if !b.forget(w) {
		b.give(n, 1) // it became ready at the same moment
	}
	return err
}

// give returns the bytes of answered events and admits waiting events in order. It counts them
// before it checks for idle, so that Close does not miss them.
func (b *budget) give(n int64, events int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += n
	b.events -= events
	for len(b.waiting) > 0 && b.left > 0 {
		w := b.waiting[0]
		b.waiting = b.waiting[1:]
		b.left -= w.n
		b.events++
		close(w.ready)
	}
	if b.events == 0 && b.idle != nil {
		close(b.idle)
		b.idle = nil
	}
}

func (b *budget) forget(w waiter) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.waiting {
		if b.waiting[i].ready == w.ready {
			b.waiting = append(b.waiting[:i:i], b.waiting[i+1:]...)
			return true
		}
	}
	return false
}

// close refuses new events. Events that wait already are still admitted.
func (b *budget) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
}

// none reports whether every event has its answer.
func (b *budget) none() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.events == 0
}

// wait waits until every event has its answer.
func (b *budget) wait(ctx context.Context) error {
	b.mu.Lock()
	if b.events == 0 {
		b.mu.Unlock()
		return nil
	}
	if b.idle == nil {
		b.idle = make(chan struct{})
	}
	idle := b.idle
	b.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
