package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
	"tidemill.dev/internal/gateway"
	"tidemill.dev/internal/gateway/client"
	"tidemill.dev/internal/platform"
	"tidemill.dev/triggers/filter"
)

// target is where the commands publish and read: a gateway, or Kafka itself. An empty stream means
// the stream that the event's type belongs to.
type target interface {
	worry() worry // warnings about missing answers

	publish(ctx context.Context, stream string, v *broker.View) (client.Receipt, error)
	// send publishes one of many events. It copies the event. It calls done once, and done must not
	// block.
	send(ctx context.Context, stream string, v *broker.View, done func(client.Receipt, error))
	// flush waits until all sent events have an answer.
	flush(ctx context.Context) error

	// follow calls each with the matching events of a stream, until each returns an error or the
	// stream ends. It returns that error.
	follow(ctx context.Context, o following, each func(*follow.Event) error) error
	streams(ctx context.Context) ([]api.Stream, error)

	close(ctx context.Context) error
}

// following says what to read.
type following struct {
	stream string
	start  broker.Start
	toEnd  bool
	where  *filter.Filter // nil matches every event
	limit  int            // largest useful number of events, as a hint; 0 is no limit
	begun  func()         // called when reading has begun
}

// wants reports whether a tail shows an event. A record that is not an event is always shown.
func (o *following) wants(e *follow.Event) bool {
	return o.where == nil || e.Err != nil || o.where.Match(&e.View)
}

// gatewayTarget publishes and reads through a gateway.
type gatewayTarget struct {
	g   *client.Gateway
	out io.Writer // output for messages to the user

	mu       sync.Mutex
	batchers map[string]*client.Batcher // batchers of send, by stream
}

func (t *gatewayTarget) worry() worry { return worry{who: "the gateway", trouble: t.g.Trouble} }

// worrying prints a warning while no answer comes.
func (t *gatewayTarget) worrying(what string) (stop func()) {
	w := t.worry()
	return w.watch(t.out, what)
}

const asked = "retrying for up to 10 seconds"

func (t *gatewayTarget) publish(ctx context.Context, stream string, v *broker.View) (client.Receipt, error) {
	defer t.worrying("sending the event; retrying for up to 2 minutes")()
	return t.g.Publish(ctx, stream, v)
}

func (t *gatewayTarget) send(ctx context.Context, stream string, v *broker.View, done func(client.Receipt, error)) {
	t.batcher(stream).Send(ctx, v, done)
}

func (t *gatewayTarget) batcher(stream string) *client.Batcher {
	t.mu.Lock()
	defer t.mu.Unlock()
	b, ok := t.batchers[stream]
	if !ok {
		if t.batchers == nil {
			t.batchers = map[string]*client.Batcher{}
		}
		b = t.g.Batcher(stream)
		t.batchers[stream] = b
	}
	return b
}

func (t *gatewayTarget) all() []*client.Batcher {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []*client.Batcher
	for _, b := range t.batchers {
		all = append(all, b)
	}
	return all
}

func (t *gatewayTarget) flush(ctx context.Context) error {
	var failed []error
	for _, b := range t.all() {
		failed = append(failed, b.Flush(ctx))
	}
	return errors.Join(failed...)
}

func (t *gatewayTarget) follow(ctx context.Context, o following, each func(*follow.Event) error) error {
	what := client.TailOptions{Stream: o.stream, From: o.start.String(), ToEnd: o.toEnd, Limit: o.limit, Away: t.away}
	if o.where != nil {
		what.Where = o.where.String()
	}
	stop := t.worrying(asked)
	r, err := t.g.Tail(ctx, what)
	stop()
	if err != nil {
		return err
	}
	defer r.Close()
	o.begun()
	for {
		batch, err := r.Next(ctx)
		if err == io.EOF { // io.EOF itself is the end; a connection's error wraps it
			return nil
		}
		if err != nil {
			return err
		}
		for i := range batch {
			if err := each(&batch[i]); err != nil {
				return err
			}
		}
	}
}

// away reports a lost gateway once, and its return once.
func (t *gatewayTarget) away(err error) {
	if err != nil {
		fmt.Fprintf(t.out, "The gateway does not answer; tail continues when it does. Last error: %v\n", err)
		return
	}
	fmt.Fprintln(t.out, "The gateway is back.")
}

func (t *gatewayTarget) streams(ctx context.Context) ([]api.Stream, error) {
	defer t.worrying(asked)()
	return t.g.Streams(ctx)
}

