package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
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
)

// cutConn is a connection whose caller gives up while the request is written. The answer arrives
// nevertheless.
type cutConn struct {
	net.Conn
	leave  func()
	cut    chan struct{}
	answer []byte
}

func (c *cutConn) Write(p []byte) (int, error) {
	c.leave()
	<-c.cut
	return len(p), nil
}

func (c *cutConn) Read(p []byte) (int, error) {
	n := copy(p, c.answer)
	c.answer = c.answer[n:]
	return n, nil
}

func (c *cutConn) SetDeadline(time.Time) error {
	close(c.cut)
	return nil
}

func TestAConnectionThatIsBeingCutIsNotUsedAgain(t *testing.T) {
	var frame wire.Frame
	frame.Metadata("test", nil)
	x := &exchange{frame: &frame, known: true}
	conn := &cutConn{leave: func() { go x.giveUp() }, cut: make(chan struct{}), answer: make([]byte, 12)}
	conn.answer[3] = 8
	if _, err := x.RawExchange(conn); !errors.Is(err, context.Canceled) {
		t.Errorf("%v: kafka-go would keep the connection", err)
	}
}

func TestAClosedBrokerDoesNotOpenUpAgain(t *testing.T) {
	b, _ := openFake(t)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.metadata(t.Context()); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := b.Streams(t.Context()); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// noticedContext is a context that reports the first wait for its end.
type noticedContext struct {
	context.Context
	once sync.Once
	seen chan struct{}
}

func (n *noticedContext) Done() <-chan struct{} {
	n.once.Do(func() { close(n.seen) })
	return n.Context.Done()
}

func TestLeadersOutlastsWhoeverAskedFirst(t *testing.T) {
	b, c := openFake(t)
	if err := c.CreateTopic("prod.facts", 1, nil); err != nil {
		t.Fatal(err)
	}
	arrived, release := make(chan struct{}), make(chan struct{})
	arrive := sync.OnceFunc(func() { close(arrived) })
	c.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if asksFor(req, "prod.facts") {
			arrive()
			<-release
		}
		return nil, nil, false
	})
	first, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { _, err := b.leaders(first, "prod.facts", 0); left <- err }()
	<-arrived
	second := &noticedContext{Context: t.Context(), seen: make(chan struct{})}
	got := make(chan error, 1)
	go func() { _, err := b.leaders(second, "prod.facts", time.Minute); got <- err }()
	<-second.seen
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("who left got %v", err)
	}
	close(release)
	if err := <-got; err != nil {
		t.Errorf("who stayed got %v", err)
	}
}

func asksFor(req kmsg.Request, topic string) bool {
	topics := req.(*kmsg.MetadataRequest).Topics
	return len(topics) == 1 && topics[0].Topic != nil && *topics[0].Topic == topic
}

func TestMetadataOfAllSparesAskingForEach(t *testing.T) {
	b, c := openFake(t)
	for i := range 5 {
		if err := c.CreateTopic(fmt.Sprintf("prod.s%d", i), 1, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.metadata(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if asksFor(req, "prod.s3") {
			return nil, errors.New("asked again"), true
		}
		return nil, nil, false
	})
	if _, err := b.leaders(t.Context(), "prod.s3", time.Minute); err != nil {
		t.Error(err)
	}
}

// threeServers returns a cluster of three servers and a broker that knows the first one's address.
func threeServers(t *testing.T) (*Broker, *kfake.Cluster) {
	t.Helper()
	c := fakeCluster(t, kfake.NumBrokers(3))
	b := openAt(t, c.ListenAddrs()[0])
	ensure(t, b, EnsureOptions{Replication: 1}, StreamSpec{Name: "events", Partitions: 3})
	return b, c
}

func publishOne(t *testing.T, p *Producer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hostilePatience)
	defer cancel()
	if _, err := p.Publish(ctx, "events", &View{ID: "1", Source: "/x", Type: "new-data"}); err != nil {
		t.Fatal(err)
	}
}

func producer(t *testing.T, b *Broker) *Producer {
	t.Helper()
	p, err := b.Producer(ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close(context.Background()) })
	return p
}

func moveAll(t *testing.T, c *kfake.Cluster, node int32) {
	t.Helper()
	for p := range c.PartitionInfos("prod.events") {
		if err := c.MoveTopicPartition("prod.events", int32(p), node); err != nil {
			t.Fatal(err)
		}
	}
}

