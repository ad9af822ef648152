package broker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

// Compression is the codec with which a producer compresses its batches.
type Compression string

// The compressions that a producer can write. A consumer reads all of Kafka's codecs.
const (
	Uncompressed Compression = "none"
	LZ4          Compression = "lz4"
	Zstd         Compression = "zstd"
)

func (c Compression) codec() (wire.Codec, error) {
	switch c {
	case "", Uncompressed:
		return wire.None, nil
	case LZ4:
		return wire.LZ4, nil
	case Zstd:
		return wire.Zstd, nil
	}
	return 0, fmt.Errorf("compression %q: use none, lz4 or zstd", c)
}

// ProducerOptions configure a producer; the zero value is right for most. There is no option for
// acks or idempotence: a producer always waits for all in-sync replicas and is always idempotent.
type ProducerOptions struct {
	Linger      time.Duration // longest wait of an event for more events (at most 5 ms)
	Compression Compression
	MaxBuffered int           // limit of bytes of events not yet acknowledged; 64 MiB
	MaxEvent    int           // limit of bytes of one event; 1 MiB less the batch header
	Timeout     time.Duration // time after which an event is given up; 2 minutes
	// AsRead is for a producer that forwards events which were read. Readers accept more than
	// publishers may write, and an event that was accepted must be forwardable. With AsRead an
	// event is sent unchanged if the event is Legible.
	AsRead bool
}

const (
	defaultBuffered = 64 << 20
	defaultMaxEvent = 1<<20 - 1024
	defaultTimeout  = 2 * time.Minute
	maxLinger       = 5 * time.Millisecond
	targetBatch     = 1_000_000
	targetRequest   = 8 << 20
)

// Receipt is the place at which an event was stored. Offset is -1 in the rare case that the log has
// the event but Kafka no longer knows its offset.
type Receipt struct {
	Stream    string
	Partition int32
	Offset    int64
}

// Position returns the receipt as a position.
func (r Receipt) Position() Position {
	return Position{Stream: r.Stream, Partition: r.Partition, Offset: r.Offset}
}

// Errors that callers branch on.
var (
	// ErrTooLarge means that the event is larger than the stream allows.
	ErrTooLarge = errors.New("event is too large")
	// ErrNoStream means that the stream does not exist.
	ErrNoStream = errors.New("no such stream")
	// ErrInDoubt means that the event was sent and no answer came in time. It may or may not be on
	// the stream. Publishing it again under the same id is safe, because the first one counts.
	ErrInDoubt = errors.New("outcome unknown")
	// ErrClosed means that the producer or consumer has been closed.
	ErrClosed = errors.New("closed")
)

// Producer publishes events, idempotently and in order. Events that one goroutine sends under one
// key are on the stream once and in that order. If an event cannot be stored, its callback gets an
// error. A Producer is safe for concurrent use.
//
// Each sender goroutine owns the requests to one server. The resolver owns the partitions whose
// leader is not known; outPartition describes how a partition moves between them. watch looks for
// added partitions. Close waits for all these goroutines.
type Producer struct {
	b     *Broker
	opt   ProducerOptions
	codec wire.Codec
	ident identities
	tx    *transaction // nil unless transactional

	mu      sync.Mutex
	closed  bool
	topics  atomic.Pointer[map[string]*outTopic]
	senders map[int32]*sender

	resolve  resolver
	batches  sync.Pool
	scratch  sync.Pool
	budget   budget
	counts   producerCounts
	flushing atomic.Int32

	ctx     context.Context // context of the goroutines; ended by Close
	stop    context.CancelCauseFunc
	running sync.WaitGroup
}

// Producer returns a producer with its own producer id. The caller must close it.
func (b *Broker) Producer(o ProducerOptions) (*Producer, error) {
	codec, err := o.Compression.codec()
	if err != nil {
		return nil, err
	}
	if o.Linger < 0 || o.Linger > maxLinger {
		return nil, fmt.Errorf("linger %s: use 0 to %s", o.Linger, maxLinger)
	}
	o.MaxBuffered = orDefault(o.MaxBuffered, defaultBuffered)
	o.MaxEvent = orDefault(o.MaxEvent, defaultMaxEvent)
	o.Timeout = orDefault(o.Timeout, defaultTimeout)
	p := &Producer{b: b, opt: o, codec: codec, senders: map[int32]*sender{}}
	p.ctx, p.stop = context.WithCancelCause(context.Background())
	p.topics.Store(&map[string]*outTopic{})
	p.budget.left = int64(o.MaxBuffered)
	p.ident.p = p
	p.batches.New = func() any { return &batch{} }
	p.scratch.New = func() any { return &scratch{} }
	p.resolve.wake = make(chan struct{}, 1)
	p.running.Go(func() { p.resolve.run(p) })
	return p, nil
}

