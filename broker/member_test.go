package broker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev/broker/internal/wire"
	"tidemill.dev/broker/retry"
)

// A member learns from its heartbeat that another wants to join, and makes room for it well before
// the session ends.
func TestMembersMakeRoom(t *testing.T) {
	b, _ := openFake(t, kfake.SeedTopics(6, "prod.events", "prod.dead-letters"))
	ctx, cancel := context.WithTimeout(t.Context(), hostilePatience)
	defer cancel()
	taken := make(chan int, 10)
	join := func() {
		c, err := b.Consumer(ctx, ConsumerOptions{Group: "g", Streams: []string{"events"},
			Assigned: func(_ context.Context, all []Position) ([]Position, error) { taken <- len(all); return nil, nil }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	join()
	if n := <-taken; n != 6 {
		t.Fatalf("the first takes %d of 6", n)
	}
	join()
	select {
	case n := <-taken:
		if n != 3 {
			t.Errorf("the second takes %d of 6", n)
		}
	case <-ctx.Done():
		t.Fatal("the second gets nothing")
	}
}

// A waiting member is watched for a quarter more than a session. The session is long enough for a
// busy machine.
const (
	waitingSession = 4 * time.Second
	beatsOfWaiting = heartbeatsInLife * 5 / 4
)

// A member sends heartbeats while it waits for the leader's assignment, which may take longer than
// a session.
func TestMemberBeatsWhileItWaits(t *testing.T) {
	t.Parallel()
	b, c := openFake(t, kfake.SeedTopics(1, "prod.events", "prod.dead-letters"), kfake.GroupMinSessionTimeout(time.Second))
	leader := &rawMember{t: t, addr: c.ListenAddrs()[0]}
	leader.join()
	leader.sync()
	leaderID := leader.id // the leader keeps its id
	var joins, beats atomic.Int32
	enough := make(chan struct{})
	c.Control(func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		switch r := r.(type) {
		case *kmsg.JoinGroupRequest:
			joins.Add(1)
		case *kmsg.HeartbeatRequest:
			if r.MemberID != leaderID && beats.Add(1) == beatsOfWaiting {
				close(enough)
			}
		}
		return nil, nil, false
	})
	member, err := b.Consumer(t.Context(), ConsumerOptions{Group: "g", Streams: []string{"events"}, SessionTimeout: waitingSession})
	if err != nil {
		t.Fatal(err)
	}
	defer member.Close(context.Background())
	for c.GroupInfo("prod.g").State != "PreparingRebalance" {
		if err := retry.Sleep(t.Context(), time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	leader.join()
	before := joins.Load()
	select {
	case <-enough:
	case <-time.After(hostilePatience):
		t.Fatalf("%d heartbeats come from who waits", beats.Load())
	}
	leader.sync()
	if after := joins.Load(); after != before {
		t.Errorf("the one that waited joined %d times more", after-before)
	}
}

// A member sends heartbeats while it waits for others to join. These may have died while joining,
// which can stay unknown for longer than a session.
func TestMemberBeatsWhileItJoins(t *testing.T) {
	t.Parallel()
	b, c := openFake(t, kfake.SeedTopics(1, "prod.events", "prod.dead-letters"), kfake.GroupMinSessionTimeout(time.Second))
	var beats, joins atomic.Int32
	var called atomic.Bool // set by the rebalance that no other member answers
	enough := make(chan struct{})
	c.Control(func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		switch r := r.(type) {
		case *kmsg.JoinGroupRequest:
			if called.Load() && strings.HasPrefix(r.MemberID, "prod-") {
				joins.Add(1)
			}
		case *kmsg.HeartbeatRequest:
			if joins.Load() > 0 && beats.Add(1) == beatsOfWaiting {
				close(enough)
			}
		}
		return nil, nil, false
	})
	member, err := b.Consumer(t.Context(), ConsumerOptions{Group: "g", Streams: []string{"events"}, SessionTimeout: waitingSession})
	if err != nil {
		t.Fatal(err)
	}
	defer member.Close(context.Background())
	for g := c.GroupInfo("prod.g"); g == nil || g.State != "Stable"; g = c.GroupInfo("prod.g") { // otherwise it would not be the leader
		if err := retry.Sleep(t.Context(), time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	silent, another := &rawMember{t: t, addr: c.ListenAddrs()[0]}, &rawMember{t: t, addr: c.ListenAddrs()[0]}
	silent.join()
	silent.sync()
	called.Store(true)
	joined := make(chan struct{})
	go func() {
		defer close(joined)
		another.join()
	}()
	select {
	case <-enough:
	case <-time.After(hostilePatience):
		t.Errorf("%d heartbeats come from who waits, %d joins", beats.Load(), joins.Load())
	}
	before := joins.Load()
	silent.join()
	<-joined
	if after := joins.Load(); before != 1 || after != 1 {
		t.Errorf("the one that waited joined %d times, then %d", before, after)
	}
}

// rawMember is a member that sends only the requests of the test.
type rawMember struct {
	t          *testing.T
	addr       string
	id         string
	generation int32
}

func (m *rawMember) join() {
	m.t.Helper()
	meta := kmsg.NewConsumerMemberMetadata()
	meta.Version, meta.Topics = 1, []string{"prod.events"}
	p := kmsg.NewJoinGroupRequestProtocol()
	p.Name, p.Metadata = protocolName, meta.AppendTo(nil)
	req := kmsg.NewPtrJoinGroupRequest()
	req.SetVersion(5)
	req.Group, req.ProtocolType, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = "prod.g", protocolType, 60000, 60000
	req.Protocols = append(req.Protocols, p)
	resp := kmsg.NewPtrJoinGroupResponse()
	for req.MemberID = m.id; ; req.MemberID = m.id {
		m.ask(req, resp)
		m.id, m.generation = resp.MemberID, resp.Generation
		if resp.ErrorCode == 0 {
			return
		}
	}
}

func (m *rawMember) sync() {
	m.t.Helper()
	req := kmsg.NewPtrSyncGroupRequest()
	req.SetVersion(3)
	req.Group, req.MemberID, req.Generation = "prod.g", m.id, m.generation
	resp := kmsg.NewPtrSyncGroupResponse()
	m.ask(req, resp)
	if resp.ErrorCode != 0 {
		m.t.Fatal("sync:", resp.ErrorCode)
	}
}

func (m *rawMember) ask(req kmsg.Request, resp kmsg.Response) {
	m.t.Helper()
	conn, err := net.Dial("tcp", m.addr)
	if err != nil {
		m.t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(kmsg.NewRequestFormatter().AppendRequest(nil, req, 1)); err != nil {
		m.t.Fatal(err)
	}
	var size [4]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		m.t.Fatal(err)
	}
	body := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(conn, body); err != nil {
		m.t.Fatal(err)
	}
	resp.SetVersion(req.GetVersion())
	if err := resp.ReadFrom(body[4:]); err != nil {
		m.t.Fatal(err)
	}
}

// crowdedStream creates a stream of six partitions with events in each, and a first member that
// gets all of them. It returns the open delivery of partition 0, which is the first to be taken
// away; the other events have ended.
func crowdedStream(t *testing.T, b *Broker, drain time.Duration) (first *Consumer, kept *Delivery) {
	t.Helper()
	p, err := b.Producer(ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const events = 60
	for n := range events {
		v := hostileEvent(n)
		v.Subject = v.ID
		if _, err := p.Publish(t.Context(), "events", v); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if first, err = b.Consumer(t.Context(), ConsumerOptions{Group: "g", Streams: []string{"events"}, DrainTimeout: drain, CommitEvery: 20 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = first.Close(ctx)
	})
	for n := 0; n < events; {
		d, err := first.Poll(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n += len(d.Events)
		if d.Partition == 0 && kept == nil {
			kept = d
			continue
		}
		d.Done()
	}
	return first, kept
}

// joinMember starts another member and returns the number of partitions in its first assignment.
func joinMember(t *testing.T, b *Broker) int {
	t.Helper()
	taken := make(chan int, 10)
	c, err := b.Consumer(t.Context(), ConsumerOptions{Group: "g", Streams: []string{"events"},
		Assigned: func(_ context.Context, all []Position) ([]Position, error) { taken <- len(all); return nil, nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	select {
	case n := <-taken:
		return n
	case <-time.After(hostilePatience):
		return 0
	}
}

// A slow event delays only its own partition.
func TestSlowEventHoldsUpItsPartitionAlone(t *testing.T) {
	t.Parallel()
	b, _ := openFake(t, kfake.SeedTopics(6, "prod.events", "prod.dead-letters"))
	_, kept := crowdedStream(t, b, time.Minute)
	if n := joinMember(t, b); n != 2 {
		t.Errorf("the second takes %d partitions, want the two that have drained", n)
	}
	kept.Done()
}

// A partition whose offset Kafka refuses is given up when its time is up.
func TestRefusedCommitDoesNotHoldPartitions(t *testing.T) {
	t.Parallel()
	b, cl := openFake(t, kfake.SeedTopics(6, "prod.events", "prod.dead-letters"))
	first, kept := crowdedStream(t, b, 200*time.Millisecond)
	id, _, _, _ := first.member.snapshot()
	cl.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.UnknownTopicOrPartition, Count: -1,
		When: func(r kmsg.Request) bool { return r.(*kmsg.OffsetCommitRequest).MemberID == id }})
	kept.Done()
	if n := joinMember(t, b); n != 3 {
		t.Errorf("the second takes %d partitions of 6", n)
	}
}

// A slow callback during a rebalance does not cost the membership.
func TestMemberBeatsThroughARebalance(t *testing.T) {
	h := newHostile(t, 1)
	f := h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Err: kerr.RebalanceInProgress, TopLevel: true, Count: 5})
	done := make(chan error, 1)
	c, err := h.b.Consumer(h.ctx(), ConsumerOptions{Group: "g", Streams: []string{"events"}, SessionTimeout: 10 * time.Second,
		Assigned: func(ctx context.Context, _ []Position) ([]Position, error) {
			ctx, cancel := context.WithTimeout(ctx, hostilePatience)
			defer cancel()
			done <- f.Wait(ctx, 5)
			return nil, nil
		}})
	h.must(err)
	if err := <-done; err != nil {
		t.Errorf("%d heartbeats came: %v", f.Hits(), err)
	}
	h.must(c.Close(h.ctx()))
}

// slowMember is a member whose hook Assigned takes minutes while slow is set, as that of a dispatcher with
// millions of parked events. A transaction calls it again for a partition with few. It checks that the hooks of one
// partition do not overlap.
type slowMember struct {
	*testing.T
	*Consumer
	slow  *atomic.Bool
	calls atomic.Int32 // calls of Assigned
	left  chan Position

	mu    sync.Mutex
	busy  map[string]bool // streams whose hook runs
	parts map[string]bool // streams of which Assigned has succeeded, and Gone has not been called
}

func joinSlowly(t *testing.T, b *Broker, slow *atomic.Bool, streams ...string) *slowMember {
	t.Helper()
	m := &slowMember{T: t, slow: slow, left: make(chan Position, 10), busy: map[string]bool{}, parts: map[string]bool{}}
	c, err := b.Consumer(t.Context(), ConsumerOptions{Group: "g", Streams: streams, Start: Earliest(), Assigned: m.assigned, Gone: m.gone,
		Leaving: func(_ context.Context, at []Position) {
			for _, p := range at {
				m.left <- p
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	m.Consumer = c
	return m
}

// enter begins a hook, and reports whether all its streams are read here.
func (m *slowMember) enter(at []Position) (read bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	read = true
	for _, p := range at {
		if m.busy[p.Stream] {
			m.Errorf("two hooks run for %s", p.Stream)
		}
		m.busy[p.Stream] = true
		read = read && m.parts[p.Stream]
	}
	return read
}

// exit ends a hook.
func (m *slowMember) exit(at []Position, change func(stream string)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range at {
		delete(m.busy, p.Stream)
		change(p.Stream)
	}
}

func (m *slowMember) assigned(ctx context.Context, at []Position) (_ []Position, err error) {
	m.calls.Add(1)
	if read := m.enter(at); m.slow.Load() && !read {
		err = retry.Sleep(ctx, time.Duration(len(at))*5*time.Minute)
	}
	m.exit(at, func(stream string) {
		if err == nil {
			m.parts[stream] = true
		}
	})
	return nil, err
}

func (m *slowMember) gone(at []Position) {
	m.enter(at)
	m.exit(at, func(stream string) { delete(m.parts, stream) })
}

// owns returns the number of partitions of which Gone has not been called.
func (m *slowMember) owns() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.parts)
}

// reads returns the streams that are read.
func (m *slowMember) reads() string {
	var all []string
	m.eachPartition(func(p *inPartition) { all = append(all, p.stream) })
	slices.Sort(all)
	return strings.Join(all, " ")
}

func (m *slowMember) close() {
	m.Helper()
	if err := m.Close(m.T.Context()); err != nil || m.owns() != 0 {
		m.Errorf("it keeps %d partitions: %v", m.owns(), err)
	}
}

// Members whose Assigned takes far longer than a rebalance may take do not take partitions from each other.
func TestMembersThatPrepareForLong(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		b, _ := virtualFake(t, slog.DiscardHandler, "prod.a", "prod.b", "prod.c", "prod.d", "prod.dead-letters")
		var slow atomic.Bool
		slow.Store(true)
		var members []*slowMember
		for range 2 {
			members = append(members, joinSlowly(t, b, &slow, "a", "b", "c", "d"))
			time.Sleep(time.Minute)
		}
		time.Sleep(20 * time.Minute)
		if got := strings.Fields(members[0].reads() + " " + members[1].reads()); len(got) != 4 {
			t.Errorf("one reads %q, the other %q", members[0].reads(), members[1].reads())
		}
		for i, m := range members {
			if n := m.owns(); n != 2 || m.calls.Load() > 2 {
				t.Errorf("member %d has prepared %d partitions in %d calls", i, n, m.calls.Load())
			}
			m.close()
		}
	})
}

// A partition is taken away, because its leader does not know the stream for a moment, and given back while an event is
// still open. No other partition wakes its fetcher meanwhile.
func TestAPartitionIsGivenBackWhileItDrains(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		b, k := virtualFake(t, slog.DiscardHandler, "prod.a", "prod.dead-letters")
		var hidden atomic.Bool
		k.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
			k.KeepControl()
			req := r.(*kmsg.MetadataRequest)
			if !hidden.Load() || len(req.Topics) != 1 || req.Topics[0].Topic == nil || *req.Topics[0].Topic != "prod.a" {
				return nil, nil, false
			}
			answer, one := r.ResponseKind().(*kmsg.MetadataResponse), kmsg.NewMetadataResponseTopic()
			one.Topic, one.ErrorCode = req.Topics[0].Topic, kerr.UnknownTopicOrPartition.Code
			answer.Topics = append(answer.Topics, one)
			return answer, nil, true
		})
		publishAll(t, b, "a", "1")
		c, err := b.Consumer(t.Context(), ConsumerOptions{Group: "g", Streams: []string{"a"}, Start: Earliest()})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(context.Background())
		open := pollOne(t, c)
		defer open.Done()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		next := make(chan error)
		go func() { // each call would wake the fetcher, too
			d, err := c.Poll(ctx)
			if err == nil {
				d.Done()
			}
			next <- err
		}()
		assigned := func(n int) {
			for range 20 { // leaders are known for some time
				c.member.startOver()
				if time.Sleep(time.Second); c.Stats().Assigned == n {
					return
				}
			}
			t.Fatalf("%d partitions are assigned", c.Stats().Assigned)
		}
		hidden.Store(true)
		assigned(0)
		time.Sleep(5 * time.Second) // the fetcher has ended its last request
		hidden.Store(false)
		assigned(1)
		publishAll(t, b, "a", "2")
		if err := <-next; err != nil {
			t.Fatalf("the partition is not read any more: %v", err)
		}
	})
}

// A partition that is being prepared has the position at which it would be read, also after a rebalance.
func TestPositionsOfAPartitionThatIsPrepared(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		b, _ := virtualFake(t, slog.DiscardHandler, "prod.a", "prod.b", "prod.dead-letters")
		publishAll(t, b, "a", "1", "2")
		first := joinSlowly(t, b, new(atomic.Bool), "a", "b")
		pollOne(t, first.Consumer).Events[0].Done()
		first.close()
		slow := new(atomic.Bool)
		slow.Store(true)
		m := joinSlowly(t, b, slow, "a", "b")
		for range 2 {
			time.Sleep(time.Minute)
			if at := m.Positions(); len(at) != 2 || at[0].Stream != "a" || at[0].Offset != 1 || m.reads() != "" {
				t.Errorf("the positions are %v", at)
			}
			m.member.startOver()
		}
		m.close()
		if at := m.Positions(); len(at) != 0 {
			t.Errorf("the positions of a closed consumer are %v", at)
		}
	})
}

// prepareSecond returns a member that reads the first stream, or the second, and prepares the other. All streams belong to it.
func prepareSecond(t *testing.T, b *Broker, readsFirst bool) *slowMember {
	t.Helper()
	var slow atomic.Bool
	join := func() *slowMember {
		m := joinSlowly(t, b, &slow, "a", "b")
		time.Sleep(time.Minute)
		return m
	}
	m, other := join(), join() // the second one gets the stream a
	if readsFirst {
		m, other = other, m
	}
	for len(m.left) > 0 {
		<-m.left
	}
	before := m.reads()
	slow.Store(true)
	m.calls.Store(0)
	other.close()
	time.Sleep(time.Minute)
	if (before == "a") != readsFirst || m.reads() != before || m.Stats().Assigned != 2 || m.calls.Load() != 1 {
		t.Fatalf("it reads %q, has %d partitions, and %d calls", m.reads(), m.Stats().Assigned, m.calls.Load())
	}
	return m
}

// A member that is preparing a partition gives up this one or another at once. It prepares the partition that it keeps only once.
func TestAMemberThatPreparesGivesUpAPartition(t *testing.T) {
	for _, readsFirst := range []bool{true, false} {
		t.Run(fmt.Sprintf("reads the one that it gives up: %t", readsFirst), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				b, _ := virtualFake(t, slog.DiscardHandler, "prod.a", "prod.b", "prod.dead-letters")
				m := prepareSecond(t, b, readsFirst)
				other := joinSlowly(t, b, new(atomic.Bool), "a", "b")
				time.Sleep(10 * time.Second)
				if other.reads() != "a" {
					t.Errorf("it reads %q, the other %q", m.reads(), other.reads())
				}
				time.Sleep(4 * time.Minute)
				if m.reads() != "b" || m.owns() != 1 || m.calls.Load() != 1 {
					t.Errorf("it reads %q after %d calls", m.reads(), m.calls.Load())
				}
				m.close()
				other.close()
			})
		})
	}
}

