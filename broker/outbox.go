package broker

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

// outTopic is a stream as a producer sees it.
type outTopic struct {
	stream string
	name   string
	parts  atomic.Pointer[[]*outPartition] // replaced as a whole when it grows

	growing sync.Mutex // held by who replaces parts

	// Events without a key stay on one partition for a while, so that they
	// share batches, and then move on, so that they spread.
	keyless atomic.Int64 // bytes so far
}

const keylessRun = 16 << 10

// batchesInTimeout is how many batches share the time that an event may be
// tried. A batch is given up at its own age: one that stayed open all through
// an outage would take events down with it that had only just come.
const batchesInTimeout = 8

func newOutTopic(p *Producer, stream string, leaders []int32) *outTopic {
	t := &outTopic{stream: stream, name: p.b.names.Topic(stream)}
	t.parts.Store(&[]*outPartition{})
	t.grow(leaders)
	return t
}

func (t *outTopic) all() []*outPartition { return *t.parts.Load() }

// grow adds the partitions that are new. It never takes any away: a stream does
// not shrink, and an answer that says so is older than one that we have.
func (t *outTopic) grow(leaders []int32) {
	t.growing.Lock()
	defer t.growing.Unlock()
	parts := slices.Clone(t.all())
	for i := len(parts); i < len(leaders); i++ {
		parts = append(parts, &outPartition{topic: t, index: int32(i), leader: leaders[i], id: noIdentity})
	}
	t.parts.Store(&parts)
}

func (t *outTopic) pick(key []byte, size int) *outPartition {
	parts := t.all()
	if key != nil {
		return parts[partitionOf(key, len(parts))]
	}
	run := t.keyless.Add(int64(size)) / keylessRun
	return parts[int(run)%len(parts)]
}

