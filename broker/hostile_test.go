package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev"
)

// hostileBroker is a broker on a server that can be made to misbehave.
type hostileBroker struct {
	*testing.T
	kafka *kfake.Cluster
	b     *Broker
}

const hostilePatience = 2 * time.Minute

// hostileSession is long enough that a busy machine does not lose its session. Events of a lost
// session would come again.
const hostileSession = 20 * time.Second

func newHostile(t *testing.T, brokers int) *hostileBroker {
	t.Helper()
	t.Parallel()
	cl, err := kfake.NewCluster(kfake.NumBrokers(brokers), kfake.GroupMinSessionTimeout(100*time.Millisecond),
		kfake.SeedTopics(2, "tidemill.events", "tidemill.out", "tidemill.dead-letters"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	names, err := tidemill.NewNames("")
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(t.Context(), Options{Addr: strings.Join(cl.ListenAddrs(), ","), Names: names, TransactionTimeout: hostilePatience})
	if err != nil {
		t.Fatal(err)
	}
	// Tests count requests, or wait for a certain answer. A busy machine must not repeat a request
	// because of a timeout.
	b.requestTimeout = hostilePatience
	b.client.Timeout = hostilePatience
	t.Cleanup(func() { b.Close() })
	return &hostileBroker{t, cl, b}
}

func (h *hostileBroker) ctx() context.Context {
	ctx, cancel := context.WithTimeout(h.Context(), hostilePatience)
	h.Cleanup(cancel)
	return ctx
}

func (h *hostileBroker) must(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

func hostileEvent(n int) *View {
	return &View{ID: fmt.Sprint(n), Source: "/hostile", Type: "hostile", Subject: fmt.Sprint("key-", n%4), Data: []byte("x")}
}

// publish sends events in portions, so that there is more than one batch, and returns their
// receipts and errors. With a linger, each portion is sent as a whole, however slowly it is
// produced.
func (h *hostileBroker) publish(from, to int, o ProducerOptions) (all []Receipt, errs []error) {
	h.Helper()
	p, err := h.b.Producer(o)
	h.must(err)
	if o.Linger > 0 {
		p.opt.Linger = time.Hour
	}
	all, errs = make([]Receipt, to-from), make([]error, to-from)
	var wg sync.WaitGroup
	for n := from; n < to; n++ {
		wg.Add(1)
		p.Send(h.ctx(), "events", hostileEvent(n), func(r Receipt, err error) {
			all[n-from], errs[n-from] = r, err
			wg.Done()
		})
		if n%10 == 0 {
			h.must(p.Flush(h.ctx())) // ends a linger
		}
	}
	h.must(p.Flush(h.ctx()))
	wg.Wait()
	h.must(p.Close(h.ctx()))
	return all, errs
}

// wantEvents checks, with a group, that n events are on the stream, each once and in the order of
// their keys.
func (h *hostileBroker) wantEvents(group string, n int) {
	h.Helper()
	c, err := h.b.Consumer(h.ctx(), ConsumerOptions{Group: group, Streams: []string{"events"}, SessionTimeout: hostileSession})
	h.must(err)
	seen, last := map[string]bool{}, map[string]int{}
	for len(seen) < n {
		d, err := c.Poll(h.ctx())
		if err != nil {
			h.Fatalf("%d of %d events have come: %v", len(seen), n, err)
		}
		for i := range d.Events {
			e := &d.Events[i]
			id := string([]byte(e.ID))
			var number int
			fmt.Sscan(id, &number)
			subject := string([]byte(e.Subject))
			if seen[id] {
				h.Errorf("%s is stored twice", id)
			}
			if before, ok := last[subject]; ok && before > number {
				h.Errorf("%d comes after %d", number, before)
			}
			seen[id], last[subject] = true, number
		}
		d.Done()
	}
	h.must(c.Close(h.ctx()))
}

// If a produce request fails in any way, its events are stored once and in order.
func TestHostileProduce(t *testing.T) {
	for _, e := range []*kerr.Error{kerr.NotLeaderForPartition, kerr.LeaderNotAvailable, kerr.RequestTimedOut, kerr.NotEnoughReplicas,
		kerr.NotEnoughReplicasAfterAppend, kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID, kerr.InvalidProducerEpoch,
		kerr.InvalidProducerIDMapping, kerr.KafkaStorageError, kerr.NetworkException, kerr.UnknownTopicOrPartition, kerr.CorruptMessage,
		kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp, kerr.FencedLeaderEpoch} {
		t.Run(e.Message, func(t *testing.T) {
			h := newHostile(t, 1)
			count := 2
			if e == kerr.MessageTooLarge || e == kerr.RecordListTooLarge || e == kerr.InvalidRecord || e == kerr.InvalidTimestamp {
				count = 1 // the batch is taken apart, and its events succeed
			}
			_, errs := h.publish(0, 20, ProducerOptions{})
			fault := h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "tidemill.events", Err: e, Count: count,
				When: func(r kmsg.Request) bool { return count == 2 || manyRecords(r) }})
			_, more := h.publish(20, 100, ProducerOptions{Linger: 5 * time.Millisecond})
			for n, err := range append(errs, more...) {
				if err != nil {
					t.Errorf("event %d: %v", n, err)
				}
			}
			if fault.Hits() == 0 {
				t.Error("nothing was hit")
			}
			h.wantEvents("g", 100)
		})
	}
}

// manyRecords reports whether every batch of a request has more than one record.
func manyRecords(r kmsg.Request) bool {
	for _, topic := range r.(*kmsg.ProduceRequest).Topics {
		for _, p := range topic.Partitions {
			var b kmsg.RecordBatch
			if b.ReadFrom(p.Records) != nil || b.NumRecords < 2 {
				return false
			}
		}
	}
	return true
}

// After a permanent refusal the event fails, and only that event.
func TestHostileProduceRefused(t *testing.T) {
	for _, c := range []struct {
		err  *kerr.Error
		want error
	}{
		{kerr.TopicAuthorizationFailed, kafka.TopicAuthorizationFailed},
		{kerr.UnknownServerError, ErrInDoubt},
		{kerr.PolicyViolation, kafka.PolicyViolation},
	} {
		t.Run(c.err.Message, func(t *testing.T) {
			h := newHostile(t, 1)
			p, err := h.b.Producer(ProducerOptions{})
			h.must(err)
			_, err = p.Publish(h.ctx(), "events", hostileEvent(0))
			h.must(err)
			h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: c.err})
			if _, err = p.Publish(h.ctx(), "events", hostileEvent(4)); !errors.Is(err, c.want) {
				t.Errorf("error is %v, want %v", err, c.want)
			}
			for n := 8; n < 20; n += 4 {
				_, err = p.Publish(h.ctx(), "events", hostileEvent(n))
				h.must(err)
			}
			h.must(p.Close(h.ctx()))
			h.wantEvents("g", 4)
		})
	}
}

