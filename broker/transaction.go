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
	"tidemill.dev/broker/retry"
)

// defaultTransaction is the default of Options.TransactionTimeout.
const defaultTransaction = 10 * time.Second

// transaction is the transactional part of a producer: its id, its identity, and the partitions
// that were added to the open transaction.
type transaction struct {
	b     *Broker
	id    string
	group string // group whose offsets are committed under the id, by its name in Kafka

	limits requestContext // of offsets and commit, of which one runs at a time

	mu        sync.Mutex
	ident     identity
	included  map[*outPartition]bool
	fault     error
	settled   bool      // whether the open transaction has been ended and a new epoch requested
	checked   time.Time // time of the last search for hanging transactions
	checkedID string    // id at that time
	ended     outcome   // of the last transaction under the id endedID before it was opened
	endedID   string
	first     chan struct{} // closed when the open transaction has a partition; nil if nothing waits for that
}

// open fences the former user of the transactional id and takes an identity.
func (t *transaction) open(ctx context.Context) error {
	var w backoff
	for {
		err := t.learnOutcome(ctx)
		id := noIdentity
		if err == nil {
			id, err = t.b.initProducer(ctx, t.id, noIdentity)
		}
		if err == nil {
			t.takeIdentity(id)
			err = t.endHanging(ctx)
		}
		if err == nil {
			return nil
		}
		if !isTransient(err) && !isContested(err) {
			return fmt.Errorf("open transactions as %s: %w", t.id, err)
		}
		if wait := w.wait(ctx); wait != nil {
			return fmt.Errorf("open transactions as %s: %w", t.id, errors.Join(err, wait))
		}
	}
}

// takeIdentity gets a new identity for the transactional id.
func (t *transaction) takeIdentity(id identity) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ident, t.included, t.fault, t.settled = id, map[*outPartition]bool{}, nil, false
}

// isContested reports whether another process took the same id at the same moment, as may happen
// while a slot changes hands. The process that asks again then gets a later epoch.
func isContested(err error) bool {
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
// fault is kept, because each event of a batch reports the same fault.
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

// hasPartitions reports whether the open transaction has any partition.
func (t *transaction) hasPartitions() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.included) > 0
}

// whenBegun returns a channel that is closed when the coordinator knows a partition of the open
// transaction.
func (t *transaction) whenBegun() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := make(chan struct{})
	t.first = first
	t.tellFirst()
	return first
}

// tellFirst closes the channel of whenBegun if a partition has been added. The caller holds the
// lock.
func (t *transaction) tellFirst() {
	if t.first != nil && len(t.included) > 0 {
		close(t.first)
		t.first = nil
	}
}

