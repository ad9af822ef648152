package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"tidemill.dev/broker/internal/wire"
)

// Start says where a partition is read from that its group has no offset for.
type Start struct {
	kind  startKind
	value int64
}

type startKind int8

const (
	atEarliest startKind = iota
	atLatest
	atOffset
	atTime
)

// Earliest starts at the oldest event that is still there.
func Earliest() Start { return Start{kind: atEarliest} }

// Latest starts behind the newest event.
func Latest() Start { return Start{kind: atLatest} }

// AtOffset starts each partition at an offset.
func AtOffset(offset int64) Start { return Start{atOffset, offset} }

// Since starts at the first event that reached the log at a time or later.
func Since(t time.Time) Start { return Start{atTime, t.UnixMilli()} }

// String is the start in words that hold anywhere: beginning, end, an offset or
// a time in UTC.
func (s Start) String() string {
	switch s.kind {
	case atEarliest:
		return "beginning"
	case atLatest:
		return "end"
	case atOffset:
		return strconv.FormatInt(s.value, 10)
	}
	return time.UnixMilli(s.value).UTC().Format(time.RFC3339Nano)
}

// ConsumerOptions say what is read and in whose name.
type ConsumerOptions struct {
	// Group shares the partitions of Streams among its members and remembers
	// how far each has been read. Without one, all partitions are read here,
	// nothing is remembered, and what cannot be decoded is handed out with its
	// error instead of going to the dead letters.
	Group   string
	Streams []string
	Start   Start

	MaxBytes       int           // of fetched bytes whose events have not all ended; 64 MiB
	SessionTimeout time.Duration // after which a silent member is taken for dead; 6 s
	DrainTimeout   time.Duration // how long a partition that is taken away may finish what it began; 20 s
	CommitEvery    time.Duration // 1 s

	// Rest is how long more is not asked for behind an answer that brought a
	// little: what comes meanwhile comes together. Where many read the same
	// stream, and few of them have to know of an event at once, that spares Kafka
	// and all of them most of the work. Who is behind does not rest.
	Rest time.Duration

	// Assigned, if set, is called when partitions are about to be read, with
	// the offset each would start at, and may move it: forward over what it
	// knows to be dealt with, which the group is then told, or back. It is
	// called again when a transaction has failed and its partitions are about
	// to be read anew, by the goroutine that runs the transaction. Either way
	// Position.Note is the note that was committed, which stays until there is
	// another; it is not the hook's to change.
	//
	// With a group a partition's tenure here is: Assigned, perhaps again and
	// again; Leaving, unless it is lost; Gone; and only then Assigned anew. An
	// Assigned that fails begins no tenure. Assigned and Gone are called one at a
	// time; neither may wait for another hook or a transaction.
	Assigned func(context.Context, []Position) ([]Position, error)

	// Leaving, if set, is called when partitions are about to be given up in
	// order, because of a rebalance or Close: the last moment to commit a
	// transaction for them. Nothing more is handed out of them, nor do they come
	// back without Gone and Assigned. They are kept until it has returned and all
	// that is open has ended, or their time is up: DrainTimeout, at Close as long
	// as Close may take if that is shorter. The context ends then, or when they
	// are lost meanwhile. Everything else goes on beside it.
	Leaving func(context.Context, []Position)

	// Gone, if set, is called when partitions are no longer this consumer's,
	// whatever the reason: given up in order, the session lost, Close, or an
	// aborted transaction after which Kafka did not say where the group is; then
	// another goroutine calls it soon after Do has returned. It must not block.
	// For both hooks a position's offset is that of the first event that had not
	// ended.
	Gone func([]Position)
}

func comparePositions(a, b Position) int {
	return cmp.Or(cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Partition, b.Partition))
}

// Position is a place in a stream.
type Position struct {
	Stream    string
	Partition int32
	Offset    int64

	// Note is the text that stands beside the offset on the log, where the
	// offset is one that a group has committed: as Assigned is told and Committed
	// tells. Elsewhere it is empty, and nobody looks at it.
	Note string
}

const (
	defaultMaxBytes  = 64 << 20
	defaultSession   = 6 * time.Second
	defaultDrain     = 20 * time.Second
	defaultCommit    = time.Second
	partitionFetch   = 1 << 20
	nodeFetch        = 2 << 20 // an answer that is decoded while the core still has it in its cache costs a fifth less than 16 MiB
	heartbeatsInLife = 20      // of a session; a rebalance is noticed within one
)