// UNKNOWN_SERVER_ERROR may come after the batch was stored. Kafka must then not take the next event
// for a repetition of it.
func TestHostileProduceStoredAndDenied(t *testing.T) {
	h := newHostile(t, 1)
	h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicasAfterAppend}) // stored, and then
	second := false
	h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.UnknownServerError, When: func(kmsg.Request) bool {
		defer func() { second = true }()
		return second
	}})
	p, err := h.b.Producer(ProducerOptions{})
	h.must(err)
	if _, err = p.Publish(h.ctx(), "events", hostileEvent(0)); !errors.Is(err, ErrInDoubt) {
		t.Errorf("error is %v, want that it is in doubt", err)
	}
	_, err = p.Publish(h.ctx(), "events", hostileEvent(4))
	h.must(err)
	h.must(p.Close(h.ctx()))
	h.wantEvents("g", 2)
}

// The connection closes before or after the request is applied.
func TestHostileProduceConnectionLost(t *testing.T) {
	for _, applied := range []bool{false, true} {
		t.Run(fmt.Sprint("applied ", applied), func(t *testing.T) {
			h := newHostile(t, 1)
			if applied {
				h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.RequestTimedOut})
			}
			n := 0
			h.kafka.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
				h.kafka.KeepControl()
				if n++; n == 2 || n == 5 {
					return nil, errors.New("closed"), true
				}
				return nil, nil, false
			})
			_, errs := h.publish(0, 60, ProducerOptions{})
			h.must(errors.Join(errs...))
			h.wantEvents("g", 60)
		})
	}
}