// A transaction that is aborted while another partition is prepared does not wait for it, and its own partition is kept.
func TestAnAbortWhileAPartitionIsPrepared(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		b, _ := virtualFake(t, slog.DiscardHandler, "prod.a", "prod.b", "prod.dead-letters")
		publishAll(t, b, "a", "1")
		m := prepareSecond(t, b, true)
		x, err := m.Transactor(ProducerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			d := pollOne(t, m.Consumer)
			if err := x.Do(t.Context(), func(tx *Tx) error { tx.Done(d); return errors.New("no") }); !errors.Is(err, ErrAborted) {
				t.Error(err)
			}
		}
		if m.reads() != "a" || m.calls.Load() != 3 {
			t.Errorf("it reads %q after %d calls", m.reads(), m.calls.Load())
		}
		pollOne(t, m.Consumer).Done()
		time.Sleep(5 * time.Minute)
		if m.reads() != "a b" || m.calls.Load() != 3 {
			t.Errorf("it reads %q after %d calls", m.reads(), m.calls.Load())
		}
		m.close()
		if err := x.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A member commits the offsets of the partitions that it keeps, although the Assigned of another one fails again and again.
func TestOffsetsAreCommittedWhileAssignedFails(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		b, _ := virtualFake(t, slog.DiscardHandler, "prod.a", "prod.b", "prod.dead-letters")
		publishAll(t, b, "a", "1")
		var fails atomic.Bool
		var failed atomic.Int32
		c, err := b.Consumer(t.Context(), ConsumerOptions{Group: "g", Streams: []string{"a", "b"}, Start: Earliest(),
			Assigned: func(context.Context, []Position) ([]Position, error) {
				if fails.Load() {
					failed.Add(1)
					return nil, kafka.LeaderNotAvailable
				}
				return nil, nil
			}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(context.Background())
		d := pollOne(t, c)
		fails.Store(true)
		lost := wire.TopicPartition{Topic: "prod.b"}
		c.mu.Lock()
		p := c.parts[lost]
		c.mu.Unlock()
		c.giveUp(map[wire.TopicPartition]*inPartition{lost: p})
		c.member.startOver()
		time.Sleep(10 * time.Second)
		d.Done()
		before := failed.Load()
		time.Sleep(5 * time.Second)
		at, err := b.Committed(t.Context(), "g", []Position{{Stream: "a"}})
		if err != nil || at[0].Offset != 1 || failed.Load() < before+5 {
			t.Errorf("after %d failed calls the group has %v: %v", failed.Load()-before, at, err)
		}
	})
}

// A partition is given up after its preparation has ended, and before the member has seen that end. It is prepared again.
func TestAPartitionThatIsGivenUpIsPreparedAgain(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		b, _ := virtualFake(t, slog.DiscardHandler, "prod.events", "prod.dead-letters", "prod.group-offsets")
		publishOne(t, producer(t, b))
		readOnce(t, b, "g")
		var calls atomic.Int32
		c := b.newConsumer(ConsumerOptions{Group: "g", Streams: []string{"events"}, Start: Earliest(),
			Assigned: func(context.Context, []Position) ([]Position, error) { calls.Add(1); return nil, nil }})
		var err error
		if c.letters, err = newDeadLetters(c); err != nil {
			t.Fatal(err)
		}
		m := newMember(c) // it does not run
		defer func() {
			if err := c.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}()
		mine := []wire.TopicPartition{{Topic: "prod.events"}}
		for range 2 {
			if err := m.apply(t.Context(), mine); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			c.giveUp(maps.Clone(c.parts))
		}
		if n := calls.Load(); n != 2 {
			t.Errorf("it was prepared %d times", n)
		}
	})
}
