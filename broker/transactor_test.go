package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev/broker/internal/wire"
)

// openTransaction returns a transactor and a delivery with the events a and b.
func openTransaction(t *testing.T) (*kfake.Cluster, *Broker, *Transactor, *Delivery) {
	t.Helper()
	b, k := openFake(t, kfake.SeedTopics(1, "prod.events", "prod.out", "prod.dead-letters"))
	publishAll(t, b, "events", "a", "b")
	c, x := openTransactor(t, b, nil)
	d, err := c.Poll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return k, b, x, d
}

// A member that the group has just forgotten has no generation to commit in. It must not commit
// without one, because Kafka accepts that from any client.
func TestForgottenMemberCommitsNothing(t *testing.T) {
	k, b, x, d := openTransaction(t)
	sent := k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Count: -1, Observe: true})
	forgotten := &Transactor{c: &Consumer{b: b, member: newMember(x.c)}}
	err := forgotten.commitOffsets(t.Context(), x.newTx(x.all[0]), map[wire.TopicPartition]*txPlace{d.part.tp: {p: d.part, epoch: d.epoch, next: d.next}})
	if !errors.Is(err, errTakenAway) || sent.Hits() > 0 {
		t.Errorf("error is %v and %d commits were sent; want that it was taken away, and none", err, sent.Hits())
	}
	d.Done()
}

// Events that a transaction sent before a panic are not part of the next transaction.
func TestTransactionThatPanics(t *testing.T) {
	_, b, x, d := openTransaction(t)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic did not come through")
			}
		}()
		_ = x.Do(t.Context(), func(tx *Tx) error {
			tx.Send(t.Context(), "out", &View{ID: "lost", Source: "/x", Type: "t"})
			if err := tx.p.Flush(t.Context()); err != nil {
				t.Error(err)
			}
			panic("no")
		})
	}()
	err := x.Do(t.Context(), func(tx *Tx) error {
		tx.Send(t.Context(), "out", &View{ID: "kept", Source: "/x", Type: "t"})
		tx.Done(d)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if ids, _ := readBack(t, b, Position{Stream: "out"}); !slices.Equal(ids, []string{"kept"}) {
		t.Errorf("the log holds %v", ids)
	}
}

// Do does not wait for the slot's transactional id longer than its context.
func TestDoWaitsNoLongerThanItsContext(t *testing.T) {
	b, k := openFake(t, kfake.SeedTopics(1, "prod.events", "prod.dead-letters"))
	away := k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Err: kerr.CoordinatorLoadInProgress, Count: -1, TopLevel: true,
		When: func(r kmsg.Request) bool { return r.(*kmsg.InitProducerIDRequest).TransactionalID != nil }})
	_, x := openTransactor(t, b, nil)
	if err := away.Wait(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	outcome := make(chan error, 1)
	go func() { outcome <- x.Do(ctx, func(*Tx) error { return nil }) }()
	select {
	case err := <-outcome:
		if !errors.Is(err, context.Canceled) || !errors.Is(err, ErrAborted) {
			t.Errorf("error is %v", err)
		}
	case <-time.After(hostilePatience):
		t.Error("it waits on")
	}
	away.Remove()
}

// If events of a transaction fail, the transaction is certainly aborted, and its error names the
// reason once. That holds for any number of events, and whether or not Kafka says that they were
// not stored.
func TestTransactionWhoseEventsAreRefused(t *testing.T) {
	k, _, x, d := openTransaction(t)
	k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.UnknownServerError, Count: -1})
	err := x.Do(t.Context(), func(tx *Tx) error {
		for i := range 500 {
			tx.Send(t.Context(), "out", &View{ID: fmt.Sprint(i), Source: "/x", Type: "t"})
		}
		tx.Done(d)
		return nil
	})
	if !errors.Is(err, ErrAborted) || errors.Is(err, ErrInDoubt) {
		t.Errorf("error is %v, want that it was aborted for certain", err)
	}
	if n := strings.Count(err.Error(), "stream out"); n != 1 {
		t.Errorf("the stream is named %d times in %d bytes", n, len(err.Error()))
	}
}

// Kafka gets the configured transaction timeout, or ten seconds.
func TestTransactionTimeout(t *testing.T) {
	b, k := openFake(t)
	var told atomic.Int32
	k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Count: -1, Observe: true, TopLevel: true, When: func(r kmsg.Request) bool {
		told.Store(r.(*kmsg.InitProducerIDRequest).TransactionTimeoutMillis)
		return true
	}})
	for asked, want := range map[time.Duration]int32{0: 10_000, time.Minute: 60_000} {
		b, err := Open(t.Context(), Options{Addr: b.addr.String(), Names: b.names, TransactionTimeout: asked})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.initProducer(t.Context(), "prod.tx", noIdentity, outcomeUnknown); err != nil || told.Load() != want {
			t.Errorf("asked for %s Kafka was told %d ms: %v", asked, told.Load(), err)
		}
		b.Close()
	}
}

