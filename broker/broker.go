// Package broker carries CloudEvents over Kafka and loses none. See DESIGN.md.
package broker

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev"
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