// If a leader moves under load, no event is lost and the order stays.
func TestHostileMovingLeader(t *testing.T) {
	h := newHostile(t, 3)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, errs := h.publish(0, 3000, ProducerOptions{})
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
	}()
	moved := 0
	for tick := time.NewTicker(10 * time.Millisecond); ; moved++ {
		select {
		case <-tick.C:
			h.must(h.kafka.MoveTopicPartition("tidemill.events", int32(moved%2), int32(moved%3)))
			continue
		case <-done:
		}
		break
	}
	t.Logf("leaders moved %d times", moved)
	h.wantEvents("g", 3000)
}

// A dead letter is tried until Kafka takes it, however long Kafka cannot. An outage must not end reading.
func TestHostileDeadLetter(t *testing.T) {
	h := newHostile(t, 1)
	c, err := h.b.Consumer(h.ctx(), ConsumerOptions{Group: "g", Streams: []string{"events"}, SessionTimeout: hostileSession})
	h.must(err)
	c.letters.p.opt.Timeout = time.Millisecond
	h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "tidemill.dead-letters", Err: kerr.NotEnoughReplicas, Count: 1000,
		When: func(kmsg.Request) bool { return c.letters.p.counts.failed.Load() == 0 }})
	_, err = h.b.client.Produce(h.ctx(), &kafka.ProduceRequest{Topic: "tidemill.events", RequiredAcks: kafka.RequireAll,
		Records: kafka.NewRecordReader(kafka.Record{Value: kafka.NewBytes([]byte("no event"))})})
	h.must(err)
	ended := make(chan error, 1)
	go func() {
		_, err := c.Poll(h.ctx())
		ended <- err
	}()
	dead, err := h.b.Consumer(h.ctx(), ConsumerOptions{Streams: []string{tidemill.StreamDeadLetters}})
	h.must(err)
	_, err = dead.Poll(h.ctx())
	h.must(errors.Join(err, dead.Close(h.ctx()), c.Close(h.ctx())))
	if err := <-ended; !errors.Is(err, ErrClosed) {
		t.Errorf("reading ended: %v", err)
	}
}

// If a fetch fails in any way, every event comes once.
func TestHostileFetch(t *testing.T) {
	for _, e := range []*kerr.Error{kerr.NotLeaderForPartition, kerr.OffsetNotAvailable, kerr.KafkaStorageError, kerr.CorruptMessage,
		kerr.UnknownTopicOrPartition, kerr.FencedLeaderEpoch, kerr.OffsetOutOfRange, kerr.UnknownLeaderEpoch} {
		t.Run(e.Message, func(t *testing.T) {
			h := newHostile(t, 1)
			_, errs := h.publish(0, 50, ProducerOptions{})
			h.must(errors.Join(errs...))
			h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "tidemill.events", Err: e, Count: 3})
			h.wantEvents("g", 50)
		})
	}
}

