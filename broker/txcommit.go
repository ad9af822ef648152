package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

// txPlace is how far a transaction moves a partition.
type txPlace struct {
	p     *inPartition
	epoch uint64
	first uint64 // number of the first event
	next  int64
	holes []hole
}

// hole is what lies between two of a transaction's deliveries. Dead letters may;
// a delivery that was left out would be lost.
type hole struct{ from, to uint64 }

// places finds the offsets that the transaction commits, once every dead
// letter that lies before its events has been written.
func (t *Transactor) places(ctx context.Context, x *Tx) (map[wire.TopicPartition]txPlace, error) {
	all := map[wire.TopicPartition]txPlace{}
	expect := map[wire.TopicPartition]uint64{}
	for _, d := range x.done {
		tp := d.part.tp
		place, ok := all[tp]
		if !ok {
			place = txPlace{p: d.part, epoch: d.epoch, first: d.Events[0].number}
		}
		if d.epoch != place.epoch || ok && d.Events[0].number < expect[tp] {
			return nil, fmt.Errorf("%s/%d: its deliveries are out of order", d.Stream, d.Partition)
		}
		if ok && d.Events[0].number > expect[tp] {
			place.holes = append(place.holes, hole{expect[tp], d.Events[0].number})
		}
		place.next = d.next
		expect[tp] = d.Events[len(d.Events)-1].number + 1
		all[tp] = place
	}
	for _, place := range all {
		if err := t.c.awaitFirst(ctx, place); err != nil {
			return nil, err
		}
		if !place.whole() {
			return nil, fmt.Errorf("%s/%d: a delivery was left out; give the transaction all that Poll returned before the last", place.p.stream, place.p.tp.Partition)
		}
	}
	return all, nil
}

// whole tells whether everything between a place's deliveries has ended.
func (place *txPlace) whole() bool {
	place.p.mu.Lock()
	defer place.p.mu.Unlock()
	for _, h := range place.holes {
		if !place.p.mark.all(h.from, h.to) {
			return false
		}
	}
	return true
}

// awaitFirst waits until a place's first event is the partition's first open
// one, and no dead letter is on its way that the place would pass. What can lie
// before it are also deliveries that the caller has kept back, which would wait
// until the context ends.
func (c *Consumer) awaitFirst(ctx context.Context, place txPlace) error {
	for {
		place.p.mu.Lock()
		stale, first := place.p.epoch != place.epoch, place.p.mark.first
		written := place.p.unwritten == 0
		place.p.mu.Unlock()
		switch {
		case stale:
			return fmt.Errorf("%s/%d: %w", place.p.stream, place.p.tp.Partition, errTakenAway)
		case written && first >= place.first:
			return nil
		}
		if err := sleep(ctx, 2*time.Millisecond); err != nil {
			return fmt.Errorf("%s/%d: earlier events have not ended: %w", place.p.stream, place.p.tp.Partition, err)
		}
	}
}

var errTakenAway = errors.New("the partition was taken away")

// commit puts the offsets into the transaction and ends it.
func (t *Transactor) commit(ctx context.Context, places map[wire.TopicPartition]txPlace) error {
	ctx, cancel := context.WithTimeout(ctx, transactionTimeout)
	defer cancel()
	if len(places) > 0 {
		if err := t.retry(ctx, t.addOffsets); err != nil {
			return err
		}
		if err := t.retry(ctx, func(ctx context.Context) error { return t.offsets(ctx, places) }); err != nil {
			return err
		}
	}
	doubt := false
	err := t.retry(ctx, func(ctx context.Context) error {
		err := t.end(ctx)
		doubt = doubt || mayHaveEnded(err)
		return err
	})
	if err != nil && doubt {
		err = fmt.Errorf("%w: %w", ErrInDoubt, err)
	}
	return err
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
func (t *Transactor) retry(ctx context.Context, do func(context.Context) error) error {
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

func (t *Transactor) addOffsets(ctx context.Context) error {
	id, err := t.p.tx.identity()
	if err != nil {
		return err
	}
	res, err := t.c.b.client.AddOffsetsToTxn(ctx, &kafka.AddOffsetsToTxnRequest{TransactionalID: t.p.tx.id,
		ProducerID: int(id.producer), ProducerEpoch: int(id.epoch), GroupID: t.c.member.group})
	if err == nil {
		err = res.Error
	}
	return named("add offsets to transaction", t.p.tx.id, err)
}

func (t *Transactor) offsets(ctx context.Context, places map[wire.TopicPartition]txPlace) error {
	id, err := t.p.tx.identity()
	if err != nil {
		return err
	}
	// Who is no member has no generation either, and Kafka takes offsets that
	// name none from anyone.
	member, generation, _, ok := t.c.member.snapshot()
	if !ok {
		return errTakenAway
	}
	topics := map[string][]kafka.TxnOffsetCommit{}
	for tp, place := range places {
		place.p.mu.Lock()
		stale := place.p.epoch != place.epoch
		place.p.mu.Unlock()
		if stale {
			return errTakenAway
		}
		topics[tp.Topic] = append(topics[tp.Topic], kafka.TxnOffsetCommit{Partition: int(tp.Partition), Offset: place.next})
	}
	res, err := t.c.b.client.TxnOffsetCommit(ctx, &kafka.TxnOffsetCommitRequest{TransactionalID: t.p.tx.id, GroupID: t.c.member.group,
		ProducerID: int(id.producer), ProducerEpoch: int(id.epoch), GenerationID: int(generation), MemberID: member, Topics: topics})
	if err == nil {
		for _, parts := range res.Topics {
			for _, p := range parts {
				err = errors.Join(err, p.Error)
			}
		}
	}
	if errors.Is(err, kafka.IllegalGeneration) {
		if _, now, _, _ := t.c.member.snapshot(); now != generation {
			err = kafka.RebalanceInProgress // it has just passed
		}
	}
	return named("commit offsets in transaction", t.p.tx.id, err)
}

func (t *Transactor) end(ctx context.Context) error {
	id, err := t.p.tx.identity()
	if err != nil {
		return err
	}
	res, err := t.c.b.client.EndTxn(ctx, &kafka.EndTxnRequest{TransactionalID: t.p.tx.id,
		ProducerID: int(id.producer), ProducerEpoch: int(id.epoch), Committed: true})
	if err == nil {
		err = res.Error
	}
	return named("commit transaction", t.p.tx.id, err)
}

func named(what, id string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", what, id, err)
}

func (t *Transactor) committed(x *Tx, places map[wire.TopicPartition]txPlace) {
	for _, place := range places {
		place.p.mu.Lock()
		if place.p.epoch == place.epoch {
			place.p.committed = max(place.p.committed, place.next)
		}
		place.p.mu.Unlock()
	}
	for _, d := range x.done {
		d.Done()
	}
}
