package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"tidemill.dev/broker/internal/wire"
)

// anyNode sends a request over the control connection, to any server of the cluster.
const anyNode int32 = -1

// exchange is one request of our own encoding with its answer. kafka-go's transport gives its
// connection to RawExchange, and nothing is registered process-wide.
//
// It guards against a race. The transport stops waiting when the context ends, while its connection
// goroutine may still write our request or fill our answer. The state says which side owns the
// buffers. A caller that gives a running exchange up closes the connection, and waits until the
// goroutine has finished with the buffers.
type exchange struct {
	node   int32
	key    protocol.ApiKey // kind of the request; the transport reads it in any state
	frame  *wire.Frame
	answer []byte
	known  bool // whether the server knows this kind of request

	state atomic.Int32
	conn  net.Conn      // set before the exchange is running
	ended chan struct{} // set before the exchange is given up; closed when the goroutine has finished
}

// The states of an exchange.
const (
	exchangeWaiting int32 = iota // nothing is sent yet
	exchangeRunning              // the connection's goroutine owns the buffers
	exchangeFinished
	exchangeGivenUp
)

var (
	_ protocol.BrokerMessage = (*exchange)(nil)
	_ protocol.RawExchanger  = (*exchange)(nil)
)

// ApiKey returns the kind of the request for the transport.
func (x *exchange) ApiKey() protocol.ApiKey { return x.key }

// Broker returns the server that our own metadata has chosen.
func (x *exchange) Broker(protocol.Cluster) (protocol.Broker, error) {
	return protocol.Broker{ID: x.node}, nil
}

// Required makes the transport call RawExchange with the connection.
func (x *exchange) Required(versions map[protocol.ApiKey]int16) bool {
	_, x.known = versions[x.key]
	return true
}

// RawExchange writes the request and reads the answer.
func (x *exchange) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	if !x.known {
		return nil, kafka.UnsupportedVersion // Kafka would close the connection
	}
	x.conn, _ = rw.(net.Conn)
	if !x.state.CompareAndSwap(exchangeWaiting, exchangeRunning) {
		return nil, context.Canceled
	}
	err := x.exchange(rw)
	if !x.state.CompareAndSwap(exchangeRunning, exchangeFinished) {
		// Perhaps the answer came, but the connection is being closed. So the connection must not be
		// reused for another request.
		close(x.ended)
		return nil, context.Canceled
	}
	if err != nil {
		return nil, err
	}
	return x, nil
}

func (x *exchange) exchange(rw io.ReadWriter) (err error) {
	if _, err := x.frame.WriteTo(rw); err != nil {
		return err
	}
	x.answer, err = wire.ReadAnswer(rw, x.answer)
	return err
}

// giveUp takes the buffers back from the transport. It reports whether no byte was sent.
func (x *exchange) giveUp() (unsent bool) {
	x.ended = make(chan struct{})
	if x.state.CompareAndSwap(exchangeWaiting, exchangeGivenUp) {
		return true
	}
	if x.state.CompareAndSwap(exchangeRunning, exchangeGivenUp) {
		if x.conn != nil {
			_ = x.conn.SetDeadline(time.Unix(1, 0)) // ends the goroutine's read or write, and then kafka-go closes the connection
		}
		<-x.ended
	}
	return false
}

// call sends a frame to a node and returns the answer, in buf's memory if that is large enough.
// After call returns, no other goroutine touches frame or buf.
func (b *Broker) call(ctx context.Context, node int32, frame *wire.Frame, buf []byte) ([]byte, error) {
	x := &exchange{node: node, key: protocol.ApiKey(frame.Key), frame: frame, answer: buf}
	err := b.roundTrip(ctx, x)
	if err == nil {
		return x.answer, nil
	}
	if x.giveUp() {
		err = fmt.Errorf("%w: %w", errUnsent, err)
	}
	if isTransient(err) && !errors.Is(ctx.Err(), context.Canceled) {
		b.noteFailure()
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return nil, err
}

// errUnsent means that no byte of a request was sent.
var errUnsent = errors.New("not sent")

// roundTrip passes a request to the transport. It does not do so after the broker is closed,
// because the transport would open new connections.
func (b *Broker) roundTrip(ctx context.Context, request protocol.Message) error {
	if b.life.Err() != nil {
		return ErrClosed
	}
	_, err := b.transport.RoundTrip(ctx, b.addr, request)
	return err
}

// limitTime limits the time of one request. A request without an answer by then is in doubt, and
// the caller decides what to do.
func (b *Broker) limitTime(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, b.requestTimeout)
}

