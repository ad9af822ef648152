package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

// outTopic is a stream for a producer.
type outTopic struct {
	stream string
	name   string
	parts  atomic.Pointer[outPartitions] // replaced as a whole when their number changes

	growing sync.Mutex // held while parts is replaced
	fewer   time.Time  // time since when Kafka says that partitions are gone; only watch uses it

	// Events without a key stay on one partition for a while to share batches. Then they move on to
	// the next partition, to spread.
	keyless atomic.Int64 // total bytes of events without a key
}

// outPartitions are the partitions of a stream. A stream that is created again may have fewer of them.
type outPartitions struct {
	all []*outPartition // with those that are gone, whose queues may have events
	now int             // number of partitions that the stream has
}

const keylessRun = 16 << 10

// batchesInTimeout divides the publish timeout into parts. A batch stays open for at most one part.
// A batch is given up when the batch itself is too old. If a batch stayed open through a whole
// outage, new events in it would be given up too early.
const batchesInTimeout = 8

func newOutTopic(p *Producer, stream string, leaders []int32) *outTopic {
	t := &outTopic{stream: stream, name: p.b.names.Topic(stream)}
	t.parts.Store(&outPartitions{})
	t.resize(0, leaders)
	return t
}

// all returns every partition that the stream has had.
func (t *outTopic) all() []*outPartition { return t.parts.Load().all }

// now returns the partitions that the stream has.
func (t *outTopic) now() []*outPartition {
	parts := t.parts.Load()
	return parts.all[:parts.now]
}

// addPartitions adds new partitions. An answer with fewer partitions may be old, so it changes nothing.
func (t *outTopic) addPartitions(leaders []int32) {
	for from := len(t.now()); len(leaders) > from && !t.resize(from, leaders); {
		from = len(t.now())
	}
}

// resize changes the number of partitions. It returns false if another goroutine has changed it meanwhile: its answer may
// be newer.
func (t *outTopic) resize(from int, leaders []int32) bool {
	t.growing.Lock()
	defer t.growing.Unlock()
	if len(t.now()) != from {
		return false
	}
	parts := slices.Clone(t.all())
	for i := len(parts); i < len(leaders); i++ {
		parts = append(parts, &outPartition{topic: t, index: int32(i), leader: leaders[i], id: noIdentity})
	}
	t.parts.Store(&outPartitions{parts, len(leaders)})
	return true
}

func (t *outTopic) pick(key []byte, size int) *outPartition {
	parts := t.now()
	if key != nil {
		return parts[PartitionOf(key, len(parts))]
	}
	run := t.keyless.Add(int64(size)) / keylessRun
	return parts[int(run)%len(parts)]
}

// watch looks for streams whose number of partitions changes while they are published to. Otherwise a
// producer that has run for months would choose another partition for a key than a new producer,
// would never use the added partitions, and would send to those that are gone.
func (p *Producer) watch() {
	every := time.NewTicker(p.b.growthEvery)
	defer every.Stop()
	for {
		select {
		case <-every.C:
			p.grow(p.b.growthEvery / 2) // producers of one broker share the answer
		case <-p.ctx.Done():
			return
		}
	}
}

func (p *Producer) grow(maxAge time.Duration) {
	for _, t := range *p.topics.Load() {
		ctx, cancel := context.WithTimeout(p.ctx, 2*time.Second)
		leaders, err := p.b.leaders(ctx, t.name, maxAge)
		cancel()
		if err == nil && len(leaders) > 0 {
			p.noteCount(t, leaders)
		} // otherwise the next tick asks again
	}
}

// noteCount changes a stream's number of partitions to what Kafka says. After a growth, a server may say the old
// number for some seconds. So a smaller one counts only after a minute.
func (p *Producer) noteCount(t *outTopic, leaders []int32) {
	known := len(t.now())
	switch {
	case len(leaders) >= known:
		t.fewer = time.Time{}
	case t.fewer.IsZero():
		t.fewer = time.Now()
	}
	changes := len(leaders) > known || len(leaders) < known && time.Since(t.fewer) >= p.b.missingFor
	if changes && t.resize(known, leaders) {
		p.b.log.Info("producer: a stream has another number of partitions", "stream", t.stream, "what", "partitions", "from", known, "to", len(leaders))
	}
}