// Consumer reads streams, alone or as a member of a group.
//
// Who owns what: a fetcher goroutine a server owns the requests to it and
// decodes the answers; the router finds a fetcher for partitions that have
// none; the member goroutine owns which partitions are read and
// commits; Poll hands deliveries to whoever asks; the lock of an inPartition
// guards what they share. Close ends them in the written order: nothing new is
// handed out, what was handed out ends or runs out of time, offsets are
// committed, the group is left, the goroutines end.
type Consumer struct {
	b       *Broker
	opt     ConsumerOptions
	member  *member      // nil without a group
	letters *deadLetters // nil without a group

	mu       sync.Mutex
	parts    map[wire.TopicPartition]*inPartition
	queue    []*Delivery
	arrived  chan struct{} // closed when queue gets its first
	fetchers map[int32]*fetcher
	lost     chan struct{} // wakes the router
	closing  bool
	failure  error                             // why reading ended
	absent   map[wire.TopicPartition]time.Time // since when Kafka denies that they exist

	room    bytesInFlight
	hooks   sync.Mutex // held while Assigned or Gone is called: one at a time
	counts  consumerCounts
	memory  sync.Pool // of *contents
	buffers sync.Pool // of *fetchBuffer

	ctx     context.Context
	stop    context.CancelCauseFunc
	running sync.WaitGroup
}

// Consumer begins to read. Close it.
func (b *Broker) Consumer(ctx context.Context, o ConsumerOptions) (*Consumer, error) {
	if len(o.Streams) == 0 {
		return nil, errors.New("consume: name at least one stream")
	}
	c := b.newConsumer(o)
	counts, err := c.countPartitions(ctx)
	if err == nil && o.Group == "" {
		err = c.readAll(ctx, counts)
	}
	if err == nil && o.Group != "" {
		c.letters, err = newDeadLetters(c)
	}
	if err != nil {
		c.stop(ErrClosed)
		c.running.Wait()
		return nil, err
	}
	if o.Group != "" {
		c.member = newMember(c)
		c.running.Go(c.member.run)
	} else {
		c.running.Go(func() { c.watch(counts) })
	}
	return c, nil
}

// newConsumer is a consumer that reads nothing yet. Its router runs.
func (b *Broker) newConsumer(o ConsumerOptions) *Consumer {
	c := b.stillConsumer(o)
	c.running.Go(c.route)
	return c
}

// stillConsumer is a consumer that nothing runs for. It decodes what it is given.
func (b *Broker) stillConsumer(o ConsumerOptions) *Consumer {
	o.MaxBytes = orDefault(o.MaxBytes, defaultMaxBytes)
	o.SessionTimeout = orDefault(o.SessionTimeout, defaultSession)
	o.DrainTimeout = orDefault(o.DrainTimeout, defaultDrain)
	o.CommitEvery = orDefault(o.CommitEvery, defaultCommit)
	c := &Consumer{b: b, opt: o, parts: map[wire.TopicPartition]*inPartition{}, absent: map[wire.TopicPartition]time.Time{}, fetchers: map[int32]*fetcher{},
		arrived: make(chan struct{}), lost: make(chan struct{}, 1)}
	c.room.limit = int64(o.MaxBytes)
	c.memory.New = func() any { return new(contents) }
	c.buffers.New = func() any { return &fetchBuffer{c: c} }
	c.ctx, c.stop = context.WithCancelCause(context.Background())
	return c
}

// countPartitions asks how many partitions each stream has.
func (c *Consumer) countPartitions(ctx context.Context) (map[string]int, error) {
	counts := map[string]int{}
	for _, stream := range c.opt.Streams {
		topic := c.b.names.Topic(stream)
		leaders, err := c.b.leaders(ctx, topic, time.Second)
		if err != nil {
			return nil, fmt.Errorf("consume stream %s: %w", stream, noStream(err))
		}
		counts[topic] = len(leaders)
	}
	return counts, nil
}

// readAll takes every partition, for a consumer without a group.
func (c *Consumer) readAll(ctx context.Context, counts map[string]int) error {
	var all []wire.TopicPartition
	for topic, n := range counts {
		for i := range n {
			all = append(all, wire.TopicPartition{Topic: topic, Partition: int32(i)})
		}
	}
	places, err := c.b.startOffsets(ctx, all, c.opt.Start)
	if err != nil {
		return err
	}
	return c.take(ctx, places)
}

// origin is where a partition begins to be read, with the metadata that was
// committed beside the offset.
type origin struct {
	offset   int64
	metadata string
}

// take begins to read partitions at the given places.
func (c *Consumer) take(ctx context.Context, places map[wire.TopicPartition]origin) error {
	if len(places) == 0 {
		return nil
	}
	known := maps.Clone(places)
	c.hooks.Lock()
	err := c.askAssigned(ctx, places)
	c.hooks.Unlock()
	if err != nil {
		return err
	}
	c.mu.Lock()
	for tp, from := range places {
		stream, _ := c.b.names.Stream(tp.Topic)
		p := &inPartition{c: c, tp: tp, stream: stream, position: from.offset, committed: known[tp].offset, leader: unknownNode, metadata: from.metadata}
		p.note, p.ended = decodeBeside(from.offset, from.metadata)
		p.mark.begin(from.offset)
		c.parts[tp] = p
	}
	c.mu.Unlock()
	c.reroute()
	return nil
}