// requestContext is the context of requests that follow each other. Each has at least the given
// time. A new context for each of them would cost more than the rest of a small request. So one
// context serves many requests, and is replaced when too little of its time is left.
type requestContext struct {
	parent context.Context
	ctx    context.Context
	cancel context.CancelCauseFunc
	ends   time.Time
}

// of is atLeast with a parent that may differ from that of the request before.
func (r *requestContext) of(parent context.Context, limit time.Duration) context.Context {
	if r.parent != parent && r.cancel != nil {
		r.cancel(nil)
	}
	r.parent = parent
	return r.atLeast(limit)
}

// atLeast returns a context that has this much time left, and at most an eighth more.
func (r *requestContext) atLeast(limit time.Duration) context.Context {
	now := time.Now()
	if r.ctx != nil && r.ctx.Err() == nil && r.ends.Sub(now) >= limit {
		return r.ctx
	}
	if r.cancel != nil {
		r.cancel(nil)
	}
	r.ends = now.Add(limit + limit/8)
	inner, cancel := context.WithCancelCause(r.parent)
	ctx, stop := context.WithDeadline(inner, r.ends)
	r.ctx, r.cancel = ctx, func(cause error) { cancel(cause); stop() }
	return ctx
}

// routedRequest sends one of kafka-go's own requests to a chosen server. The transport itself would
// route it by a cache that may be seconds old. After a creation it would also wait for the topics
// to appear in that cache, which always has only one topic.
type routedRequest struct {
	node    int32
	client  string
	request protocol.Message
	version int16
	answer  protocol.Message
}

var (
	_ protocol.BrokerMessage = (*routedRequest)(nil)
	_ protocol.RawExchanger  = (*routedRequest)(nil)
)

// ApiKey returns the kind of the carried request.
func (r *routedRequest) ApiKey() protocol.ApiKey { return r.request.ApiKey() }

// Broker returns the chosen server.
func (r *routedRequest) Broker(protocol.Cluster) (protocol.Broker, error) {
	return protocol.Broker{ID: r.node}, nil
}

// Required stores the version that the connection agreed on.
func (r *routedRequest) Required(versions map[protocol.ApiKey]int16) bool {
	r.version = versions[r.ApiKey()]
	return true
}

// RawExchange writes the request and reads the answer. It returns r and not the answer, because the
// transport acts on answers whose type it knows.
func (r *routedRequest) RawExchange(rw io.ReadWriter) (_ protocol.Message, err error) {
	if err := protocol.WriteRequest(rw, r.version, 0, r.client, r.request); err != nil {
		return nil, err
	}
	_, r.answer, err = protocol.ReadResponse(rw, r.ApiKey(), r.version)
	return r, err
}

// requestServer sends one of kafka-go's requests to a server and returns its answer.
func requestServer[T protocol.Message](ctx context.Context, b *Broker, node int32, request protocol.Message) (T, error) {
	var none T
	ctx, cancel := b.limitTime(ctx)
	defer cancel()
	r := &routedRequest{node: node, client: b.names.Install(), request: request}
	if err := b.roundTrip(ctx, r); err != nil {
		return none, fmt.Errorf("ask Kafka for %s: %w", request.ApiKey(), err)
	}
	answer, ok := r.answer.(T)
	if !ok {
		return none, fmt.Errorf("ask Kafka for %s: the answer is a %T", request.ApiKey(), r.answer)
	}
	return answer, nil
}

// coordinators is the transport of kafka-go's own requests. kafka-go asks for the coordinator before
// each request of a group or a transaction, which makes half of a transaction's requests. This
// transport remembers a coordinator for a moment. A request that fails makes it forget the coordinator.
// After a coordinator has moved, the old one refuses requests until the moment is over.
type coordinators struct {
	b  *Broker
	mu sync.Mutex
	of map[coordinated]coordinatorPlace

	requests sync.Pool // of *coordinatorRequest
}

