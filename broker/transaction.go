package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/retry"
)

// defaultTransaction is the default of Options.TransactionTimeout.
const defaultTransaction = 10 * time.Second

// transaction is the transactional part of a producer: its id, its identity, and the partitions
// that were added to the open transaction.
type transaction struct {
	b  *Broker
	id string

	mu       sync.Mutex
	ident    identity
	included map[*outPartition]bool
	fault    error
	settled  bool          // whether the open transaction has been ended and a new epoch requested
	first    chan struct{} // closed when the open transaction has a partition; nil if nothing waits for that
}

// open fences the former user of the transactional id and takes an identity.
func (t *transaction) open(ctx context.Context) error {
	var w backoff
	for {
		id, err := t.b.initProducer(ctx, t.id, noIdentity)
		if err == nil {
			t.take(id)
			return nil
		}
		if !passing(err) && !contested(err) {
			return fmt.Errorf("open transactions as %s: %w", t.id, err)
		}
		if wait := w.wait(ctx); wait != nil {
			return fmt.Errorf("open transactions as %s: %w", t.id, errors.Join(err, wait))
		}
	}
}

// take starts again with a new identity.
func (t *transaction) take(id identity) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ident, t.included, t.fault, t.settled = id, map[*outPartition]bool{}, nil, false
}

// contested reports whether another process took the same id at the same moment, as may happen
// while a slot changes hands. The process that asks again comes after it.
func contested(err error) bool {
	return errors.Is(err, kafka.ProducerFenced) || errors.Is(err, kafka.InvalidProducerEpoch) || errors.Is(err, kafka.InvalidProducerIDMapping)
}

// begin starts the next transaction with the same identity.
func (t *transaction) begin() {
	t.mu.Lock()
	clear(t.included)
	t.mu.Unlock()
}

func (t *transaction) identity() (identity, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ident, t.fault
}

// poison makes every later step of the open transaction fail, so that it is aborted. Only the first
// fault is kept, because each event of a batch reports the same one.
func (t *transaction) poison(err error) {
	t.mu.Lock()
	if t.fault == nil {
		t.fault = err
	}
	t.mu.Unlock()
}

func (t *transaction) faulty() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.fault
}

// touched reports whether the open transaction has any partition.
func (t *transaction) touched() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.included) > 0
}

// begun returns a channel that is closed when the coordinator knows a partition of the open
// transaction.
func (t *transaction) begun() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := make(chan struct{})
	t.first = first
	t.tellFirst()
	return first
}

// tellFirst closes the channel of begun if a partition has been added. The caller holds the lock.
func (t *transaction) tellFirst() {
	if t.first != nil && len(t.included) > 0 {
		close(t.first)
		t.first = nil
	}
}

// include adds partitions to the transaction before anything is sent to them. The coordinator could
// not abort records in a partition that it does not know.
func (t *transaction) include(ctx context.Context, parts []*outPartition) error {
	id, err := t.identity()
	if err != nil {
		return err
	}
	topics := map[string][]kafka.AddPartitionToTxn{}
	t.mu.Lock()
	for _, o := range parts {
		if !t.included[o] {
			topics[o.topic.name] = append(topics[o.topic.name], kafka.AddPartitionToTxn{Partition: int(o.index)})
		}
	}
	t.mu.Unlock()
	if len(topics) == 0 {
		return nil
	}
	if err := t.add(ctx, id, topics); err != nil {
		if !passing(err) {
			t.poison(err)
		}
		return fmt.Errorf("add partitions to transaction %s: %w", t.id, err)
	}
	t.mu.Lock()
	for _, o := range parts {
		t.included[o] = true
	}
	t.tellFirst()
	t.mu.Unlock()
	return nil
}

// add waits for the end of the previous transaction, which Kafka may still be writing.
func (t *transaction) add(ctx context.Context, id identity, topics map[string][]kafka.AddPartitionToTxn) error {
	w := retry.Backoff{First: time.Millisecond, Cap: 20 * time.Millisecond}
	for {
		res, err := t.b.client.AddPartitionsToTxn(ctx, &kafka.AddPartitionsToTxnRequest{
			TransactionalID: t.id, ProducerID: int(id.producer), ProducerEpoch: int(id.epoch), Topics: topics})
		if err == nil {
			err = refusedPartitions(res.Topics)
		}
		if !errors.Is(err, kafka.ConcurrentTransactions) {
			return err
		}
		if ended := w.Sleep(ctx); ended != nil {
			return errors.Join(err, ended)
		}
	}
}

// notAttempted is kafka-go's BrokerAuthorizationFailed. It means that the partition was not added
// because another partition of the same request was refused.
const notAttempted kafka.Error = 55