func serverAt(t *testing.T, b *Broker, addr string) int32 {
	t.Helper()
	md, err := b.metadata(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range md.Brokers {
		if addr == net.JoinHostPort(s.Host, strconv.Itoa(int(s.Port))) {
			return s.ID
		}
	}
	t.Fatalf("no server at %s", addr)
	return -1
}

func TestTheServerWhoseAddressWasGivenMayStop(t *testing.T) {
	b, c := threeServers(t)
	p := producer(t, b)
	publishOne(t, p)
	given := serverAt(t, b, b.addr.String())
	moveAll(t, c, (given+1)%3)
	if err := c.RemoveNode(given); err != nil {
		t.Fatal(err)
	}
	if conn, err := net.Dial("tcp", b.addr.String()); err == nil {
		conn.Close()
		t.Fatal("the server has not stopped, so this test shows nothing")
	}
	b.transport.CloseIdleConnections() // kfake keeps existing connections open
	publishOne(t, p)
	commit(t, b, "prod.score", "prod.events", 0)
	infos, err := b.Streams(t.Context())
	if err != nil || len(infos) != 1 || len(infos[0].Groups) != 1 {
		t.Errorf("%+v, %v", infos, err)
	}
}

func TestAServerThatHasJustJoinedLeads(t *testing.T) {
	b, c := threeServers(t)
	p := producer(t, b)
	publishOne(t, p)
	if _, _, err := c.AddNode(7, 0); err != nil {
		t.Fatal(err)
	}
	moveAll(t, c, 7)
	publishOne(t, p)
	queries := []wire.OffsetQuery{{TopicPartition: wire.TopicPartition{Topic: "prod.events", Partition: 1}, Time: wire.Latest}}
	if _, err := b.offsetsAt(t.Context(), queries, true); err != nil {
		t.Error(err)
	}
}

func TestAServerThatComesBackOnAnotherPort(t *testing.T) {
	b, c := threeServers(t)
	p := producer(t, b)
	moveAll(t, c, 2)
	publishOne(t, p)
	if err := c.RemoveNode(2); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.AddNode(2, 0); err != nil {
		t.Fatal(err)
	}
	moveAll(t, c, 2)
	publishOne(t, p)
}

func TestOffsetsSayWhichPartitionHasNoLeader(t *testing.T) {
	b, c := openFake(t)
	if err := c.CreateTopic("prod.facts", 1, nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var asked atomic.Int32
	c.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if asksFor(req, "prod.facts") && asked.Add(1) == 3 {
			cancel() // during the third try
		}
		return noLeader(req.(*kmsg.MetadataRequest)), nil, asksFor(req, "prod.facts")
	})
	_, err := b.offsetsAt(ctx, []wire.OffsetQuery{{TopicPartition: wire.TopicPartition{Topic: "prod.facts"}, Time: wire.Latest}}, true)
	if !errors.Is(err, kafka.LeaderNotAvailable) || !strings.Contains(err.Error(), "prod.facts/0") {
		t.Error(err)
	}
}

func TestOffsetsEndAtWhatWillNotPass(t *testing.T) {
	b, c := threeServers(t)
	moveAll(t, c, 0) // one answer then covers both
	c.ControlKey(int16(kmsg.ListOffsets), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		res := req.ResponseKind().(*kmsg.ListOffsetsResponse)
		for _, rt := range req.(*kmsg.ListOffsetsRequest).Topics {
			st := kmsg.NewListOffsetsResponseTopic()
			st.Topic = rt.Topic
			for _, rp := range rt.Partitions {
				sp := kmsg.NewListOffsetsResponseTopicPartition()
				sp.Partition, sp.ErrorCode = rp.Partition, int16(kafka.LeaderNotAvailable)
				if rp.Partition == 1 {
					sp.ErrorCode = int16(kafka.TopicAuthorizationFailed)
				}
				st.Partitions = append(st.Partitions, sp)
			}
			res.Topics = append(res.Topics, st)
		}
		return res, nil, true
	})
	var queries []wire.OffsetQuery
	for p := range int32(3) {
		queries = append(queries, wire.OffsetQuery{TopicPartition: wire.TopicPartition{Topic: "prod.events", Partition: p}, Time: wire.Latest})
	}
	ctx, cancel := context.WithTimeout(t.Context(), hostilePatience)
	defer cancel()
	if _, err := b.offsetsAt(ctx, queries, true); !errors.Is(err, kafka.TopicAuthorizationFailed) || ctx.Err() != nil {
		t.Error(err)
	}
}

// A coordinator is asked for once in a moment, and again after a request to it has failed.
func TestCoordinatorsAreRemembered(t *testing.T) {
	h := newHostile(t, 1)
	who := coordinated{"g", kafka.CoordinatorKeyTypeConsumer}
	node, err := h.b.coordinators.find(h.ctx(), who)
	h.must(err)
	h.b.coordinators.of[who] = coordinatorPlace{node, time.Now().Add(time.Hour)} // this test may be slow
	h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.FindCoordinator}, Err: kerr.CoordinatorNotAvailable, Count: -1})
	if _, err := h.b.coordinators.find(h.ctx(), who); err != nil {
		t.Errorf("it is asked for again: %v", err)
	}
	h.b.coordinators.forget(who)
	if _, err := h.b.coordinators.find(h.ctx(), who); !errors.Is(err, kafka.GroupCoordinatorNotAvailable) {
		t.Errorf("a forgotten one is not asked for: %v", err)
	}
}

// A frame belongs to its caller again when call returns, also if the context ended before the request was sent. The race
// detector notices if the transport still reads the frame.
func TestAFrameIsFreeAfterItsCall(t *testing.T) {
	b, _ := openFake(t)
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			var frame wire.Frame
			for i := range 200 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Microsecond)
				frame.Metadata("test", nil)
				_, _ = b.call(ctx, anyNode, &frame, nil) // the end of the context may be its result
				cancel()
			}
		})
	}
	callers.Wait()
}
