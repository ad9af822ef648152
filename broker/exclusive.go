package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

// Exclusive produces in transactions under one name, which one process holds at
// a time: who opens it last. What fences the others is Kafka, so that nothing of
// theirs becomes visible behind its back.
type Exclusive struct {
	p      *Producer
	turn   chan struct{} // one transaction at a time; who fills it has it
	opened bool          // the transactional id is ours, and nothing is open under it
	lost   error         // why it is ours no more
}

// ErrSuperseded says that another has opened the same exclusive name, for good:
// nothing can be committed under it here any more. Kafka says the same of a
// transaction that it has ended for taking longer than
// Options.TransactionTimeout; who still ought to have the name opens it anew.
var ErrSuperseded = errors.New("superseded by another holder of the name")

// Exclusive takes a name from whoever has it. What they have left open is
// aborted before it returns. The name must not be that of a group with a
// Transactor. Close it.
func (b *Broker) Exclusive(ctx context.Context, name string, o ProducerOptions) (*Exclusive, error) {
	p, err := b.Producer(o)
	if err != nil {
		return nil, err
	}
	p.tx = &transaction{b: b, id: b.names.Transactional(name, 0), ident: noIdentity, included: map[*outPartition]bool{}}
	if err := p.tx.open(ctx); err != nil {
		_ = p.Close(ctx) // nothing has been sent
		return nil, err
	}
	return &Exclusive{p: p, turn: make(chan struct{}, 1), opened: true}, nil
}

// Close ends the producer. Whoever opens the name next need not wait for it.
func (e *Exclusive) Close(ctx context.Context) error { return e.p.Close(ctx) }

// ExclusiveTx is one open transaction of an Exclusive. It is valid while the
// function that Do was given runs.
type ExclusiveTx struct {
	outputs
	marks map[string]offsetsByTopic // by group
}

// Mark commits a place for a group inside the transaction, and its note beside it.
// The group is one that nobody joins: no generation guards the place, the name
// alone does. The last of several marks of one place counts.
func (x *ExclusiveTx) Mark(group string, p Position) {
	group = x.p.b.names.Group(group)
	if x.marks[group] == nil {
		x.marks[group] = offsetsByTopic{}
	}
	x.marks[group].add(wire.TopicPartition{Topic: x.p.b.names.Topic(p.Stream), Partition: p.Partition}, p.Offset, encodeBeside(p.Offset, p.Note, nil))
}

// Do runs one transaction. After an error nothing of it is visible to readers of
// committed events, unless the error wraps ErrInDoubt as well; then Committed
// says how it ended, if it marked anything. Once an error wraps ErrSuperseded,
// so does every later one, and the function is not called.
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
	// As in Transactor.Do: what a function has sent that panics must not be
	// committed by the next.
	e.opened = false
	x := &ExclusiveTx{outputs: outputsOf(e.p), marks: map[string]offsetsByTopic{}}
	if err := e.run(ctx, x, fn); err != nil {
		return fmt.Errorf("%w: %w", ErrAborted, e.abort(ctx, err))
	}
	e.opened = true
	x.tell()
	return nil
}

func (e *Exclusive) run(ctx context.Context, x *ExclusiveTx, fn func(*ExclusiveTx) error) error {
	// It is given up while there is time to abort it: one that Kafka has ended for
	// its age looks like another's.
	ctx, cancel := context.WithTimeout(ctx, e.p.b.transactionTimeout*4/5)
	defer cancel()
	if err := fn(x); err != nil {
		return err
	}
	if err := e.p.complete(ctx); err != nil {
		return err
	}
	if len(x.marks) == 0 && !e.p.tx.touched() {
		return nil
	}
	if err := e.p.tx.offsets(ctx, x.groups()...); err != nil {
		return err
	}
	return e.p.tx.commit(ctx)
}

// groups are the commits of what was marked.
func (x *ExclusiveTx) groups() (all []groupCommit) {
	for group, offsets := range x.marks {
		all = append(all, groupCommit{group, func(ctx context.Context) error {
			return x.p.tx.commitOffsets(ctx, group, nobody, offsets)
		}})
	}
	return all
}

// begin makes ready for a transaction. What another has taken is never taken
// back.
func (e *Exclusive) begin(ctx context.Context) error {
	switch {
	case e.lost != nil:
		return e.lost
	case e.opened:
		e.p.tx.begin()
		return nil
	}
	// What an aborted transaction could not rid itself of in time must not
	// become part of the next.
	if err := e.p.Flush(ctx); err != nil {
		return fmt.Errorf("end the former transaction: %w", err)
	}
	if err := e.p.tx.renew(ctx); err != nil {
		return e.judge(err)
	}
	e.p.relabelAll()
	e.opened = true
	return nil
}

// abort gives up what the transaction has done: at once if it can be, so that
// readers are not held up, or else when the next one begins.
func (e *Exclusive) abort(ctx context.Context, cause error) error {
	e.p.tx.poison(cause)
	if cause = e.judge(cause); e.lost != nil {
		return cause
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.p.b.transactionTimeout)
	defer cancel()
	defer context.AfterFunc(e.p.ctx, cancel)()
	if again := e.begin(ctx); again != nil {
		return fmt.Errorf("%w; open it anew: %w", cause, again)
	}
	return cause
}

// judge makes an error final that says that the name is another's.
func (e *Exclusive) judge(err error) error {
	if fenced(err) {
		err = fmt.Errorf("%w: %w", ErrSuperseded, err)
		e.lost = fmt.Errorf("%s: %w", e.p.tx.id, ErrSuperseded) // how this one ended is not how the next ones do
	}
	return err
}

// fenced tells whether Kafka knows of a later holder of a transactional id.
func fenced(err error) bool {
	return errors.Is(err, kafka.ProducerFenced) || errors.Is(err, kafka.InvalidProducerEpoch)
}

// renew takes the next epoch of the same identity, if nobody has taken one since.
// Kafka can tell only while no transaction is open, because it would fence that
// itself; so the open one is ended first, and once that is settled it is not
// asked again, since the epoch may have moved on with an answer that was lost.
//
// Kafka refuses an epoch that is not the last (KIP-360). The embedded broker takes
// an old one for a recovery and hands out the next but one, which tells as well.
func (t *transaction) renew(ctx context.Context) error {
	if !t.settled {
		err := t.retry(ctx, func(ctx context.Context) error { return t.end(ctx, false) })
		if err != nil && !errors.Is(err, kafka.InvalidTransactionState) && !errors.Is(err, kafka.InvalidProducerIDMapping) {
			return err
		}
		t.settled = true
	}
	old, _ := t.identity()
	id, err := persist(ctx, func(ctx context.Context) (identity, error) { return t.b.initProducer(ctx, t.id, old) })
	if errors.Is(err, kafka.InvalidProducerIDMapping) { // forgotten after a week without transactions, so nobody has it
		return t.open(ctx)
	}
	if err == nil && id.producer == old.producer && id.epoch != old.epoch+1 {
		err = kafka.ProducerFenced
	}
	if err != nil {
		return fmt.Errorf("open transactions as %s: %w", t.id, err)
	}
	t.take(id)
	return nil
}
