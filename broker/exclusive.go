package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

// Exclusive produces in transactions under one name, which is also that of the group of its marks. Only the process that opened the name last
// holds it. Kafka fences the other processes, so that none of their outputs becomes visible later.
type Exclusive struct {
	p      *Producer
	turn   chan struct{} // full while a transaction runs, so that only one runs at a time
	opened bool          // whether we hold the transactional id, with no transaction open
	lost   error         // reason why the name was lost
}

// ErrSuperseded means that another process has opened the same exclusive name. The error is final:
// this process can no longer commit under the name. Kafka gives the same answer for a transaction
// that it ended because it took longer than Options.TransactionTimeout. A process that should still
// have the name must open the name again.
var ErrSuperseded = errors.New("superseded by another holder of the name")

// Exclusive takes a name from its present holder, and aborts the holder's open transaction before
// it returns. The name must not be that of a group with a Transactor. The caller must close the
// Exclusive.
func (b *Broker) Exclusive(ctx context.Context, name string, o ProducerOptions) (*Exclusive, error) {
	p, err := b.Producer(o)
	if err != nil {
		return nil, err
	}
	p.tx = &transaction{b: b, id: b.names.Transactional(name, 0), group: b.names.Group(name), ident: noIdentity, included: map[*outPartition]bool{}}
	if err := p.tx.open(ctx); err != nil {
		_ = p.Close(ctx) // no event was sent
		return nil, err
	}
	return &Exclusive{p: p, turn: make(chan struct{}, 1), opened: true}, nil
}

// Close closes the producer. The next process can open the name without waiting for it.
func (e *Exclusive) Close(ctx context.Context) error { return e.p.Close(ctx) }

// ExclusiveTx is one open transaction of an Exclusive. It is valid while the function passed to Do
// runs.
type ExclusiveTx struct {
	outputs
	marks map[string][]wire.CommittedOffset // by group
}

// Mark commits a position and its note for a group inside the transaction. The group must have no
// members, because only the name protects the group's offsets and not a generation. Of several
// marks for one partition the last one counts.
func (x *ExclusiveTx) Mark(group string, p Position) {
	group = x.p.b.names.Group(group)
	at := wire.TopicPartition{Topic: x.p.b.names.Topic(p.Stream), Partition: p.Partition}
	others := slices.DeleteFunc(x.marks[group], func(o wire.CommittedOffset) bool { return o.TopicPartition == at })
	x.marks[group] = append(others, wire.CommittedOffset{TopicPartition: at, Offset: p.Offset, Metadata: encodeMetadata(p.Offset, p.Note, nil)})
}

// Do runs one transaction. After an error nothing of it is visible to readers of committed events,
// unless the error also wraps ErrInDoubt; then Committed shows whether its marks were committed.
// After an error that wraps ErrSuperseded, every later call fails with ErrSuperseded and does not
// call the function.
func (e *Exclusive) Do(ctx context.Context, fn func(*ExclusiveTx) error) error {
	select {
	case e.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("%w: wait for the transaction before: %w", ErrAborted, context.Cause(ctx))
	}
	defer func() { <-e.turn }()
	if err := e.begin(ctx); err != nil {
		return fmt.Errorf("%w: %w", ErrAborted, err)
	}
	// If fn panics, the next transaction must not commit the events of this transaction, as in
	// Transactor.Do.
	e.opened = false
	x := &ExclusiveTx{outputs: outputsOf(e.p), marks: map[string][]wire.CommittedOffset{}}
	if err := e.run(ctx, x, fn); err != nil {
		return fmt.Errorf("%w: %w", ErrAborted, e.abort(ctx, err))
	}
	e.opened = true
	x.callDone()
	return nil
}

func (e *Exclusive) run(ctx context.Context, x *ExclusiveTx, fn func(*ExclusiveTx) error) error {
	// The time limit leaves time for an abort. If Kafka itself ends a transaction, its answer looks
	// like a takeover by another process.
	ctx, cancel := context.WithTimeout(ctx, e.p.b.transactionTimeout*4/5)
	defer cancel()
	if err := fn(x); err != nil {
		return err
	}
	if err := e.p.waitAnswers(ctx); err != nil {
		return err
	}
	if len(x.marks) == 0 && !e.p.tx.hasPartitions() {
		return nil
	}
	if err := e.p.tx.offsets(ctx, x.groupCommits()...); err != nil {
		return err
	}
	return e.p.tx.commit(ctx)
}