// close does not wait for events: the caller has called flush if it wants that.
func (t *gatewayTarget) close(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	for _, b := range t.all() {
		_ = b.Close(ctx) // each unsent event has reported its error already
	}
	t.g.Close()
	return nil
}

const lingerFile = 2 * time.Millisecond // the events of a file come close together, so they share batches

// kafkaTarget publishes and reads on Kafka. It chooses the stream by the local config, as a gateway
// does by its own.
type kafkaTarget struct {
	p   *platform.Platform
	out io.Writer // output for messages to the user

	once     sync.Once
	producer *broker.Producer // producer of send
	failed   error
}

func (*kafkaTarget) worry() worry {
	return worry{who: "Kafka", trouble: func() error { return nil }} // Kafka's client does not report errors that it retries
}

func (k *kafkaTarget) publish(ctx context.Context, stream string, v *broker.View) (client.Receipt, error) {
	producer, err := k.p.Producer(broker.ProducerOptions{})
	if err != nil {
		return client.Receipt{}, err
	}
	r, err := producer.Publish(ctx, k.home(stream, v), v)
	return client.Receipt{Receipt: r}, err
}

func (k *kafkaTarget) send(ctx context.Context, stream string, v *broker.View, done func(client.Receipt, error)) {
	k.once.Do(func() {
		k.producer, k.failed = k.p.Producer(broker.ProducerOptions{Linger: lingerFile, Compression: broker.LZ4})
	})
	if k.failed != nil {
		done(client.Receipt{}, k.failed)
		return
	}
	k.producer.Send(ctx, k.home(stream, v), v, func(r broker.Receipt, err error) { done(client.Receipt{Receipt: r}, err) })
}

func (k *kafkaTarget) home(stream string, v *broker.View) string {
	if stream == "" {
		return k.p.Config().StreamFor(v.Type)
	}
	return stream
}

func (k *kafkaTarget) flush(ctx context.Context) error {
	if k.producer == nil {
		return nil
	}
	return k.producer.Flush(ctx)
}

func (k *kafkaTarget) follow(ctx context.Context, o following, each func(*follow.Event) error) (err error) {
	r, err := follow.OpenReader(ctx, k.p.Broker(), follow.ReaderOptions{Stream: o.stream, Start: o.start, ToEnd: o.toEnd})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close(context.WithoutCancel(ctx))) }()
	o.begun()
	away := &absence{out: k.out, ping: k.p.Broker().Ping, looked: time.Now()}
	for {
		batch, err := r.Next(ctx)
		switch {
		case err == io.EOF: // io.EOF itself is the end; a connection's error wraps it
			return nil
		case err != nil:
			return err
		case len(batch) == 0:
			away.look(ctx)
		}
		for i := range batch {
			if !o.wants(&batch[i]) {
				continue
			}
			if err := each(&batch[i]); err != nil {
				return err
			}
		}
	}
}

func (k *kafkaTarget) streams(ctx context.Context) ([]api.Stream, error) {
	infos, err := k.p.Broker().Streams(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]api.Stream, 0, len(infos))
	for i := range infos {
		all = append(all, gateway.StreamOf(&infos[i]))
	}
	return all, nil
}

func (k *kafkaTarget) close(ctx context.Context) error { return closePlatform(ctx, k.p) }

// lookForKafka is how often a tail without events checks that Kafka answers.
const lookForKafka = 5 * time.Second

// pingWithin limits the wait for an answer of Kafka.
const pingWithin = 3 * time.Second

// absence tells an idle stream from a Kafka that does not answer. The consumer would wait for ever
// without a message.
type absence struct {
	out  io.Writer
	ping func(context.Context) error
	told bool

	looked time.Time
}

// look reports a lost Kafka once, and its return once.
func (a *absence) look(ctx context.Context) {
	if time.Since(a.looked) < lookForKafka {
		return
	}
	defer func() { a.looked = time.Now() }()
	limited, cancel := context.WithTimeout(ctx, pingWithin)
	defer cancel()
	err := a.ping(limited)
	switch {
	case ctx.Err() != nil || (err != nil) == a.told:
		return
	case err != nil:
		fmt.Fprintf(a.out, "Kafka does not answer; tail continues when it does. Last error: %v\n", err)
	default:
		fmt.Fprintln(a.out, "Kafka is back.")
	}
	a.told = err != nil
}
