package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev"
	"tidemill.dev/broker/network"
	"tidemill.dev/broker/retry"
)

// Options name the Kafka cluster and the install that uses it.
type Options struct {
	Addr     string // host:port[,host:port…]
	Names    tidemill.Names
	Security Security
	Network  network.Network
	Logger   *slog.Logger

	// TransactionTimeout is the time after which Kafka aborts a transaction; 10 s. The open
	// transaction of a dead process delays readers of committed events for the same time.
	TransactionTimeout time.Duration
}

// Broker is a connection to one Kafka under one install's name. It is safe for concurrent use.
type Broker struct {
	names     tidemill.Names
	log       *slog.Logger
	dialer    *dialer
	addr      net.Addr
	transport *kafka.Transport
	client    *kafka.Client
	patient   *kafka.Client // client without a timeout, for requests that wait for other members

	coordinators *coordinators
	cluster      cluster
	lastFailure  atomic.Pointer[time.Time] // time of the last request without an answer; nil if there was none
	reader       *Consumer                 // decoder of the records that Read fetches

	requestTimeout     time.Duration
	transactionTimeout time.Duration
	growthEvery        time.Duration   // interval between requests for added partitions
	recommitEvery      time.Duration   // interval after which offsets that have not changed are committed again
	missingFor         time.Duration   // time after which a missing stream counts as deleted
	life               context.Context // context of the transport's goroutines; ended by Close
	stop               context.CancelCauseFunc
}