// watch looks for partitions that streams are given while they are published
// to. Without it a producer that runs for months would put a key elsewhere than
// one that has just been started, and nothing where there is room.
func (p *Producer) watch() {
	every := time.NewTicker(growthEvery)
	defer every.Stop()
	for {
		select {
		case <-every.C:
			p.grow(growthEvery / 2) // producers of one broker share the answer
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
		if known := len(t.all()); err == nil && len(leaders) > known {
			t.grow(leaders)
			p.b.log.Info("a stream has grown", "stream", t.stream, "what", "partitions", "from", known, "to", len(leaders))
		} // else it is asked again at the next tick
	}
}

// outPartition is the queue of batches to one partition. The order of the
// queue is the order on the log: only its head is ever in flight, and a head
// is removed only when its fate is known.
//
// A partition is in one place at a time, and whoever holds it there is the one
// to move it on:
//
//	idle       its queue is empty
//	listed     in the list of the sender of its leader
//	in flight  in that sender's request
//	homeless   with the resolver, which finds its leader and lists it again
type outPartition struct {
	topic *outTopic
	index int32

	mu       sync.Mutex
	place    place
	queue    []*batch // the last one is open unless it is full or in flight
	leader   int32
	id       identity
	sequence int32 // of the next batch
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
	bytes      int64 // of the budget
	born       time.Time
	bornMillis int64
	sealed     bool
	packed     bool
	doubt      bool // it may stand on the log although no answer said so
	retries    backoff
	gone       chan struct{} // closed when its events have been told; nil while nobody waits for that
}

func (p *Producer) newBatch() *batch {
	b := p.batches.Get().(*batch)
	b.Reset()
	clear(b.done)
	*b = batch{Builder: b.Builder, done: b.done[:0], born: time.Now()}
	b.bornMillis = b.born.UnixMilli()
	return b
}

// now is the time in milliseconds. It moves on from the batch's birth with the
// monotonic clock, which costs half of asking for both clocks and keeps a
// batch's times in order even where the wall clock is set back.
func (b *batch) now() int64 { return b.bornMillis + time.Since(b.born).Milliseconds() }

// append adds a record to the partition's open batch, stamps it with the time,
// and sees to it that somebody will send it.
func (o *outPartition) append(p *Producer, r *wire.Record, size int, done func(Receipt, error)) {
	o.mu.Lock()
	b := o.open(p, size)
	if r.Time = b.now(); b.Len() > 0 && r.Time-b.bornMillis > p.opt.Timeout.Milliseconds()/batchesInTimeout {
		b.sealed = true
		b = o.open(p, size)
		r.Time = b.now()
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
		p.sender(leader).list(o)
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

// due tells how long the head may still wait for company; not at all if there
// is more behind it.
func (o *outPartition) due(linger time.Duration, now time.Time) time.Duration {
	head := o.queue[0]
	if linger == 0 || len(o.queue) > 1 || head.sealed || head.Size() >= targetBatch {
		return 0
	}
	return linger - now.Sub(head.born)
}

// queue0 does something with the head. The caller holds the partition in its
// place; the lock is against those who append.
func (o *outPartition) queue0(do func(*batch)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	do(o.queue[0])
}

// pop removes the head, whose events have been told, and gives its memory back.
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

// emptied returns what is closed when all that is queued now has been told, or
// nil if nothing is.
func (o *outPartition) emptied() chan struct{} {
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

// tell calls the callbacks of a batch. No lock is held: a callback may send.
func (b *batch) tell(r Receipt, err error) {
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

// fail gives up the head. If it may stand on the log all the same, the
// partition takes a new identity, because the next sequence number is then
// unknown too.
//
// The head may never have been sent and be open still: an event appended to it
// while the others are told would never be told itself.
func (o *outPartition) fail(p *Producer, err error) {
	o.mu.Lock()
	b := o.queue[0]
	b.sealed = true
	err = fmt.Errorf("publish to stream %s, partition %d: %w", o.topic.stream, o.index, err)
	if b.doubt && p.tx == nil { // a transaction aborts, and nothing of it stands
		err = fmt.Errorf("%w: %w", ErrInDoubt, err)
		p.ident.burn(o.id)
		o.id = noIdentity
	}
	o.mu.Unlock()
	p.counts.gaveUp(len(b.done), b.doubt && p.tx == nil)
	b.tell(o.receipt(-1), err)
	o.pop(p)
}

// expire gives up heads that have been tried for too long, and tells whether
// anything is left. Called by whoever holds the partition.
func (o *outPartition) expire(p *Producer, last error) bool {
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
		o.fail(p, fmt.Errorf("gave up after %s: %w", age.Round(time.Millisecond), last))
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
		o.fail(p, ErrClosed)
	}
}

// identity is a producer id and its epoch, under which the broker counts the
// sequence of a partition's batches.
type identity struct {
	producer int64
	epoch    int16
}

var noIdentity = identity{-1, -1}

// identities hands out the producer's identity. A partition that has lost
// track of its sequence asks for another, and only that partition changes:
// the others keep theirs, and with it the broker's memory of what they have
// sent, so that their retries stay free of duplicates.
type identities struct {
	p      *Producer
	asking sync.Mutex // held while Kafka is asked, so that one asks for all
	mu     sync.Mutex // never held for long: burn is called under a partition's lock
	now    identity
	ok     bool
}

// get returns an identity that a partition has not used yet.
func (i *identities) get(ctx context.Context) (identity, error) {
	if id, ok := i.known(); ok {
		return id, nil
	}
	i.asking.Lock()
	defer i.asking.Unlock()
	if id, ok := i.known(); ok {
		return id, nil
	}
	id, err := i.p.b.initProducer(ctx, "", noIdentity)
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

// burn makes the next get return a new identity, unless that has happened.
func (i *identities) burn(used identity) {
	i.mu.Lock()
	if i.now == used {
		i.ok = false
	}
	i.mu.Unlock()
}

// initProducer asks for a producer id. With a transactional id it also fences
// whoever used that id before and aborts what they left open.
func (b *Broker) initProducer(ctx context.Context, transactional string, old identity) (identity, error) {
	res, err := b.client.InitProducerID(ctx, &kafka.InitProducerIDRequest{
		TransactionalID:      transactional,
		TransactionTimeoutMs: int(b.transactionTimeout.Milliseconds()),
		ProducerID:           int(old.producer),
		ProducerEpoch:        int(old.epoch),
	})
	if err == nil {
		err = res.Error
	}
	if err != nil {
		return noIdentity, fmt.Errorf("ask for a producer id: %w", err)
	}
	return identity{int64(res.Producer.ProducerID), int16(res.Producer.ProducerEpoch)}, nil
}
