package broker

import (
	"errors"
	"fmt"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

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