// The error of a transaction that took too long says so, whatever code Kafka returned.
func TestTransactionThatTookTooLong(t *testing.T) {
	_, _, x, d := openTransaction(t)
	if err := x.waitTurn(t.Context()); err != nil {
		t.Fatal(err)
	}
	tx := x.newTx(x.all[0])
	tx.began, tx.done = time.Now().Add(-hostilePatience-time.Second), []*Delivery{d}
	err := x.abort(t.Context(), tx, kafka.InvalidProducerEpoch)
	x.leave()
	if !errors.Is(err, kafka.InvalidProducerEpoch) || !strings.Contains(err.Error(), "put less into one") {
		t.Errorf("error is %v", err)
	}
}

func TestMayHaveEnded(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{io.EOF, true},
		{context.DeadlineExceeded, true},
		{kafka.ProducerFenced, false},
		{kafka.InvalidProducerEpoch, false},
		{kafka.InvalidTransactionState, false},
		{kafka.ConcurrentTransactions, false},
		{kafka.GroupCoordinatorNotAvailable, true},
		{kafka.NotCoordinatorForGroup, true},
		{kafka.Unknown, true},
	} {
		if got := mayHaveEnded(named("commit transaction", "x", c.err)); got != c.want {
			t.Errorf("%v: %v", c.err, got)
		}
	}
}

// The error names only the partition at fault, not those that Kafka skipped because of it.
func TestRefusedPartitions(t *testing.T) {
	answer := func(codes ...kafka.Error) []byte {
		topic := kmsg.AddPartitionsToTxnResponseTopic{Topic: "t"}
		for i, code := range codes {
			topic.Partitions = append(topic.Partitions, kmsg.AddPartitionsToTxnResponseTopicPartition{Partition: int32(i), ErrorCode: int16(code)})
		}
		return (&kmsg.AddPartitionsToTxnResponse{Version: 1, Topics: []kmsg.AddPartitionsToTxnResponseTopic{topic}}).AppendTo(nil)
	}
	if err := refusedPartitions(answer(0, 0)); err != nil {
		t.Errorf("all added: %v", err)
	}
	if err := refusedPartitions(answer(notAttempted, kafka.UnknownTopicOrPartition)); !isTransient(err) || errors.Is(err, notAttempted) || !strings.Contains(err.Error(), "t/1") {
		t.Errorf("one unknown: %v", err)
	}
	if err := refusedPartitions(answer(notAttempted)); err == nil || isTransient(err) {
		t.Errorf("none added: %v", err)
	}
	if err := refusedPartitions(answer(0, kafka.ConcurrentTransactions)); !errors.Is(err, kafka.ConcurrentTransactions) {
		t.Errorf("one waits: %v", err)
	}
}