// If the group's coordinator fails in any way, every event comes once to a single member that keeps
// its session.
func TestHostileGroup(t *testing.T) {
	for _, c := range []struct {
		key kmsg.Key
		err *kerr.Error
	}{
		{kmsg.JoinGroup, kerr.CoordinatorNotAvailable}, {kmsg.JoinGroup, kerr.NotCoordinator}, {kmsg.JoinGroup, kerr.CoordinatorLoadInProgress},
		{kmsg.JoinGroup, kerr.UnknownMemberID}, {kmsg.SyncGroup, kerr.RebalanceInProgress}, {kmsg.SyncGroup, kerr.NotCoordinator},
		{kmsg.SyncGroup, kerr.UnknownMemberID}, {kmsg.OffsetFetch, kerr.UnstableOffsetCommit}, {kmsg.OffsetFetch, kerr.NotCoordinator},
		{kmsg.OffsetCommit, kerr.RebalanceInProgress}, {kmsg.OffsetCommit, kerr.NotCoordinator}, {kmsg.OffsetCommit, kerr.CoordinatorNotAvailable},
		{kmsg.FindCoordinator, kerr.CoordinatorNotAvailable}, {kmsg.ListOffsets, kerr.NotLeaderForPartition}, {kmsg.Heartbeat, kerr.NotCoordinator},
		{kmsg.Heartbeat, kerr.RebalanceInProgress}, {kmsg.InitProducerID, kerr.CoordinatorLoadInProgress},
	} {
		t.Run(c.key.Name()+" "+c.err.Message, func(t *testing.T) {
			h := newHostile(t, 1)
			h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{c.key}, Err: c.err, Count: 2})
			h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{c.key}, Err: c.err, Count: 2, TopLevel: true})
			_, errs := h.publish(0, 30, ProducerOptions{})
			h.must(errors.Join(errs...))
			h.wantEvents("g", 30)
		})
	}
}

// A member that the group has forgotten joins again and reads on from the commit.
func TestHostileForgotten(t *testing.T) {
	for _, c := range []struct {
		key kmsg.Key
		err *kerr.Error
	}{{kmsg.Heartbeat, kerr.UnknownMemberID}, {kmsg.Heartbeat, kerr.IllegalGeneration}, {kmsg.OffsetCommit, kerr.IllegalGeneration}} {
		t.Run(c.key.Name()+" "+c.err.Message, func(t *testing.T) {
			h := newHostile(t, 1)
			c1, err := h.b.Consumer(h.ctx(), ConsumerOptions{Group: "g", Streams: []string{"events"}, SessionTimeout: time.Second, CommitEvery: 10 * time.Millisecond})
			h.must(err)
			_, errs := h.publish(0, 20, ProducerOptions{})
			h.must(errors.Join(errs...))
			seen := map[string]int{}
			for want, next := 20, 20; len(seen) < want; {
				d, err := c1.Poll(h.ctx())
				h.must(err)
				for i := range d.Events {
					seen[string([]byte(d.Events[i].ID))]++
				}
				if len(seen) == 20 && next == 20 {
					f := h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{c.key}, Err: c.err}, kfake.Fault{Keys: []kmsg.Key{c.key}, Err: c.err, TopLevel: true})
					d.Done() // not earlier, because the offset could be committed before the fault
					_, errs := h.publish(20, 40, ProducerOptions{})
					h.must(errors.Join(errs...))
					h.must(f.Wait(h.ctx(), 1))
					want, next = 40, 40
					continue
				}
				d.Done()
			}
			h.must(c1.Close(h.ctx()))
			h.wantEvents("again", 40)
		})
	}
}