// outPartition is the queue of batches to one partition. The order of the queue is the order on the
// log: only its head is ever in flight, and a head is removed only after its result is known.
//
// A partition is in one place at a time, and the goroutine that holds it there moves it on:
//
//	idle       its queue is empty
//	listed     in the list of the sender of its leader
//	in flight  in that sender's request
//	homeless   with the resolver, which finds its leader and lists it again
//	homeless   with the resolver, which finds its leader and lists it again
type outPartition struct {
	topic *outTopic
	index int32

	mu       sync.Mutex
	place    place
	queue    []*batch // the last one is open unless it is full or in flight
	leader   int32
	id       identity
	sequence int32 // sequence number of the next batch
}

type place int8

const (
	idle place = iota
	listed
	inFlight
	homeless
)

// batch is events on their way to one partition.
type batch struct {
	wire.Builder
	done       []func(Receipt, error)
	bytes      int64 // bytes taken from the buffer's budget
	born       time.Time
	bornMillis int64
	sealed     bool
	packed     bool
	doubt      bool // whether it may be on the log although no answer confirmed it
	retries    backoff
	gone       chan struct{} // closed after the callbacks of its events; nil if nothing waits for it
}

func (p *Producer) newBatch() *batch {
	b := p.batches.Get().(*batch)
	b.Reset()
	clear(b.done)
	*b = batch{Builder: b.Builder, done: b.done[:0], born: time.Now()}
	b.bornMillis = b.born.UnixMilli()
	return b
}

// nowMillis returns the time in milliseconds: the batch's birth plus the monotonic time since. That
// costs half of reading both clocks, and keeps the times in a batch in order even if the wall clock
// is set back.
func (b *batch) nowMillis() int64 { return b.bornMillis + time.Since(b.born).Milliseconds() }

// append adds a record to the partition's open batch with the present time. It makes sure that a
// sender will send it.
func (o *outPartition) append(p *Producer, r *wire.Record, size int, done func(Receipt, error)) {
	o.mu.Lock()
	b := o.open(p, size)
	if r.Time = b.nowMillis(); b.Len() > 0 && r.Time-b.bornMillis > p.opt.Timeout.Milliseconds()/batchesInTimeout {
		b.sealed = true
		b = o.open(p, size)
		r.Time = b.nowMillis()
	}
	b.Append(r)
	b.done = append(b.done, done)
	b.bytes += int64(size)
	full := b.Size() >= targetBatch
	leader, list := o.leader, o.place == idle
	if list {
		o.place = listed
	}
	o.mu.Unlock()
	switch {
	case list:
		p.sender(leader).enqueue(o)
	case full && p.opt.Linger > 0:
		p.sender(leader).nudge()
	}
}

func (o *outPartition) open(p *Producer, size int) *batch {
	if n := len(o.queue); n > 0 {
		last := o.queue[n-1]
		if !last.sealed && last.Size()+size <= targetBatch {
			return last
		}
	}
	b := p.newBatch()
	o.queue = append(o.queue, b)
	return b
}

// remainingLinger returns how long the head may still wait for more events: zero if another batch
// follows it.
func (o *outPartition) remainingLinger(linger time.Duration, now time.Time) time.Duration {
	head := o.queue[0]
	if linger == 0 || len(o.queue) > 1 || head.sealed || head.Size() >= targetBatch {
		return 0
	}
	return linger - now.Sub(head.born)
}

// withHead calls do with the head. The caller is the place that holds the partition. The lock
// prevents concurrent appends.
func (o *outPartition) withHead(do func(*batch)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	do(o.queue[0])
}

// pop removes the head, after its callbacks, and returns its memory.
func (o *outPartition) pop(p *Producer) {
	o.mu.Lock()
	b := o.queue[0]
	n := copy(o.queue, o.queue[1:])
	o.queue[n] = nil
	o.queue = o.queue[:n]
	events, bytes, gone := len(b.done), b.bytes, b.gone
	o.mu.Unlock()
	p.batches.Put(b)
	p.budget.give(bytes, events)
	if gone != nil {
		close(gone)
	}
}

// whenEmpty returns a channel that is closed after the callbacks of all queued events. It is nil if
// none is queued.
func (o *outPartition) whenEmpty() chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) == 0 {
		return nil
	}
	last := o.queue[len(o.queue)-1]
	if last.gone == nil {
		last.gone = make(chan struct{})
	}
	return last.gone
}

// callCallbacks calls the callbacks of a batch. No lock is held, because a callback may send.
func (b *batch) callCallbacks(r Receipt, err error) {
	for i, done := range b.done {
		at := r
		if at.Offset >= 0 {
			at.Offset += int64(i)
		}
		done(at, err)
	}
}