// A transaction must not commit past a delivery that the caller forgot.
func TestTransactionThatLeavesADeliveryOut(t *testing.T) {
	_, b, x, first := openTransaction(t)
	poll := func(id string) *Delivery {
		publishAll(t, b, "events", id)
		d, err := x.c.Poll(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	second, third := poll("c"), poll("d")
	give := func(all ...*Delivery) error {
		return x.Do(t.Context(), func(tx *Tx) error {
			for _, d := range all {
				tx.Done(d)
			}
			return nil
		})
	}
	err := give(first, third)
	second.Done() // has no effect, because its partition is read again
	if !errors.Is(err, ErrAborted) || !strings.Contains(err.Error(), "left out") {
		t.Fatalf("error is %v", err)
	}
	for n := 0; n < 4; {
		d, err := x.c.Poll(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n += len(d.Events)
		if err := give(d); err != nil {
			t.Error(err)
		}
	}
	if at := committedBy(t, b); at < 4 {
		t.Errorf("the group is at %d", at)
	}
}

// If Kafka has ended a rebalance and the member does not know it yet, a commit of offsets waits
// until it does. Without a rebalance under way, the member has been fenced.
func TestTransactionOutlivesARebalance(t *testing.T) {
	for _, between := range []bool{true, false} {
		c, _, tx, d := openTransaction(t)
		f := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Err: kerr.IllegalGeneration, Count: 3})
		tx.c.member.between.Store(between)
		err := tx.Do(t.Context(), func(x *Tx) error {
			x.Done(d)
			return nil
		})
		tx.c.member.between.Store(false)
		if between && (err != nil || f.Hits() != 3) || !between && (!errors.Is(err, ErrAborted) || f.Hits() != 1) {
			t.Errorf("between generations: %t; %d refusals: %v", between, f.Hits(), err)
		}
	}
}

func (h *hostileBroker) exclusive() *Exclusive {
	h.Helper()
	e, err := h.b.Exclusive(h.ctx(), "clock", ProducerOptions{})
	h.must(err)
	h.Cleanup(func() { _ = e.Close(h.ctx()) })
	return e
}

// sendTick sends an event and marks its number.
func (h *hostileBroker) sendTick(e *Exclusive, n int) error {
	return e.Do(h.ctx(), func(x *ExclusiveTx) error {
		x.SendTo(h.ctx(), "out", 0, hostileEvent(n), nil)
		x.Mark("clock", Position{Stream: "events", Offset: int64(n + 1)})
		return nil
	})
}

func (h *hostileBroker) ticked() int {
	h.Helper()
	all, err := h.b.Committed(h.ctx(), "clock", []Position{{Stream: "events"}})
	h.must(err)
	return int(max(0, all[0].Offset))
}

// wantTicks checks that the log has as many events as are marked, and that the next transaction
// succeeds.
func (h *hostileBroker) wantTicks(e *Exclusive, n int) {
	h.Helper()
	if at := h.ticked(); at != n {
		h.Errorf("%d are marked, want %d", at, n)
	}
	h.must(h.sendTick(e, n))
	ids := 0
	_, err := h.b.ReadBack(h.ctx(), []Position{{Stream: "out"}}, func(*Incoming) { ids++ })
	if h.must(err); ids != n+1 {
		h.Errorf("%d are on the log, want %d", ids, n+1)
	}
}

// If any step of a transaction is refused once, nothing of it is visible and the next one succeeds.
// The name is not opened again, because that could take it from another process.
func TestExclusiveSurvivesFailures(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault kfake.Fault
	}{
		{"sequence lost", kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.OutOfOrderSequenceNumber}},
		{"id forgotten", kfake.Fault{Keys: []kmsg.Key{kmsg.AddPartitionsToTxn}, Err: kerr.InvalidProducerIDMapping}},
		{"group refused", kfake.Fault{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Err: kerr.GroupAuthorizationFailed}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHostile(t, 1)
			e := h.exclusive()
			h.must(h.sendTick(e, 0))
			anew := h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Count: -1, Observe: true, TopLevel: true,
				When: func(r kmsg.Request) bool {
					init := r.(*kmsg.InitProducerIDRequest)
					return init.TransactionalID != nil && init.ProducerID < 0
				}})
			h.kafka.Fault(c.fault)
			if err := h.sendTick(e, 1); !errors.Is(err, ErrAborted) || errors.Is(err, ErrInDoubt) || errors.Is(err, ErrSuperseded) {
				t.Errorf("error is %v", err)
			}
			h.wantTicks(e, 1)
			if n := anew.Hits(); n > 0 {
				t.Errorf("the name was taken %d times", n)
			}
		})
	}
}

// If the id cannot be opened again for a while, the next transaction does it.
func TestExclusiveOpensLater(t *testing.T) {
	h := newHostile(t, 1)
	e := h.exclusive()
	h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.OutOfOrderSequenceNumber})
	h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Err: kerr.ClusterAuthorizationFailed, TopLevel: true, Count: 1})
	if err := h.sendTick(e, 0); !errors.Is(err, ErrAborted) || !errors.Is(err, kafka.ClusterAuthorizationFailed) {
		t.Errorf("error is %v", err)
	}
	h.wantTicks(e, 0)
}

// An end without an answer is retried, and in every case there is one tick.
func TestExclusiveInDoubt(t *testing.T) {
	for lost := 1; lost <= 3; lost++ {
		t.Run(fmt.Sprint(lost, " answers lost"), func(t *testing.T) {
			h := newHostile(t, 1)
			e := h.exclusive()
			n := 0
			h.kafka.ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
				h.kafka.KeepControl()
				if n++; n <= lost {
					return nil, errors.New("closed"), true
				}
				return nil, nil, false
			})
			h.must(h.sendTick(e, 0))
			h.wantTicks(e, 1)
		})
	}
}

