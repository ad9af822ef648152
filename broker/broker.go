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
	"tidemill.dev/broker/retry"
)

// Options say which Kafka and in whose name.
type Options struct {
	Addr     string // host:port[,host:port…]
	Names    tidemill.Names
	Security Security
	Logger   *slog.Logger

	// TransactionTimeout is after which Kafka aborts a transaction: as long may one
	// whose process has died hold up readers of committed events; 10 s.
	TransactionTimeout time.Duration
}

// Broker is a connection to one Kafka under one install's name. It is safe for
// concurrent use.
type Broker struct {
	names     tidemill.Names
	log       *slog.Logger
	dialer    *dialer
	addr      net.Addr
	transport *kafka.Transport
	client    *kafka.Client
	patient   *kafka.Client // without a time limit of its own, for what waits for others
	cluster   cluster
	reader    *Consumer // decodes what Read fetches

	requestTimeout     time.Duration
	transactionTimeout time.Duration
	growthEvery        time.Duration   // how often streams are looked after for added partitions
	missingFor         time.Duration   // after which a stream that is read is taken for deleted
	life               context.Context // of the transport's own goroutines; ended by Close
	stop               context.CancelCauseFunc
}

// Open connects to Kafka and checks that it speaks what we need.
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
	d := &dialer{security: o.Security, clientID: o.Names.Install(), seeds: seeds}
	if err := d.probe(ctx); err != nil {
		return nil, err
	}
	life, stop := context.WithCancelCause(context.Background())
	t := &kafka.Transport{
		Context:     life,
		Dial:        d.dial,
		ClientID:    d.clientID,
		MetadataTTL: time.Second,
		// The transport asks for these topics' metadata every half second on
		// average. It needs only the servers that come with the answer, so one
		// name, whether it exists or not, spares it the thousands of others.
		MetadataTopics: []string{o.Names.Topic(tidemill.StreamEvents)},
		IdleTimeout:    time.Minute,
	}
	b := &Broker{names: o.Names, log: o.Logger, dialer: d, addr: seedAddr(seeds), transport: t,
		requestTimeout: 10 * time.Second, transactionTimeout: orDefault(o.TransactionTimeout, defaultTransaction), growthEvery: growthEvery, missingFor: missingFor, life: life, stop: stop,
		cluster: cluster{topics: map[string]*topicPlace{}, asking: map[string]*asking{}}}
	b.client = &kafka.Client{Addr: b.addr, Transport: t, Timeout: b.requestTimeout}
	b.reader = b.stillConsumer(ConsumerOptions{})
	b.patient = &kafka.Client{Addr: b.addr, Transport: t}
	return b, nil
}

// Close closes what the broker holds open. Its producers and consumers are
// closed before it.
func (b *Broker) Close() error {
	b.stop(ErrClosed)
	b.transport.CloseIdleConnections()
	return nil
}

// parseAddr splits host:port[,host:port…]. An address with a password in it is
// refused and not repeated.
func parseAddr(addr string) ([]string, error) {
	if strings.TrimSpace(addr) == "" {
		return nil, errors.New("read Kafka's address: none is given: say where Kafka is with --kafka or TIDEMILL_KAFKA, as host:port")
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

// shown is what may be printed of the options.
type shown struct {
	Addr     string
	Install  string
	Security Security
}

func (o Options) shown() shown {
	addr := o.Addr
	if strings.Contains(addr, "@") { // a password does not belong there, but may stand there
		addr = "[secret]"
	}
	return shown{Addr: addr, Install: o.Names.Install(), Security: o.Security}
}

// Format prints the options without anything that may be secret, whatever the
// verb.
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

// persist calls do until it succeeds, fails for good, or the context ends.
func persist[T any](ctx context.Context, do func(context.Context) (T, error)) (T, error) {
	var w backoff
	for {
		v, err := do(ctx)
		if err == nil || !passing(err) {
			return v, err
		}
		if ended := w.wait(ctx); ended != nil {
			return v, errors.Join(err, ended)
		}
	}
}

// graver is the one of two errors to act on: rather one that will not pass.
func graver(a, b error) error {
	if a == nil || b != nil && passing(a) && !passing(b) {
		return b
	}
	return a
}

// passing tells whether an error may go away by itself: the server is
// restarting, a leader is being elected, a coordinator is moving. What is not
// in here will fail again however often it is tried.
func passing(err error) bool {
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

// unstableOffsetCommit is missing from kafka-go's list: an open transaction
// may still move the offset that was asked for.
const unstableOffsetCommit kafka.Error = 88

// ProducerStats count what a producer has done since it was opened, and say what
// it holds now.
type ProducerStats struct {
	Events  uint64 // acknowledged by all in-sync replicas
	Bytes   uint64 // of those events
	Batches uint64 // that those events were stored in
	Failed  uint64 // events given up after they had been accepted
	InDoubt uint64 // of the failed: those that may stand on the stream all the same
	Refused uint64 // events not accepted: invalid, too large, of no stream, after Close, or while the buffer stayed full
	Retries uint64 // times a batch was put off to be sent again

	Requests    uint64        // to Kafka, whatever came of them
	RequestTime time.Duration // that they took, all together

	BufferedEvents int   // without an answer yet
	BufferedBytes  int64 // of those events
	Waiting        int   // callers that wait for room in the buffer
}

// producerCounts is touched once a batch or a request, never once an event, so
// that nobody pays for counting.
type producerCounts struct {
	events, bytes, batches, failed, inDoubt, refused, retries atomic.Uint64
	requests                                                  atomic.Uint64
	requestTime                                               atomic.Int64
}

// Stats may be asked at any time, also after Close.
func (p *Producer) Stats() ProducerStats {
	inDoubt := p.counts.inDoubt.Load() // before the whole, which is counted first: so it is never more
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

// asked counts a request when it has come back.
func (c *producerCounts) asked(began time.Time) {
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

// ConsumerStats count what a consumer has done since it was opened, and say what
// it holds now.
type ConsumerStats struct {
	Events      uint64 // that Poll has handed out
	Done        uint64 // of those, ended; the others are open
	DeadLetters uint64 // written
	Lost        uint64 // offsets that were gone before they were read
	Rebalances  uint64 // generations of the group that this member has taken part in

	Fetches      uint64 // requests to Kafka, whatever came of them
	FetchedBytes uint64 // in the answers

	Assigned   int   // partitions that the group has last given to this member
	Partitions int   // that are read here now; what is new to it is only read in a moment
	OpenBytes  int64 // fetched and not yet dealt with
}

type consumerCounts struct {
	events, done, deadLetters, lost, rebalances, fetches, fetchedBytes atomic.Uint64
	assigned                                                           atomic.Int64
}

// Stats may be asked at any time, also after Close.
func (c *Consumer) Stats() ConsumerStats {
	done := c.counts.done.Load() // before those handed out, as above
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
