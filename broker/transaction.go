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
	settled   bool          // whether the open transaction has been ended and a new epoch requested
	checked   time.Time     // time of the last search for hanging transactions
	checkedID string        // id at that time
	ended     outcome       // of the last transaction before the id was opened, if a search follows
	search    bool          // whether a search for hanging transactions follows the opening of the id
	first     chan struct{} // closed when the open transaction has a partition; nil if nothing waits for that
}

// open fences the former user of the transactional id and takes an identity.
func (t *transaction) open(ctx context.Context) error {
	var w backoff
	for {
		err := t.learnOutcome(ctx)
		id := noIdentity
		if err == nil {
			id, err = t.b.initProducer(ctx, t.id, noIdentity, t.ended)
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
	return t.endAs(ctx, id, commit)
}

func (t *transaction) endAs(ctx context.Context, id identity, commit bool) error {
	err := t.ask(ctx, t.coordinator(), func(f *wire.Frame) { f.EndTransaction(t.b.names.Install(), t.as(id), commit) })
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