// The end of a transaction gets no answer. Applied or not, each input has one output.
func TestHostileEndTxnInDoubt(t *testing.T) {
	for _, applied := range []bool{false, true} {
		t.Run(fmt.Sprint("applied ", applied), func(t *testing.T) {
			h := newHostile(t, 1)
			_, errs := h.publish(0, 40, ProducerOptions{})
			h.must(errors.Join(errs...))
			c, err := h.b.Consumer(h.ctx(), ConsumerOptions{Group: "tx", Streams: []string{"events"}, SessionTimeout: time.Second})
			h.must(err)
			x, err := c.Transactor(ProducerOptions{})
			h.must(err)
			n := 0
			h.kafka.ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
				h.kafka.KeepControl()
				n++
				if n == 1 && !applied || n == 2 && applied {
					return nil, errors.New("closed"), true
				}
				return nil, nil, false
			})
			for done := int64(0); done < 40; done = h.committedEvents("tx") {
				ctx, cancel := context.WithTimeout(h.ctx(), 500*time.Millisecond)
				d, err := c.Poll(ctx)
				cancel()
				if errors.Is(err, context.DeadlineExceeded) && h.Context().Err() == nil {
					continue
				}
				h.must(err)
				err = x.Do(h.ctx(), func(tx *Tx) error {
					for i := range d.Events {
						tx.Send(h.ctx(), "out", &d.Events[i].View)
					}
					tx.Done(d)
					return nil
				})
				if err != nil && !errors.Is(err, ErrAborted) {
					t.Fatal(err)
				}
			}
			h.must(x.Close(h.ctx()))
			h.must(c.Close(h.ctx()))
			out, err := h.b.Consumer(h.ctx(), ConsumerOptions{Streams: []string{"out"}})
			h.must(err)
			seen := map[string]bool{}
			for len(seen) < 40 {
				d, err := out.Poll(h.ctx())
				h.must(err)
				for i := range d.Events {
					id := string([]byte(d.Events[i].ID))
					if seen[id] {
						t.Errorf("%s is stored twice", id)
					}
					seen[id] = true
				}
				d.Done()
			}
			h.must(out.Close(h.ctx()))
		})
	}
}

// committedEvents returns the number of events below the group's committed offset.
func (h *hostileBroker) committedEvents(group string) (n int64) {
	h.Helper()
	all, err := h.b.committedOffsets(h.ctx(), h.b.names.Group(group), nil)
	h.must(err)
	for _, o := range all {
		n += max(o.Offset, 0)
	}
	return n
}

// wireCut is a broker's network, which can be cut. After that the broker can exchange as little
// with the server as a killed process.
type wireCut struct {
	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

func (c *wireCut) through(b *Broker) {
	dial := b.transport.Dial
	b.transport.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		c.mu.Lock()
		defer c.mu.Unlock()
		if err == nil && c.cut {
			conn.Close()
			err = syscall.ECONNREFUSED
		}
		if err == nil {
			c.conns = append(c.conns, conn)
		}
		return conn, err
	}
}

func (c *wireCut) now() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = true
	for _, conn := range c.conns {
		conn.Close()
	}
}

// A member dies with open events: the member that takes over gets them.
func TestHostileDeath(t *testing.T) {
	h := newHostile(t, 1)
	other, err := Open(h.ctx(), Options{Addr: h.kafka.ListenAddrs()[0], Names: h.b.names})
	h.must(err)
	var wire wireCut
	wire.through(other)
	o := ConsumerOptions{Group: "g", Streams: []string{"events"}, SessionTimeout: time.Second}
	dying, err := other.Consumer(h.ctx(), o)
	h.must(err)
	_, errs := h.publish(0, 60, ProducerOptions{})
	h.must(errors.Join(errs...))
	d, err := dying.Poll(h.ctx())
	h.must(err)
	d.Events[0].Done()
	wire.now()
	t0 := time.Now()
	c, err := h.b.Consumer(h.ctx(), o)
	h.must(err)
	seen := map[string]bool{}
	for len(seen) < 59 {
		d, err := c.Poll(h.ctx())
		h.must(err)
		for i := range d.Events {
			seen[string([]byte(d.Events[i].ID))] = true
		}
		d.Done()
	}
	t.Logf("with a session of 1s all was taken over and read %s after the death", time.Since(t0).Round(time.Millisecond))
	h.must(c.Close(h.ctx()))
	gone, cancel := context.WithCancel(h.ctx())
	cancel()
	_ = dying.Close(gone)
}