func orDefault[T int | time.Duration](v, d T) T {
	if v == 0 {
		return d
	}
	return v
}

// Publish publishes an event and waits until all in-sync replicas have it.
func (p *Producer) Publish(ctx context.Context, stream string, v *View) (Receipt, error) {
	type outcome struct {
		r   Receipt
		err error
	}
	ch := make(chan outcome, 1)
	if err := p.send(ctx, stream, anyPartition, v, func(r Receipt, err error) { ch <- outcome{r, err} }); err != nil {
		p.counts.refused.Add(1)
		return Receipt{Stream: stream}, ofEvent(stream, v, err)
	}
	select {
	case o := <-ch:
		if o.err != nil {
			o.err = fmt.Errorf("event %s: %w", v.ID, o.err)
		}
		return o.r, o.err
	case <-ctx.Done():
		return Receipt{Stream: stream}, ofEvent(stream, v, fmt.Errorf("%w: %w", ErrInDoubt, context.Cause(ctx)))
	}
}

func ofEvent(stream string, v *View, err error) error {
	return fmt.Errorf("publish event %s to stream %s: %w", v.ID, stream, err)
}

// Send queues an event and returns. It waits only while the buffer is full, until the context ends.
// The event's bytes are copied. done is called once, by another goroutine or this one, and must not
// block. done may send only with a context that ends. If the buffer is full, Send would wait for
// acknowledgements, which are not handled before done returns.
func (p *Producer) Send(ctx context.Context, stream string, v *View, done func(Receipt, error)) {
	p.sendTo(ctx, stream, anyPartition, v, done)
}

// SendTo is Send to a partition that the caller chooses, whatever the event's key. A partition that
// does not exist is an error.
func (p *Producer) SendTo(ctx context.Context, stream string, partition int32, v *View, done func(Receipt, error)) {
	p.sendTo(ctx, stream, partition, v, done)
}

// anyPartition means that the event's key chooses the partition.
const anyPartition int32 = math.MinInt32

func (p *Producer) sendTo(ctx context.Context, stream string, partition int32, v *View, done func(Receipt, error)) {
	if err := p.send(ctx, stream, partition, v, done); err != nil {
		p.counts.refused.Add(1)
		done(Receipt{Stream: stream}, ofEvent(stream, v, err))
	}
}

func (p *Producer) send(ctx context.Context, stream string, partition int32, v *View, done func(Receipt, error)) error {
	s := p.scratch.Get().(*scratch)
	defer p.scratch.Put(s)
	if err := s.encode(v, p.opt.AsRead); err != nil {
		return err
	}
	topic, err := p.topic(ctx, stream)
	if err != nil {
		return err
	}
	size := wire.RecordSize(&s.record)
	if size > p.opt.MaxEvent {
		return fmt.Errorf("%w: it has %d bytes, %d are allowed; keep large data in a store and publish its address", ErrTooLarge, size, p.opt.MaxEvent)
	}
	var o *outPartition
	if partition != anyPartition {
		if o, err = p.partition(ctx, topic, partition); err != nil {
			return err
		}
	}
	if err := p.budget.take(ctx, p.ctx, int64(size)); err != nil {
		return err
	}
	if o == nil {
		o = topic.pick(s.record.Key, size)
	}
	o.append(p, &s.record, size, done)
	return nil
}

// partition returns one of a stream's partitions by its number. An unknown partition may have been
// added a moment ago, so partition asks Kafka before it returns an error.
func (p *Producer) partition(ctx context.Context, t *outTopic, index int32) (*outPartition, error) {
	if parts := t.now(); index >= 0 && int(index) < len(parts) {
		return parts[index], nil
	}
	leaders, err := p.b.leaders(ctx, t.name, maxLeaderAge)
	if err != nil {
		return nil, noStream(err)
	}
	t.addPartitions(leaders)
	if parts := t.now(); index >= 0 && int(index) < len(parts) {
		return parts[index], nil
	}
	return nil, fmt.Errorf("partition %d is not there: the stream has %d", index, len(t.now()))
}

// topic returns a stream's partitions. The first call for a stream asks Kafka.
func (p *Producer) topic(ctx context.Context, stream string) (*outTopic, error) {
	if t := (*p.topics.Load())[stream]; t != nil {
		return t, nil
	}
	leaders, err := p.leadersOf(ctx, stream)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	known := *p.topics.Load()
	if t := known[stream]; t != nil {
		return t, nil
	}
	t := newOutTopic(p, stream, leaders)
	grown := make(map[string]*outTopic, len(known)+1)
	for name, topic := range known {
		grown[name] = topic
	}
	grown[stream] = t
	p.topics.Store(&grown)
	if len(grown) == 1 {
		p.running.Go(p.watch)
	}
	return t, nil
}