func (o *outPartition) receipt(offset int64) Receipt {
	return Receipt{Stream: o.topic.stream, Partition: o.index, Offset: offset}
}

// failHead gives up the head. If the head may be on the log nevertheless, the partition takes a new
// identity, because the next sequence number is then unknown too.
//
// A head that was never sent may still be open. It is sealed first, because the callback of an
// event that is appended later would never be called.
func (o *outPartition) failHead(p *Producer, err error) {
	o.mu.Lock()
	b := o.queue[0]
	b.sealed = true
	err = fmt.Errorf("publish to stream %s, partition %d: %w", o.topic.stream, o.index, err)
	if b.doubt && p.tx == nil { // a transaction aborts, so nothing of it is on the log
		err = fmt.Errorf("%w: %w", ErrInDoubt, err)
		p.ident.invalidate(o.id)
		o.id = noIdentity
	}
	o.mu.Unlock()
	p.counts.gaveUp(len(b.done), b.doubt && p.tx == nil)
	b.callCallbacks(o.receipt(-1), err)
	o.pop(p)
}

// expireHeads gives up heads that were tried for too long, and reports whether any are left. The
// caller holds the partition.
func (o *outPartition) expireHeads(p *Producer, last error) bool {
	for {
		o.mu.Lock()
		if len(o.queue) == 0 {
			o.place = idle
			o.mu.Unlock()
			return false
		}
		age := time.Since(o.queue[0].born)
		o.mu.Unlock()
		if age < p.opt.Timeout {
			return true
		}
		o.failHead(p, fmt.Errorf("gave up after %s: %w", age.Round(time.Millisecond), last))
	}
}

func (o *outPartition) abandon(p *Producer) {
	for {
		o.mu.Lock()
		n := len(o.queue)
		o.mu.Unlock()
		if n == 0 {
			return
		}
		o.failHead(p, ErrClosed)
	}
}

// identity is a producer id and its epoch. The broker counts the sequence of a partition's batches
// under it.
type identity struct {
	producer int64
	epoch    int16
}

var noIdentity = identity{-1, -1}

// identities hands out the producer's identity. A partition that has lost its sequence number asks
// for a new identity, and only that partition changes. The others keep theirs: the broker still
// knows their sequence numbers, so their retries cause no duplicates.
type identities struct {
	p      *Producer
	asking sync.Mutex // held while Kafka is asked, so that one request serves all partitions
	mu     sync.Mutex // never held for long, because invalidate is called under a partition's lock
	now    identity
	ok     bool
}

// get returns an identity that the partition has not used yet.
func (i *identities) get(ctx context.Context) (identity, error) {
	if id, ok := i.known(); ok {
		return id, nil
	}
	i.asking.Lock()
	defer i.asking.Unlock()
	if id, ok := i.known(); ok {
		return id, nil
	}
	id, err := i.p.b.initProducer(ctx, "", noIdentity, outcomeUnknown)
	if err != nil {
		return noIdentity, err
	}
	i.mu.Lock()
	i.now, i.ok = id, true
	i.mu.Unlock()
	return id, nil
}

func (i *identities) known() (identity, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.now, i.ok
}

// invalidate makes the next get return a new identity, unless it has changed already.
func (i *identities) invalidate(used identity) {
	i.mu.Lock()
	if i.now == used {
		i.ok = false
	}
	i.mu.Unlock()
}

// initProducer asks for a producer id. With a transactional id it also fences the former user of
// that id and aborts its open transaction. Kafka keeps the outcome with the id. After a commit the next process gets a
// minute to continue, which is the default timeout of Kafka's own clients, unless Kafka allows less.
func (b *Broker) initProducer(ctx context.Context, transactional string, old identity, kept outcome) (identity, error) {
	req := &kafka.InitProducerIDRequest{
		TransactionalID:      transactional,
		TransactionTimeoutMs: kept.timeout(b.transactionTimeout, time.Minute),
		ProducerID:           int(old.producer),
		ProducerEpoch:        int(old.epoch),
	}
	res, err := b.client.InitProducerID(ctx, req)
	if err == nil && errors.Is(res.Error, kafka.InvalidTransactionTimeout) {
		req.TransactionTimeoutMs = kept.timeout(b.transactionTimeout, 0)
		res, err = b.client.InitProducerID(ctx, req)
	}
	if err == nil {
		err = res.Error
	}
	if err != nil {
		return noIdentity, fmt.Errorf("ask for a producer id: %w", err)
	}
	return identity{int64(res.Producer.ProducerID), int16(res.Producer.ProducerEpoch)}, nil
}