// askAssigned lets the caller's hook move the places.
func (c *Consumer) askAssigned(ctx context.Context, places map[wire.TopicPartition]origin) error {
	if c.opt.Assigned == nil || len(places) == 0 {
		return nil
	}
	var all []Position
	for tp, from := range places {
		stream, _ := c.b.names.Stream(tp.Topic)
		note, _ := decodeBeside(from.offset, from.metadata)
		all = append(all, Position{Stream: stream, Partition: tp.Partition, Offset: from.offset, Note: note})
	}
	slices.SortFunc(all, comparePositions)
	moved, err := c.opt.Assigned(ctx, all)
	if err != nil {
		return fmt.Errorf("prepare %d partitions: %w", len(all), err)
	}
	for _, m := range moved {
		tp := wire.TopicPartition{Topic: c.b.names.Topic(m.Stream), Partition: m.Partition}
		if from, ours := places[tp]; ours && from.offset != m.Offset {
			note, _ := decodeBeside(from.offset, from.metadata)
			places[tp] = origin{m.Offset, encodeBeside(m.Offset, note, nil)}
		}
	}
	return nil
}

// Poll returns the next events of some partition. A delivery's events are its
// caller's until all of them are Done; after that their memory is used again. An
// error ends reading for good, except for the context's own.
func (c *Consumer) Poll(ctx context.Context) (*Delivery, error) {
	for {
		d, passed, arrived, err := c.next()
		for _, p := range passed {
			c.handed(p)
			p.release()
		}
		if d != nil {
			c.handed(d)
			return d, nil
		}
		if err != nil {
			return nil, err
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-c.ctx.Done():
		}
	}
}

// next takes the first delivery that may be handed out, and those before it
// that hold nothing to hand out.
func (c *Consumer) next() (d *Delivery, passed []*Delivery, arrived <-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.queue) > 0 {
		d := c.queue[0]
		c.queue = slices.Delete(c.queue, 0, 1)
		switch d.hand() {
		case passedOn:
			return d, passed, nil, nil
		case outdated:
			d.letters = d.letters[:0]
		}
		passed = append(passed, d)
	}
	switch {
	case c.failure != nil:
		return nil, passed, nil, c.failure
	case c.closing || c.ctx.Err() != nil:
		return nil, passed, nil, ErrClosed
	}
	if isClosed(c.arrived) {
		c.arrived = make(chan struct{})
	}
	return nil, passed, c.arrived, nil
}

// handed does for a delivery what must not be done under the lock.
func (c *Consumer) handed(d *Delivery) {
	for _, l := range d.letters {
		c.letters.send(l)
	}
	c.nudge(d.part)
}

func isClosed(ch chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// offer moves a partition's position behind a delivery and offers the delivery
// to Poll, unless the partition has moved since it was asked for. Both happen
// under both locks: as soon as the position has moved, what follows may be
// fetched, and it must not come before the delivery.
func (c *Consumer) offer(d *Delivery, a fetchAsk) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	if !a.p.fits(a) {
		return false
	}
	c.enqueue(d)
	return true
}

// enqueue does it. Called with both locks held.
func (c *Consumer) enqueue(d *Delivery) {
	d.part.position = d.next
	d.part.queued++
	c.queue = append(c.queue, d)
	c.announce()
}

// fits tells whether an answer is still what the partition waits for. Called
// with its lock held.
func (p *inPartition) fits(a fetchAsk) bool {
	return p.series == a.series && p.position == a.position && !p.gone
}

// announce wakes Poll. Called with the lock held.
func (c *Consumer) announce() {
	if !isClosed(c.arrived) {
		close(c.arrived)
	}
}

// failed tells whether reading has ended. Nothing more is fetched then, or Poll
// would have deliveries to return for ever and never come to the error.
func (c *Consumer) failed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failure != nil
}

// fail ends reading with an error that Poll returns behind what it has already
// been offered.
func (c *Consumer) fail(err error) {
	c.mu.Lock()
	if c.failure == nil {
		c.failure = err
	}
	c.announce()
	c.mu.Unlock()
}

// Pause stops handing out a stream's partition until Resume; its group keeps
// it and what has been handed out goes on. What was only fetched is thrown
// away, or it would hold the bytes in flight that other partitions need.
func (c *Consumer) Pause(stream string, partition int32) { c.pause(stream, partition, true) }

// Resume undoes Pause.
func (c *Consumer) Resume(stream string, partition int32) { c.pause(stream, partition, false) }

func (c *Consumer) pause(stream string, partition int32, paused bool) {
	tp := wire.TopicPartition{Topic: c.b.names.Topic(stream), Partition: partition}
	c.mu.Lock()
	p := c.parts[tp]
	if p != nil {
		p.mu.Lock()
		if paused && !p.paused {
			p.refetch()
		}
		p.paused = paused
		p.mu.Unlock()
	}
	c.announce()
	c.mu.Unlock()
	if p != nil {
		c.nudge(p)
	}
}

// Close stops reading: what Poll has handed out may end as long as the context
// allows, what has ended is committed, and the group is left, so that others
// take over at once.
func (c *Consumer) Close(ctx context.Context) error {
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		return nil
	}
	c.closing = true
	c.announce()
	c.mu.Unlock()
	var err error
	if c.member != nil {
		err = c.member.leave(ctx)
	}
	c.stop(ErrClosed)
	c.running.Wait()
	if c.letters != nil {
		err = errors.Join(err, c.letters.close(ctx))
	}
	return err
}