// coordinatorRequest is the memory of one request to a coordinator and of its answer.
type coordinatorRequest struct {
	frame  wire.Frame
	answer []byte
	parts  []wire.TopicPartition
}

func (c *coordinators) request() *coordinatorRequest {
	return c.requests.Get().(*coordinatorRequest)
}

// ask sends a request's frame to a coordinator. The answer is valid until the next use of the request. The
// time is limited without a timer, because a timer for each request of a transaction would allocate more than
// the rest of them. kafka-go gives its connection the context's deadline, and dialTimeout limits the time
// until there is a connection.
func (c *coordinators) ask(ctx context.Context, of coordinated, r *coordinatorRequest) ([]byte, error) {
	node, err := c.find(ctx, of)
	if err != nil {
		return nil, err
	}
	answer, err := c.b.call(deadlineContext{ctx, time.Now().Add(c.b.requestTimeout)}, node, &r.frame, r.answer)
	if err != nil {
		c.forget(of)
		return nil, err
	}
	r.answer = answer
	return answer, nil
}

// deadlineContext is a context with a deadline that does not end it.
type deadlineContext struct {
	context.Context
	ends time.Time
}

// Deadline is a method of context.Context.
func (d deadlineContext) Deadline() (time.Time, bool) {
	if earlier, ok := d.Context.Deadline(); ok && earlier.Before(d.ends) {
		return earlier, true
	}
	return d.ends, true
}

// coordinated is a group or a transactional id.
type coordinated struct {
	name string
	kind kafka.CoordinatorKeyType
}

type coordinatorPlace struct {
	node  int32
	asked time.Time // time before the request was sent
}

const (
	maxCoordinatorAge = time.Second
	maxCoordinators   = 1000
)

// RoundTrip sends a request. It is a method of kafka.RoundTripper.
func (c *coordinators) RoundTrip(ctx context.Context, addr net.Addr, request kafka.Request) (kafka.Response, error) {
	var who coordinated
	switch m := request.(type) {
	case protocol.GroupMessage:
		who = coordinated{m.Group(), kafka.CoordinatorKeyTypeConsumer}
	case protocol.TransactionalMessage:
		who = coordinated{m.Transaction(), kafka.CoordinatorKeyTypeTransaction}
	default:
		return c.b.transport.RoundTrip(ctx, addr, request)
	}
	node, err := c.find(ctx, who)
	if err != nil {
		return nil, err
	}
	r := &routedRequest{node: node, client: c.b.names.Install(), request: request}
	if err := c.b.roundTrip(ctx, r); err != nil {
		c.forget(who)
		return nil, err
	}
	return r.answer, nil
}

// find returns the server that coordinates a group or a transaction.
func (c *coordinators) find(ctx context.Context, who coordinated) (int32, error) {
	now := time.Now()
	c.mu.Lock()
	known, ok := c.of[who]
	c.mu.Unlock()
	if ok && now.Sub(known.asked) < maxCoordinatorAge {
		return known.node, nil
	}
	res, err := c.b.client.FindCoordinator(ctx, &kafka.FindCoordinatorRequest{Key: who.name, KeyType: who.kind})
	if err != nil {
		return 0, err
	}
	if res.Error != nil {
		return 0, res.Error
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.of) >= maxCoordinators {
		clear(c.of)
	}
	node := int32(res.Coordinator.NodeID)
	c.of[who] = coordinatorPlace{node, now}
	return node, nil
}

func (c *coordinators) forget(who coordinated) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.of, who)
}

// cluster knows which server leads which partition. kafka-go's transport has such a cache too, but
// it is stale for seconds after a leader has moved. This cache asks again as soon as an answer
// shows that an entry is wrong.
type cluster struct {
	mu     sync.Mutex
	topics map[string]*topicPlace
	asking map[string]*pendingMetadata
}

type topicPlace struct {
	leaders []int32   // leader of each partition; -1 during an election
	asked   time.Time // time before the request was sent, so that the entry is never older than it looks
}