// leadersOf retries through an election or a server start until the timeout of an event. A topic
// that Kafka does not know is ErrNoStream: after EnsureStreams has created a topic, every server
// knows it.
func (p *Producer) leadersOf(ctx context.Context, stream string) ([]int32, error) {
	ctx, end := context.WithCancelCause(ctx)
	defer context.AfterFunc(p.ctx, func() { end(ErrClosed) })()
	defer end(nil)
	ctx, cancel := context.WithTimeout(ctx, p.opt.Timeout)
	defer cancel()
	var w backoff
	for {
		leaders, err := p.b.leaders(ctx, p.b.names.Topic(stream), time.Minute)
		switch {
		case err == nil && len(leaders) > 0:
			return leaders, nil
		case errors.Is(err, kafka.UnknownTopicOrPartition), errors.Is(err, kafka.InvalidTopic):
			return nil, fmt.Errorf("%w; `tidemill streams` lists the streams", ErrNoStream)
		case err != nil && !isTransient(err):
			return nil, err
		}
		if wait := w.wait(ctx); wait != nil {
			return nil, errors.Join(err, wait)
		}
	}
}

// Flush waits until every event sent before the call has its answer. Events that are sent later do
// not prolong it.
func (p *Producer) Flush(ctx context.Context) error {
	defer p.disableLinger()()
	var waits []chan struct{}
	for _, t := range *p.topics.Load() {
		for _, o := range t.all() {
			if gone := o.whenEmpty(); gone != nil {
				waits = append(waits, gone)
			}
		}
	}
	for _, gone := range waits {
		select {
		case <-gone:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// disableLinger turns linger off until the returned function is called.
func (p *Producer) disableLinger() (done func()) {
	p.flushing.Add(1)
	p.mu.Lock()
	for _, s := range p.senders {
		s.nudge()
	}
	p.mu.Unlock()
	return func() { p.flushing.Add(-1) }
}

// Close flushes until the context ends, and closes the producer. Events without an answer by then
// get an error.
func (p *Producer) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.budget.close()
	done := p.disableLinger()
	err := p.budget.wait(ctx)
	done()
	p.mu.Lock()
	p.stop(ErrClosed) // no sender starts after this call, so Wait waits for all senders
	p.mu.Unlock()
	p.running.Wait()
	p.abandon()
	return err
}

// abandon calls the callbacks of all remaining events with an error. An event that passed the check
// for closed a moment ago may not be in a queue yet, so abandon repeats until no event is counted.
func (p *Producer) abandon() {
	for !p.budget.isEmpty() {
		for _, t := range *p.topics.Load() {
			for _, o := range t.all() {
				o.abandon(p)
			}
		}
		runtime.Gosched()
	}
}

// scratch is the memory for encoding one event, reused by the next.
type scratch struct {
	record  wire.Record
	encoder encoder
}

func (s *scratch) encode(v *View, asRead bool) error {
	check := (*View).Validate
	if asRead {
		check = (*View).Legible
	}
	if err := check(v); err != nil {
		return err
	}
	r := &s.record
	r.Key, r.Value, r.Headers = s.encoder.encode(v, r.Headers[:0])
	return nil
}

func (p *Producer) identity(ctx context.Context) (identity, error) {
	if p.tx != nil {
		return p.tx.identity()
	}
	return p.ident.get(ctx)
}

// PartitionOf returns the partition of a record key. It is the same as with Kafka's own clients, so
// that the events of a key from foreign producers and from ours are in one order.
func PartitionOf(key []byte, partitions int) int32 {
	return int32(int(murmur2(key)&0x7fffffff) % partitions)
}

// PartitionOf returns the partition that the event's key chooses, or -1 if the event has no key or
// Kafka has not been asked for the partitions yet.
func (p *Producer) PartitionOf(stream string, v *View) int32 {
	key, t := v.recordKey(), (*p.topics.Load())[stream]
	if key == nil || t == nil {
		return -1
	}
	return PartitionOf(key, len(t.all()))
}

// murmur2 is Kafka's variant: seed 0x9747b28c, little-endian words.
func murmur2(b []byte) uint32 {
	const m = 0x5bd1e995
	h := uint32(0x9747b28c) ^ uint32(len(b))
	for ; len(b) >= 4; b = b[4:] {
		k := binary.LittleEndian.Uint32(b) * m
		k ^= k >> 24
		h = h*m ^ k*m
	}
	switch len(b) {
	case 3:
		h ^= uint32(b[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(b[1]) << 8
		fallthrough
	case 1:
		h = (h ^ uint32(b[0])) * m
	}
	h = (h ^ h>>13) * m
	return h ^ h>>15
}