// If Kafka reports a fence at any step, that is final, and no further request is sent.
func TestExclusiveIsSuperseded(t *testing.T) {
	for _, key := range []kmsg.Key{kmsg.AddPartitionsToTxn, kmsg.Produce, kmsg.AddOffsetsToTxn, kmsg.TxnOffsetCommit, kmsg.EndTxn} {
		t.Run(key.Name(), func(t *testing.T) {
			h := newHostile(t, 1)
			e := h.exclusive()
			fence := kerr.ProducerFenced
			if key == kmsg.Produce {
				fence = kerr.InvalidProducerEpoch
			}
			h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Err: fence})
			if err := h.sendTick(e, 0); !errors.Is(err, ErrSuperseded) || !errors.Is(err, ErrAborted) || errors.Is(err, ErrInDoubt) {
				t.Errorf("error is %v", err)
			}
			asked := h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID, kmsg.EndTxn, kmsg.AddPartitionsToTxn}, Count: -1, Observe: true})
			if err := h.sendTick(e, 0); !errors.Is(err, ErrSuperseded) || asked.Hits() > 0 {
				t.Errorf("error is %v, and Kafka was asked %d times", err, asked.Hits())
			}
		})
	}
}

// The end gets no answer, and then another process has the name. The outcome of this transaction is
// unknown, and later ones fail.
func TestExclusiveIsSupersededInDoubt(t *testing.T) {
	h := newHostile(t, 1)
	e := h.exclusive()
	n := 0
	h.kafka.ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
		h.kafka.KeepControl()
		if n++; n == 1 {
			return nil, errors.New("closed"), true
		}
		return nil, nil, false
	})
	h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, Err: kerr.ProducerFenced})
	if err := h.sendTick(e, 0); !errors.Is(err, ErrSuperseded) || !errors.Is(err, ErrInDoubt) {
		t.Errorf("error is %v", err)
	}
	if err := h.sendTick(e, 0); !errors.Is(err, ErrSuperseded) || errors.Is(err, ErrInDoubt) {
		t.Errorf("error is %v", err)
	}
}

// Another process takes the name between the end of a failed transaction and the renewal. It is
// detected even on a server that does not refuse the old epoch.
func TestRenewTellsOfATakeover(t *testing.T) {
	h := newHostile(t, 1)
	e := h.exclusive()
	e.p.tx.settled = true
	h.exclusive()
	if err := e.p.tx.nextEpoch(h.ctx()); !isFenced(err) {
		t.Errorf("error is %v", err)
	}
}

// Two transactional ids take turns, so that a transaction does not wait for the markers of the former
// one. A member that fences the slot takes both.
func TestTwoTransactionalIDsTakeTurns(t *testing.T) {
	k, b, x, d := openTransaction(t)
	x.takeSlot() // each id that is opened ends an empty transaction
	ended, opened := make(chan string, 10), make(chan string, 10)
	k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, Count: -1, Observe: true, When: func(r kmsg.Request) bool {
		ended <- r.(*kmsg.EndTxnRequest).TransactionalID
		return true
	}})
	for i := range 3 {
		if err := x.Do(t.Context(), func(tx *Tx) error {
			tx.Send(t.Context(), "out", &View{ID: fmt.Sprint(i), Source: "/x", Type: "t"})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	both := b.transactionalIDs("g", 0)
	for i := range 3 {
		if id := <-ended; id != both[i%2] {
			t.Errorf("transaction %d is of %s, want %s", i, id, both[i%2])
		}
	}
	k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Count: -1, Observe: true, When: func(r kmsg.Request) bool {
		opened <- *r.(*kmsg.InitProducerIDRequest).TransactionalID
		return true
	}})
	x.c.member.fence(t.Context(), 0)
	for _, id := range both {
		if got := <-opened; got != id {
			t.Errorf("%s is fenced, want %s", got, id)
		}
	}
	if err := x.Do(t.Context(), func(tx *Tx) error { tx.Done(d); return nil }); !errors.Is(err, ErrAborted) {
		t.Errorf("a fenced member has committed: %v", err)
	}
}

// All events of a transaction are sent at its end, in one request, after one request that adds all
// their partitions.
func TestTransactionSendsAtItsEnd(t *testing.T) {
	b, k := openFake(t, kfake.SeedTopics(8, "prod.events", "prod.out"), kfake.SeedTopics(1, "prod.dead-letters"))
	_, x := openTransactor(t, b, nil)
	x.takeSlot() // each id that is opened ends an empty transaction
	counts := map[kmsg.Key]*kfake.FaultHandle{}
	for _, key := range []kmsg.Key{kmsg.AddPartitionsToTxn, kmsg.Produce, kmsg.EndTxn} {
		counts[key] = k.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Count: -1, Observe: true})
	}
	err := x.Do(t.Context(), func(tx *Tx) error {
		for i := range int32(8) {
			tx.SendTo(t.Context(), "out", i, &View{ID: "a", Source: "/x", Type: "t"}, nil)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for key, fault := range counts {
		if fault.Hits() != 1 {
			t.Errorf("%d requests of kind %v", fault.Hits(), key)
		}
	}
}
