package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

// A transaction hangs if its coordinator has ended it and a partition does not know of the end. Readers of
// committed events wait for it for ever, and so do members that ask for the group's offsets. Kafka 4 causes
// this when a server is killed: its coordinator skips partitions that have no leader at that moment, as if
// they were deleted. An operator could end such a transaction with `kafka-transactions.sh abort`.
//
// The holder of the transactional id ends it without one. After Kafka has given us an identity, no
// transaction of the id is open. So each one that a partition still has open hangs. The end of the next
// transaction with that partition ends it too, so it is given the outcome that its coordinator knew before.
//
// Opening the id makes the coordinator forget that outcome. So it is kept in the transaction's timeout, which
// Kafka stores in the same step. A process that dies while it ends the transaction leaves the outcome to the
// next one. After the search the id is opened with the usual timeout, so an open transaction with another
// timeout is one that was being ended.
//
// If the outcome is not known, events are committed and offsets are not moved. Outputs may then be ahead of
// offsets and never behind, as after a killed Kafka of the laptop, and ReadBack finds them.

// outcome is the end of a transaction, as its coordinator knows it. It is the last digit of a timeout.
type outcome int

const (
	outcomeUnknown outcome = iota
	outcomeCommit
	outcomeAbort
)

// timeout returns a transaction's timeout in milliseconds, with an outcome in it. Kafka aborts what was not ended in
// this time, also events that had been committed. So the timeout of a commit is at least the given one.
func (o outcome) timeout(usual, ofCommit time.Duration) int {
	if o == outcomeCommit {
		usual = max(usual, ofCommit)
	}
	if o != outcomeUnknown {
		usual -= 10 * time.Millisecond
	}
	ms := int(usual.Milliseconds())
	return ms - ms%10 + int(o)
}

// outcomeIn returns the outcome in a timeout.
func outcomeIn(timeout int32) outcome {
	if o := outcome(timeout % 10); o == outcomeCommit || o == outcomeAbort {
		return o
	}
	return outcomeUnknown
}

// learnOutcome asks the coordinator how the last transaction of the id ended, before the id is opened. Opening
// aborts a transaction that is open. So learnOutcome commits one that was being committed after its end was lost.
func (t *transaction) learnOutcome(ctx context.Context) error {
	r := t.b.coordinators.request()
	defer t.b.coordinators.requests.Put(r)
	r.frame.DescribeTransaction(t.b.names.Install(), t.id)
	var last wire.TransactionState
	answer, err := t.b.coordinators.ask(ctx, t.coordinator(), r)
	if err == nil {
		last, err = wire.ReadDescribeTransaction(answer)
	}
	if err == nil && last.Error != 0 {
		err = kafka.Error(last.Error)
	}
	if err != nil && isTransient(err) {
		return fmt.Errorf("ask how the last transaction ended: %w", err)
	}
	kept := outcomeIn(last.Timeout)
	t.ended, t.search = kept, kept != outcomeUnknown || !t.isChecked()
	switch last.State { // empty for an id that was never used, and before Kafka 3.0
	case "PrepareCommit", "CompleteCommit":
		t.ended = outcomeCommit
	case "Ongoing":
		if kept == outcomeCommit {
			return t.retry(ctx, func(ctx context.Context) error { return t.endAs(ctx, identity{last.Producer, last.Epoch}, true) })
		}
		t.ended = outcomeAbort
	case "PrepareAbort", "CompleteAbort", "PrepareEpochFence":
		if kept != outcomeCommit {
			t.ended = outcomeAbort
		} else if last.State == "CompleteAbort" {
			t.b.log.Error("transactions: Kafka aborted a committed transaction while its lost end was being written; events of it may be missing on its streams", "transaction", t.id)
		}
	}
	if !t.search {
		t.ended = outcomeUnknown
	}
	return nil
}

// isChecked reports whether Kafka has not failed since the last search for the id.
func (t *transaction) isChecked() bool {
	failed := t.b.lastFailure.Load()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.id == t.checkedID && (failed == nil || failed.Before(t.checked))
}

// A search for hanging transactions follows a failed request after a pause, because Kafka may still be
// starting. If requests go on failing, there is a search nevertheless.
const (
	hangingPause = 5 * time.Second
	hangingEvery = 30 * time.Second
)

// noteFailure records a request without an answer. The time keeps its monotonic part, so it is after an earlier
// search although the clock was set back.
func (b *Broker) noteFailure() {
	now := time.Now()
	b.lastFailure.Store(&now)
}

// maybeHanging reports whether Kafka may have lost the end of a transaction since the last search.
func (t *transaction) maybeHanging() bool {
	failed := t.b.lastFailure.Load()
	t.mu.Lock()
	defer t.mu.Unlock()
	return failed != nil && t.checkedID != "" && failed.After(t.checked) && (time.Since(*failed) > hangingPause || time.Since(t.checked) > hangingEvery)
}

// watchFailures opens the ids again after Kafka has failed. Without it, a transaction that hangs would
// stop all readers until this member has events.
func (t *Transactor) watchFailures() {
	tick := time.NewTicker(hangingPause)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-t.c.ctx.Done():
			return
		}
		if slices.ContainsFunc(t.all[:], func(p *slotProducer) bool { return p.tx.maybeHanging() }) {
			t.takeSlot()
		}
	}
}

