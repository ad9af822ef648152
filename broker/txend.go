package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/segmentio/kafka-go"
)

// offsets puts offsets into the transaction, a group's at a time.
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

// commit ends the transaction for good.
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

// groupCommit is how a transaction commits the offsets of one group.
type groupCommit struct {
	group  string // as Kafka knows it
	commit func(context.Context) error
}

// mayHaveEnded tells whether a transaction whose end failed may be committed
// all the same. A coordinator that has written the end down and then lost its
// office says that it is none.
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

// retry tries until it succeeds, the error will not pass, or the time is up. A
// rebalance passes too: what is kept over it can be committed after it.
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

// addOffsets tells the coordinator of a group whose offsets the transaction
// commits.
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

// nobody commits offsets for a group that has no members.
var nobody = identified{"", -1}

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

// end asks the coordinator to commit the transaction or to abort it. An abort
// needs no sound transaction.
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