// pendingMetadata is a metadata request without an answer yet. Other callers that want the same
// topic wait for it instead of asking again. Its fields are set before done is closed.
type pendingMetadata struct {
	done      chan struct{}
	leaders   []int32
	err       error
	abandoned bool // whether the asking caller gave up; this says nothing about the cluster
}

// metadata asks Kafka without any cache. An empty list of topics means all topics.
func (b *Broker) metadata(ctx context.Context, topics ...string) (*wire.Metadata, error) {
	asked := time.Now()
	m, err := b.metadataFrom(ctx, anyNode, topics...)
	if err != nil {
		return nil, err
	}
	b.dialer.storeAddresses(m.Brokers)
	b.storeLeaders(m.Topics, asked)
	return m, nil
}

// metadataFrom asks one server for its view of the cluster.
func (b *Broker) metadataFrom(ctx context.Context, node int32, topics ...string) (*wire.Metadata, error) {
	ctx, cancel := b.limitTime(ctx)
	defer cancel()
	var frame wire.Frame
	frame.Metadata(b.names.Install(), topics)
	answer, err := b.call(ctx, node, &frame, nil)
	if err != nil {
		return nil, fmt.Errorf("ask %s for metadata: %w", b.addr, err)
	}
	m, err := wire.ReadMetadata(answer)
	if err != nil {
		return nil, fmt.Errorf("read metadata from %s: %w", b.addr, err)
	}
	return m, nil
}

// storeLeaders stores the leaders of our streams. It ignores other topics, of which a shared Kafka
// may have thousands.
func (b *Broker) storeLeaders(topics []wire.TopicMetadata, asked time.Time) {
	c := &b.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range topics {
		t := &topics[i]
		if _, ours := b.names.Stream(t.Name); !ours || t.Error != 0 {
			continue
		}
		if known := c.topics[t.Name]; known == nil || known.asked.Before(asked) {
			c.topics[t.Name] = &topicPlace{leadersOf(t), asked}
		}
	}
}

func leadersOf(t *wire.TopicMetadata) []int32 {
	leaders := make([]int32, len(t.Partitions))
	for i := range t.Partitions {
		leaders[i] = t.Partitions[i].Leader
	}
	return leaders
}

// leaders returns the leader of each partition of a topic. It asks again if the cached answer is
// older than maxAge.
func (b *Broker) leaders(ctx context.Context, topic string, maxAge time.Duration) ([]int32, error) {
	for {
		known, a, mine := b.cluster.cachedLeaders(topic, maxAge)
		if known != nil {
			return known, nil
		}
		if mine {
			a.leaders, a.err = b.askLeaders(ctx, topic)
			a.abandoned = a.err != nil && ctx.Err() != nil
			b.cluster.answered(topic, a)
			return a.leaders, a.err
		}
		select {
		case <-a.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if !a.abandoned {
			return a.leaders, a.err
		}
	}
}

// cachedLeaders returns the cached leaders, or the request that is under way. If mine is true, the
// caller must make the request.
func (c *cluster) cachedLeaders(topic string, maxAge time.Duration) (known []int32, a *pendingMetadata, mine bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.topics[topic]; p != nil && time.Since(p.asked) <= maxAge {
		return p.leaders, nil, false
	}
	if a := c.asking[topic]; a != nil {
		return nil, a, false
	}
	a = &pendingMetadata{done: make(chan struct{})}
	c.asking[topic] = a
	return nil, a, true
}

func (c *cluster) answered(topic string, a *pendingMetadata) {
	c.mu.Lock()
	delete(c.asking, topic)
	c.mu.Unlock()
	close(a.done)
}

func (b *Broker) askLeaders(ctx context.Context, topic string) ([]int32, error) {
	m, err := b.metadata(ctx, topic)
	if err != nil {
		return nil, err
	}
	for i := range m.Topics {
		switch t := &m.Topics[i]; {
		case t.Name != topic:
		case t.Error != 0:
			return nil, kafka.Error(t.Error)
		default:
			return leadersOf(t), nil
		}
	}
	return nil, kafka.UnknownTopicOrPartition
}