// endHanging ends the hanging transactions of an id that has just been opened. It does nothing if Kafka has
// not failed since the last time.
func (t *transaction) endHanging(ctx context.Context) error {
	if !t.search {
		return nil
	}
	began := time.Now()
	id, err := t.identity()
	if err != nil {
		return err
	}
	found, err := t.b.hanging(ctx, id.producer)
	if err != nil {
		return fmt.Errorf("look for hanging transactions of %s: %w", t.id, err)
	}
	for p, offset := range found {
		stream, _ := t.b.names.Stream(p.Topic)
		t.b.log.Warn("transactions: Kafka has lost the end of a transaction; it is ended now", "transaction", t.id,
			"stream", stream, "partition", p.Partition, "offset", offset)
	}
	if len(found) > 0 {
		r := t.b.coordinators.request()
		defer t.b.coordinators.requests.Put(r)
		r.parts = slices.SortedFunc(maps.Keys(found), comparePartitions)
		err = t.addHanging(ctx, id, r)
	}
	if err == nil && len(found) > 0 && t.ended == outcomeUnknown {
		t.b.log.Warn("transactions: how a lost transaction ended is not known; its events count, and its inputs may be handled twice", "transaction", t.id)
		err = t.commit(ctx)
	}
	if err == nil { // Kafka does not say whose transaction holds a group's offsets: if none of ours does, this changes nothing
		err = t.retry(ctx, func(ctx context.Context) error { return t.addOffsets(ctx, t.group) })
	}
	if err == nil {
		err = t.retry(ctx, func(ctx context.Context) error { return t.endTransaction(ctx, t.ended == outcomeCommit) })
	}
	if err == nil && t.ended != outcomeUnknown {
		err = t.renew(ctx, outcomeUnknown)
	}
	if err != nil {
		return fmt.Errorf("end hanging transactions of %s: %w", t.id, err)
	}
	t.mu.Lock()
	t.checked, t.checkedID = began, t.id
	t.mu.Unlock()
	return nil
}

// addHanging asks until it has an answer. A stream may have been deleted since the search; then another search is needed.
func (t *transaction) addHanging(ctx context.Context, id identity, r *coordinatorRequest) error {
	var deleted error
	err := t.retry(ctx, func(ctx context.Context) error {
		err := t.add(ctx, id, r)
		if errors.Is(err, kafka.UnknownTopicOrPartition) {
			deleted = err
			return nil
		}
		return err
	})
	return errors.Join(err, deleted)
}

// hanging returns the partitions in which a producer has an open transaction, and where it begins. It
// looks only at partitions with records that readers of committed events do not get. A partition that
// cannot be looked at now is looked at again later.
func (b *Broker) hanging(ctx context.Context, producer int64) (map[wire.TopicPartition]int64, error) {
	md, err := retryUntil(ctx, func(ctx context.Context) (*wire.Metadata, error) { return b.metadata(ctx) })
	if err != nil {
		return nil, err
	}
	var all []wire.OffsetQuery
	for _, t := range md.Topics {
		if _, ours := b.names.Stream(t.Name); !ours || t.Error != 0 {
			continue
		}
		for _, p := range t.Partitions {
			all = append(all, wire.OffsetQuery{TopicPartition: wire.TopicPartition{Topic: t.Name, Partition: p.Index}, Time: wire.Latest})
		}
	}
	ends, committed := map[wire.TopicPartition]int64{}, map[wire.TopicPartition]int64{}
	_, refused := b.offsetsAtOnce(ctx, all, true, committed, b.requestTimeout)
	_, again := b.offsetsAtOnce(ctx, all, false, ends, b.requestTimeout)
	unseen := isTransient(refused) || isTransient(again)
	byLeader := map[int32][]wire.TopicPartition{}
	for p, end := range ends {
		if at, ok := committed[p]; !ok || at >= end {
			continue
		}
		leader, err := b.leader(ctx, p, b.requestTimeout)
		if err != nil {
			unseen = true
			continue
		}
		byLeader[leader] = append(byLeader[leader], p)
	}
	found := map[wire.TopicPartition]int64{}
	for leader, parts := range byLeader {
		open, err := b.openTransactions(ctx, leader, parts, producer)
		unseen = unseen || isTransient(err) // Kafka before 2.8 does not know the request
		maps.Copy(found, open)
	}
	if unseen {
		b.noteFailure()
	}
	return found, ctx.Err()
}

// openTransactions asks a leader where a producer has open transactions. A partition that Kafka does not
// let us see counts as one without.
func (b *Broker) openTransactions(ctx context.Context, leader int32, parts []wire.TopicPartition, producer int64) (map[wire.TopicPartition]int64, error) {
	ctx, cancel := b.limitTime(ctx)
	defer cancel()
	var frame wire.Frame
	frame.DescribeProducers(b.names.Install(), parts)
	answer, err := b.call(ctx, leader, &frame, nil)
	if err != nil {
		return nil, err
	}
	all, err := wire.ReadDescribeProducers(answer)
	open := map[wire.TopicPartition]int64{}
	for _, p := range all {
		if code := kafka.Error(p.Error); p.Error != 0 && isTransient(code) {
			err = errors.Join(err, code)
		}
		if p.Producer == producer && p.Open >= 0 {
			open[p.TopicPartition] = p.Open
		}
	}
	return open, err
}