// Open connects to Kafka and checks that it supports every request that we use.
func Open(ctx context.Context, o Options) (*Broker, error) {
	seeds, err := parseAddr(o.Addr)
	if err != nil {
		return nil, err
	}
	if err := o.Security.check(); err != nil {
		return nil, err
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	d := &dialer{security: o.Security, clientID: o.Names.Install(), seeds: seeds, network: o.Network}
	if err := d.probe(ctx); err != nil {
		return nil, err
	}
	life, stop := context.WithCancelCause(context.Background())
	t := &kafka.Transport{
		Context:     life,
		Dial:        d.dial,
		ClientID:    d.clientID,
		MetadataTTL: time.Second,
		// The transport asks for these topics' metadata every half second on average. The transport
		// needs only the list of servers in the answer. One name, of any topic, avoids asking for
		// all topics, of which there may be thousands.
		MetadataTopics: []string{o.Names.Topic(tidemill.StreamEvents)},
		IdleTimeout:    time.Minute,
	}
	b := &Broker{names: o.Names, log: o.Logger, dialer: d, addr: seedAddr(seeds), transport: t,
		requestTimeout: 10 * time.Second, transactionTimeout: orDefault(o.TransactionTimeout, defaultTransaction), growthEvery: growthEvery, recommitEvery: recommitEvery, missingFor: missingFor, life: life, stop: stop,
		cluster: cluster{topics: map[string]*topicPlace{}, asking: map[string]*pendingMetadata{}}}
	b.coordinators = &coordinators{b: b, of: map[coordinated]coordinatorPlace{}}
	b.coordinators.requests.New = func() any { return &coordinatorRequest{} }
	b.client = &kafka.Client{Addr: b.addr, Transport: b.coordinators, Timeout: b.requestTimeout}
	b.reader = b.stillConsumer(ConsumerOptions{})
	b.patient = &kafka.Client{Addr: b.addr, Transport: b.coordinators}
	return b, nil
}

// Close closes the broker's connections. Close its producers and consumers first.
func (b *Broker) Close() error {
	b.stop(ErrClosed)
	b.transport.CloseIdleConnections()
	return nil
}

// parseAddr splits host:port[,host:port…]. parseAddr refuses an address that contains a password.
// The error does not repeat the password.
func parseAddr(addr string) ([]string, error) {
	if strings.TrimSpace(addr) == "" {
		return nil, errors.New("read Kafka's address: none is given: give it by --kafka or TIDEMILL_KAFKA, as host:port")
	}
	if strings.Contains(addr, "@") {
		return nil, errors.New("read Kafka's address: it holds a user or a password: give host:port alone, the user by itself and the password in a file")
	}
	var seeds []string
	for one := range strings.SplitSeq(addr, ",") {
		one = strings.TrimSpace(one)
		host, port, err := net.SplitHostPort(one)
		if err != nil || host == "" || port == "" || strings.Contains(one, "/") {
			return nil, fmt.Errorf("read Kafka's address %q: it is not host:port: write it like kafka-1:9092", one)
		}
		seeds = append(seeds, one)
	}
	return seeds, nil
}

// printableOptions is the part of the options that may be printed.
type printableOptions struct {
	Addr     string
	Install  string
	Security Security
}

func (o Options) shown() printableOptions {
	addr := o.Addr
	if strings.Contains(addr, "@") { // a user may have put a password into the address
		addr = "[secret]"
	}
	return printableOptions{Addr: addr, Install: o.Names.Install(), Security: o.Security}
}

// Format prints the options without secrets, for every verb.
func (o Options) Format(w fmt.State, _ rune) { fmt.Fprintf(w, "%+v", o.shown()) }

// MarshalJSON is Format for JSON.
func (o Options) MarshalJSON() ([]byte, error) { return json.Marshal(o.shown()) }

// LogValue is Format for slog.
func (o Options) LogValue() slog.Value { return slog.AnyValue(o.shown()) }

// backoff is the pause between attempts on Kafka. Its zero value is ready for use.
type backoff struct{ failures int }

func (w *backoff) next() time.Duration {
	w.failures++
	return retry.Backoff{First: 20 * time.Millisecond, Cap: 500 * time.Millisecond, Jitter: 0.5}.After(w.failures)
}

func (w *backoff) wait(ctx context.Context) error { return retry.Sleep(ctx, w.next()) }

// retryUntil calls do until do succeeds or fails permanently, or the context ends.
func retryUntil[T any](ctx context.Context, do func(context.Context) (T, error)) (T, error) {
	var w backoff
	for {
		v, err := do(ctx)
		if err == nil || !isTransient(err) {
			return v, err
		}
		if ended := w.wait(ctx); ended != nil {
			return v, errors.Join(err, ended)
		}
	}
}

// graverError returns the error to act on. A permanent error comes before a passing one.
func graverError(a, b error) error {
	if a == nil || b != nil && isTransient(a) && !isTransient(b) {
		return b
	}
	return a
}

// isTransient reports whether an error may go away by itself: for example because the server
// restarts, a leader is being elected, or a coordinator moves. Any other error would be the same
// after each retry.
func isTransient(err error) bool {
	var code kafka.Error
	if errors.As(err, &code) {
		return passingCode(code)
	}
	var network net.Error
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return true
	case errors.As(err, &network):
		return true
	}
	return false
}

func passingCode(code kafka.Error) bool {
	switch code {
	case kafka.LeaderNotAvailable, kafka.NotLeaderForPartition, kafka.NotController, kafka.RequestTimedOut,
		kafka.BrokerNotAvailable, kafka.ReplicaNotAvailable, kafka.NetworkException,
		kafka.GroupLoadInProgress, kafka.GroupCoordinatorNotAvailable, kafka.NotCoordinatorForGroup,
		kafka.NotEnoughReplicas, kafka.NotEnoughReplicasAfterAppend, kafka.KafkaStorageError,
		kafka.ConcurrentTransactions, kafka.UnknownTopicOrPartition, kafka.FencedLeaderEpoch,
		kafka.UnknownLeaderEpoch, kafka.OffsetNotAvailable, kafka.PreferredLeaderNotAvailable,
		kafka.EligibleLeadersNotAvailable, kafka.InvalidMessage, unstableOffsetCommit:
		return true
	}
	return false
}

// unstableOffsetCommit is missing from kafka-go's list of codes. The code means that an open
// transaction may still move the requested offset.
const unstableOffsetCommit kafka.Error = 88