// groupCommits returns the commits of the marked positions.
func (x *ExclusiveTx) groupCommits() (all []groupCommit) {
	for group, offsets := range x.marks {
		all = append(all, groupCommit{group, func(ctx context.Context) error {
			return x.p.tx.commitOffsets(ctx, group, noMember, offsets)
		}})
	}
	return all
}

// begin prepares the next transaction. A name that another process has taken is never taken back.
func (e *Exclusive) begin(ctx context.Context) error {
	switch {
	case e.lost != nil:
		return e.lost
	case e.opened && !e.p.tx.maybeHanging():
		e.p.tx.begin()
		return nil
	}
	// Events of an aborted transaction that are still queued must not become part of the next one.
	if err := e.p.Flush(ctx); err != nil {
		return fmt.Errorf("end the former transaction: %w", err)
	}
	if err := e.p.tx.nextEpoch(ctx); err != nil {
		return e.finalError(err)
	}
	e.p.relabelAll()
	e.opened = true
	return nil
}

// abort aborts the transaction: at once if possible, so that readers do not wait, or else when the
// next transaction begins.
func (e *Exclusive) abort(ctx context.Context, cause error) error {
	e.p.tx.poison(cause)
	if cause = e.finalError(cause); e.lost != nil {
		return cause
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.p.b.transactionTimeout)
	defer cancel()
	defer context.AfterFunc(e.p.ctx, cancel)()
	if again := e.begin(ctx); again != nil {
		return fmt.Errorf("%w; open it again: %w", cause, again)
	}
	return cause
}

// finalError makes an error final if it means that another process has the name.
func (e *Exclusive) finalError(err error) error {
	if isFenced(err) {
		err = fmt.Errorf("%w: %w", ErrSuperseded, err)
		e.lost = fmt.Errorf("%s: %w", e.p.tx.id, ErrSuperseded) // the text of this error does not apply to later transactions
	}
	return err
}

// isFenced reports whether Kafka knows a later holder of a transactional id.
func isFenced(err error) bool {
	return errors.Is(err, kafka.ProducerFenced) || errors.Is(err, kafka.InvalidProducerEpoch)
}

// nextEpoch takes the next epoch of the same identity, unless another process has taken an epoch
// since. Kafka can detect another process only while no transaction is open, because otherwise
// Kafka itself fences the open transaction. So nextEpoch first ends the open transaction. After
// this end has succeeded once, it is not repeated, because an answer with a new epoch may have been
// lost.
//
// Kafka refuses an epoch that is not the last one (KIP-360). The embedded broker accepts an old one
// as a recovery and returns the epoch after the next; that difference shows the takeover too.
func (t *transaction) nextEpoch(ctx context.Context) error {
	if err := t.retry(ctx, t.learnOutcome); err != nil {
		return fmt.Errorf("open transactions as %s: %w", t.id, err)
	}
	if !t.settled {
		err := t.retry(ctx, func(ctx context.Context) error { return t.endTransaction(ctx, false) })
		if err != nil && !errors.Is(err, kafka.InvalidTransactionState) && !errors.Is(err, kafka.InvalidProducerIDMapping) {
			return err
		}
		t.settled = true
	}
	err := t.renew(ctx, t.ended)
	if errors.Is(err, kafka.InvalidProducerIDMapping) { // Kafka forgot the id after a week without transactions, so no process holds it
		return t.open(ctx)
	}
	if err != nil {
		return fmt.Errorf("open transactions as %s: %w", t.id, err)
	}
	return t.endHanging(ctx)
}

// renew takes the next epoch while no transaction is open, and keeps an outcome.
func (t *transaction) renew(ctx context.Context, kept outcome) error {
	old, _ := t.identity()
	id, err := retryUntil(ctx, func(ctx context.Context) (identity, error) { return t.b.initProducer(ctx, t.id, old, kept) })
	if err == nil && id.producer == old.producer && id.epoch != old.epoch+1 {
		err = kafka.ProducerFenced
	}
	if err == nil {
		t.takeIdentity(id)
	}
	return err
}