// addPartitions adds partitions to the transaction before anything is sent to them. The coordinator
// cannot abort records in a partition that was not added.
func (t *transaction) addPartitions(ctx context.Context, parts []*outPartition) error {
	id, err := t.identity()
	if err != nil {
		return err
	}
	r := t.b.coordinators.request()
	defer t.b.coordinators.requests.Put(r)
	r.parts = r.parts[:0]
	t.mu.Lock()
	for _, o := range parts {
		if !t.included[o] {
			r.parts = append(r.parts, wire.TopicPartition{Topic: o.topic.name, Partition: o.index})
		}
	}
	t.mu.Unlock()
	if len(r.parts) == 0 {
		return nil
	}
	if err := t.add(ctx, id, r); err != nil {
		if !isTransient(err) {
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

// add adds the partitions of a request. It retries until the end of the previous transaction is written,
// which Kafka may do in the background.
func (t *transaction) add(ctx context.Context, id identity, r *coordinatorRequest) error {
	w := retry.Backoff{First: time.Millisecond, Cap: 5 * time.Millisecond}
	for {
		r.frame.AddPartitions(t.b.names.Install(), t.as(id), r.parts)
		answer, err := t.b.coordinators.ask(ctx, t.coordinator(), r)
		if err == nil {
			err = refusedPartitions(answer)
		}
		if !errors.Is(err, kafka.ConcurrentTransactions) {
			return err
		}
		if ended := w.Sleep(ctx); ended != nil {
			return errors.Join(err, ended)
		}
	}
}

// as names the open transaction of an identity.
func (t *transaction) as(id identity) wire.Transaction {
	return wire.Transaction{ID: t.id, Producer: id.producer, Epoch: id.epoch}
}

func (t *transaction) coordinator() coordinated {
	return coordinated{t.id, kafka.CoordinatorKeyTypeTransaction}
}

// notAttempted is kafka-go's BrokerAuthorizationFailed. The code means that a partition was not
// added because another partition of the same request was refused.
const notAttempted kafka.Error = 55

// refusedPartitions returns an error that names the refused partitions, or an error that another
// try may remove.
func refusedPartitions(answer []byte) error {
	var blamed, others, again error
	err := wire.ReadAddPartitions(answer, func(topic []byte, partition int32, code int16) {
		switch code := kafka.Error(code); code {
		case 0:
		case kafka.ConcurrentTransactions:
			again = code
		case notAttempted:
			others = errors.New("none of its partitions was added")
		default:
			blamed = errors.Join(blamed, fmt.Errorf("%s/%d: %w", topic, partition, code))
		}
	})
	for _, e := range []error{err, again, blamed} {
		if e != nil {
			return e
		}
	}
	return others
}

// offsets adds offsets to the transaction with one request for each group.
func (t *transaction) offsets(ctx context.Context, groups ...groupCommit) error {
	ctx = t.limits.of(ctx, t.b.transactionTimeout)
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
	ctx = t.limits.of(ctx, t.b.transactionTimeout)
	doubt := false
	err := t.retry(ctx, func(ctx context.Context) error {
		err := t.endTransaction(ctx, true)
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

// mayHaveEnded reports whether a transaction may be committed although the request to end it
// failed. A coordinator may write the end, lose its role, and then answer that it is not the
// coordinator.
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
// counts as a passing error, because partitions that stay can be committed after the rebalance.
func (t *transaction) retry(ctx context.Context, do func(context.Context) error) error {
	var w backoff
	for {
		err := do(ctx)
		if err == nil {
			return nil
		}
		if !isTransient(err) && !errors.Is(err, kafka.RebalanceInProgress) {
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
	err = t.ask(ctx, t.coordinator(), func(f *wire.Frame) { f.AddOffsets(t.b.names.Install(), t.as(id), group) })
	return named("add offsets to transaction", t.id, err)
}

// noMember is the member for commits to a group without members.
var noMember = memberIdentity{"", -1}

// commitOffsets commits offsets of a group inside the transaction.
func (t *transaction) commitOffsets(ctx context.Context, group string, who memberIdentity, offsets []wire.CommittedOffset) error {
	id, err := t.identity()
	if err != nil {
		return err
	}
	slices.SortFunc(offsets, func(a, b wire.CommittedOffset) int { return strings.Compare(a.Topic, b.Topic) })
	r := t.b.coordinators.request()
	defer t.b.coordinators.requests.Put(r)
	r.frame.CommitOffsets(t.b.names.Install(), t.as(id), group, who.id, who.generation, offsets)
	answer, err := t.b.coordinators.ask(ctx, coordinated{group, kafka.CoordinatorKeyTypeConsumer}, r)
	if err == nil {
		var refused error
		err = wire.ReadCommitOffsets(answer, func(code int16) {
			if code != 0 {
				refused = graverError(refused, kafka.Error(code))
			}
		})
		if err == nil {
			err = refused
		}
	}
	return named("commit offsets in transaction", t.id, err)
}

// ask sends a request whose answer has only an error.
func (t *transaction) ask(ctx context.Context, of coordinated, encode func(*wire.Frame)) error {
	r := t.b.coordinators.request()
	defer t.b.coordinators.requests.Put(r)
	encode(&r.frame)
	answer, err := t.b.coordinators.ask(ctx, of, r)
	if err != nil {
		return err
	}
	code, err := wire.ReadCode(answer)
	if err == nil && code != 0 {
		err = kafka.Error(code)
	}
	return err
}

// endTransaction asks the coordinator to commit or abort the transaction. An abort is also possible
// after a fault.
func (t *transaction) endTransaction(ctx context.Context, commit bool) error {
	id, err := t.identity()
	if err != nil && commit {
		return err
	}
	err = t.ask(ctx, t.coordinator(), func(f *wire.Frame) { f.EndTransaction(t.b.names.Install(), t.as(id), commit) })
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

// outputs are the events that a transaction sends.
type outputs struct {
	p    *Producer
	sent []*output
	told func(Receipt, error) // method value of p.failUnsent
}

// output is an event whose sender wants to know its offset.
type output struct {
	at   Receipt
	done func(Receipt)
}

// Send publishes an event as part of the transaction. Its bytes are copied. An event that cannot be
// sent makes the transaction fail.
func (x *outputs) Send(ctx context.Context, stream string, v *View) {
	x.p.Send(ctx, stream, v, x.told)
}

// SendTo is Send to a partition of the caller's choice. done may be nil. After the commit, done is
// called with the event's receipt, before Do returns, by its goroutine and in the order of the
// calls. If the transaction fails, done is not called.
func (x *outputs) SendTo(ctx context.Context, stream string, partition int32, v *View, done func(Receipt)) {
	if done == nil {
		x.p.SendTo(ctx, stream, partition, v, x.told)
		return
	}
	o := &output{done: done}
	x.sent = append(x.sent, o)
	x.p.SendTo(ctx, stream, partition, v, func(r Receipt, err error) {
		if o.at = r; err == nil && r.Offset < 0 {
			err = fmt.Errorf("stream %s, partition %d: Kafka did not return the offset of an event", r.Stream, r.Partition)
		}
		x.told(r, err)
	})
}

// outputsOf returns empty outputs. All events use one method value, because each use of
// p.failUnsent would allocate another one.
func outputsOf(p *Producer) outputs { return outputs{p: p, told: p.failUnsent} }

// failUnsent makes the transaction fail if an event was not sent.
func (p *Producer) failUnsent(_ Receipt, err error) {
	if err != nil {
		p.tx.poison(err)
	}
}

// callDone calls the done functions with the receipts. The flush before the commit has waited for
// all answers.
func (x *outputs) callDone() {
	for _, o := range x.sent {
		o.done(o.at)
	}
}

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
	old, _ := t.identity()
	id, err := retryUntil(ctx, func(ctx context.Context) (identity, error) { return t.b.initProducer(ctx, t.id, old) })
	if errors.Is(err, kafka.InvalidProducerIDMapping) { // Kafka forgot the id after a week without transactions, so no process holds it
		return t.open(ctx)
	}
	if err == nil && id.producer == old.producer && id.epoch != old.epoch+1 {
		err = kafka.ProducerFenced
	}
	if err != nil {
		return fmt.Errorf("open transactions as %s: %w", t.id, err)
	}
	t.takeIdentity(id)
	return t.endHanging(ctx)
}