// refusedPartitions returns an error that names the refused partitions, or the error to wait for.
func refusedPartitions(topics map[string][]kafka.AddPartitionToTxnPartition) error {
	var blamed, others error
	for topic, answers := range topics {
		for _, a := range answers {
			switch {
			case errors.Is(a.Error, kafka.ConcurrentTransactions):
				return a.Error
			case errors.Is(a.Error, notAttempted):
				others = errors.New("none of its partitions was added")
			case a.Error != nil:
				blamed = errors.Join(blamed, fmt.Errorf("%s/%d: %w", topic, a.Partition, a.Error))
			}
		}
	}
	if blamed == nil {
		return others
	}
	return blamed
}

// offsets adds offsets to the transaction, one group at a time.
func (t *transaction) offsets(ctx context.Context, groups ...groupCommit) error {
	ctx, cancel := context.WithTimeout(ctx, t.b.transactionTimeout)
	defer cancel()
	for _, g := range groups {
		if err := t.retry(ctx, func(ctx context.Context) error { return t.addOffsets(ctx, g.group) }); err != nil {
			return err
		}
		if err := t.retry(ctx, g.commit); err != nil {
			return err
		}
	}
	return nil
}

// commit commits the transaction.
func (t *transaction) commit(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, t.b.transactionTimeout)
	defer cancel()
	doubt := false
	err := t.retry(ctx, func(ctx context.Context) error {
		err := t.end(ctx, true)
		doubt = doubt || mayHaveEnded(err)
		return err
	})
	if err != nil && doubt {
		err = fmt.Errorf("%w: %w", ErrInDoubt, err)
	}
	return err
}

// groupCommit commits the offsets of one group in a transaction.
type groupCommit struct {
	group  string // name of the group in Kafka
	commit func(context.Context) error
}

// mayHaveEnded reports whether a transaction may be committed although its end failed. A
// coordinator that wrote the end and then lost its role answers that it is not the coordinator.
func mayHaveEnded(err error) bool {
	var code kafka.Error
	if !errors.As(err, &code) {
		return err != nil // no answer
	}
	switch code {
	case kafka.InvalidProducerEpoch, kafka.InvalidProducerIDMapping, kafka.InvalidTransactionState, kafka.ProducerFenced,
		kafka.TransactionalIDAuthorizationFailed, kafka.ConcurrentTransactions, kafka.GroupLoadInProgress:
		return false
	}
	return true
}

// retry repeats do until it succeeds, the error is permanent, or the context ends. A rebalance
// counts as passing, because partitions that stay can be committed after it.
func (t *transaction) retry(ctx context.Context, do func(context.Context) error) error {
	var w backoff
	for {
		err := do(ctx)
		if err == nil {
			return nil
		}
		if !passing(err) && !errors.Is(err, kafka.RebalanceInProgress) {
			return err
		}
		if wait := w.wait(ctx); wait != nil {
			return errors.Join(err, wait)
		}
	}
}

// addOffsets tells the coordinator that the transaction will commit offsets of a group.
func (t *transaction) addOffsets(ctx context.Context, group string) error {
	id, err := t.identity()
	if err != nil {
		return err
	}
	res, err := t.b.client.AddOffsetsToTxn(ctx, &kafka.AddOffsetsToTxnRequest{TransactionalID: t.id,
		ProducerID: int(id.producer), ProducerEpoch: int(id.epoch), GroupID: group})
	if err == nil {
		err = res.Error
	}
	return named("add offsets to transaction", t.id, err)
}

// noMember is the member for commits to a group without members.
var noMember = identified{"", -1}

// commitOffsets commits offsets of a group inside the transaction.
func (t *transaction) commitOffsets(ctx context.Context, group string, who identified, topics map[string][]kafka.TxnOffsetCommit) error {
	id, err := t.identity()
	if err != nil {
		return err
	}
	res, err := t.b.client.TxnOffsetCommit(ctx, &kafka.TxnOffsetCommitRequest{TransactionalID: t.id, GroupID: group,
		ProducerID: int(id.producer), ProducerEpoch: int(id.epoch), GenerationID: int(who.generation), MemberID: who.id, Topics: topics})
	if err == nil {
		for _, parts := range res.Topics {
			for _, p := range parts {
				err = graver(err, p.Error)
			}
		}
	}
	return named("commit offsets in transaction", t.id, err)
}

// end asks the coordinator to commit or abort the transaction. An abort works after a fault too.
func (t *transaction) end(ctx context.Context, commit bool) error {
	id, err := t.identity()
	if err != nil && commit {
		return err
	}
	res, err := t.b.client.EndTxn(ctx, &kafka.EndTxnRequest{TransactionalID: t.id,
		ProducerID: int(id.producer), ProducerEpoch: int(id.epoch), Committed: commit})
	if err == nil {
		err = res.Error
	}
	what := "commit transaction"
	if !commit {
		what = "abort transaction"
	}
	return named(what, t.id, err)
}

func named(what, id string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", what, id, err)
}