// ProducerStats are a producer's counts since it was opened, and its present load.
type ProducerStats struct {
	Events  uint64 // acknowledged by all in-sync replicas
	Bytes   uint64 // size of the acknowledged events
	Batches uint64 // batches that the acknowledged events were stored in
	Failed  uint64 // events accepted and then given up
	InDoubt uint64 // failed events that may be on the stream nevertheless
	Refused uint64 // events not accepted: invalid, too large, of no stream, after Close, or while the buffer stayed full
	Retries uint64 // times that a batch was delayed and sent again

	Requests    uint64        // requests to Kafka, successful or not
	RequestTime time.Duration // total time of these requests

	BufferedEvents int   // events that wait for an acknowledgement
	BufferedBytes  int64 // size of the buffered events
	Waiting        int   // callers that wait for room in the buffer
}

// producerCounts changes once for each batch or request and not for each event, so that counting
// costs almost nothing.
type producerCounts struct {
	events, bytes, batches, failed, inDoubt, refused, retries atomic.Uint64
	requests                                                  atomic.Uint64
	requestTime                                               atomic.Int64
}

// Stats returns the counts. It may be called at any time, also after Close.
func (p *Producer) Stats() ProducerStats {
	inDoubt := p.counts.inDoubt.Load() // read before Failed, so that InDoubt is never larger than Failed
	s := ProducerStats{
		Events: p.counts.events.Load(), Bytes: p.counts.bytes.Load(), Batches: p.counts.batches.Load(),
		Failed: p.counts.failed.Load(), InDoubt: inDoubt, Refused: p.counts.refused.Load(),
		Retries: p.counts.retries.Load(), Requests: p.counts.requests.Load(),
		RequestTime: time.Duration(p.counts.requestTime.Load()),
	}
	p.budget.mu.Lock()
	defer p.budget.mu.Unlock()
	s.BufferedEvents, s.Waiting = p.budget.events, len(p.budget.waiting)
	s.BufferedBytes = int64(p.opt.MaxBuffered) - p.budget.left
	return s
}

// countRequest counts a request after its answer.
func (c *producerCounts) countRequest(began time.Time) {
	c.requests.Add(1)
	c.requestTime.Add(int64(time.Since(began)))
}

func (c *producerCounts) stored(events int, bytes int64) {
	c.events.Add(uint64(events))
	c.bytes.Add(uint64(bytes))
	c.batches.Add(1)
}

func (c *producerCounts) gaveUp(events int, doubt bool) {
	c.failed.Add(uint64(events))
	if doubt {
		c.inDoubt.Add(uint64(events))
	}
}

// ConsumerStats are a consumer's counts since it was opened, and its present load.
type ConsumerStats struct {
	Events      uint64 // events that Poll has returned
	Done        uint64 // returned events that have ended; the others are open
	DeadLetters uint64 // dead letters written
	Lost        uint64 // offsets that were deleted before they were read
	Rebalances  uint64 // generations of the group that this member took part in

	Fetches      uint64 // fetch requests to Kafka, successful or not
	FetchedBytes uint64 // bytes of the answers

	Assigned   int   // partitions that the group last assigned to this member
	Partitions int   // partitions that are read here now; a new one is read a moment after its assignment
	OpenBytes  int64 // fetched bytes whose events have not all ended
}

type consumerCounts struct {
	events, done, deadLetters, lost, rebalances, fetches, fetchedBytes atomic.Uint64
	assigned                                                           atomic.Int64
}

// Stats returns the counts. It may be called at any time, also after Close.
func (c *Consumer) Stats() ConsumerStats {
	done := c.counts.done.Load() // read before Events, so that Done is never larger than Events
	s := ConsumerStats{
		Events: c.counts.events.Load(), Done: done, DeadLetters: c.counts.deadLetters.Load(),
		Lost: c.counts.lost.Load(), Rebalances: c.counts.rebalances.Load(), Assigned: int(c.counts.assigned.Load()),
		Fetches: c.counts.fetches.Load(), FetchedBytes: c.counts.fetchedBytes.Load(), OpenBytes: c.room.used.Load(),
	}
	c.mu.Lock()
	s.Partitions = len(c.parts)
	c.mu.Unlock()
	return s
}
