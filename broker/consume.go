package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"tidemill.dev/broker/internal/wire"
	"tidemill.dev/broker/retry"
)

func comparePositions(a, b Position) int {
	return cmp.Or(cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Partition, b.Partition))
}

// Position is a place in a stream.
type Position struct {
	Stream    string
	Partition int32
	Offset    int64

	// Note is the text that a group has committed with the offset. Assigned receives it and
	// Committed returns it; elsewhere it is empty and ignored.
	Note string
}

const (
	defaultMaxBytes  = 64 << 20
	defaultSession   = 6 * time.Second
	defaultDrain     = 20 * time.Second
	defaultCommit    = time.Second
	nodeFetch        = 4 << 20 // bytes of an answer: each costs Kafka and the reader the same, whatever its size, but one of 16 MiB would leave the core's cache
	partitionFetch   = 1 << 20 // bytes of a partition in it; more for the partitions of a backlog, if they are few
	aheadOfPoll      = 4 << 20 // fetched bytes that wait for Poll from which on nothing more is fetched
	heartbeatsInLife = 20      // heartbeats in a session; the member notices a rebalance within one
)

// Consumer reads streams, alone or as a member of a group.
//
// Each fetcher goroutine owns the requests to one server and decodes the answers. The router finds
// a fetcher for each partition that has no fetcher. The member goroutine decides which partitions
// are read, and commits. Poll hands out deliveries to its callers. The lock of an inPartition
// guards what these share. Close works in this order: it hands out no new events, waits until open
// events end or time out, commits offsets, leaves the group, and ends the goroutines.
type Consumer struct {
	b       *Broker
	opt     ConsumerOptions
	member  *member      // nil without a group
	letters *deadLetters // nil without a group

	mu        sync.Mutex
	parts     map[wire.TopicPartition]*inPartition
	preparing map[wire.TopicPartition]int64 // offsets of partitions for which the hook Assigned runs
	queue     []*Delivery
	waiting   int64         // fetched bytes of the deliveries in queue
	arrived   chan struct{} // closed when queue gets its first delivery
	fetchers  map[int32]*fetcher
	lost      chan struct{} // tells the router that a partition has no fetcher
	closing   bool
	failure   error                             // error that ended reading
	absent    map[wire.TopicPartition]time.Time // time since which Kafka denies that the partition exists

	room    bytesInFlight
	hooks   retry.Mutex // held while Gone is called, or Assigned by a transaction, which may wait for Kafka
	counts  consumerCounts
	memory  sync.Pool // pool of *contents
	buffers sync.Pool // pool of *fetchBuffer

	ctx     context.Context
	stop    context.CancelCauseFunc
	running sync.WaitGroup
}

// Consumer starts to read. The caller must close it.
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
		c.running.Go(func() { c.watchPartitions(counts) })
	}
	return c, nil
}

// newConsumer returns a consumer that reads nothing yet. Its router runs.
func (b *Broker) newConsumer(o ConsumerOptions) *Consumer {
	c := b.stillConsumer(o)
	c.running.Go(c.routePartitions)
	return c
}

// stillConsumer returns a consumer without goroutines, which decodes the answers that it is given.
func (b *Broker) stillConsumer(o ConsumerOptions) *Consumer {
	o.MaxBytes = orDefault(o.MaxBytes, defaultMaxBytes)
	o.SessionTimeout = orDefault(o.SessionTimeout, defaultSession)
	o.DrainTimeout = orDefault(o.DrainTimeout, defaultDrain)
	o.CommitEvery = orDefault(o.CommitEvery, defaultCommit)
	c := &Consumer{b: b, opt: o, parts: map[wire.TopicPartition]*inPartition{}, preparing: map[wire.TopicPartition]int64{}, absent: map[wire.TopicPartition]time.Time{}, fetchers: map[int32]*fetcher{},
		arrived: make(chan struct{}), lost: make(chan struct{}, 1)}
	c.room.limit = int64(o.MaxBytes)
	c.memory.New = func() any { return new(contents) }
	c.buffers.New = func() any { return &fetchBuffer{c: c} }
	c.ctx, c.stop = context.WithCancelCause(context.Background())
	return c
}

// countPartitions asks Kafka how many partitions each stream has.
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
	places, err := c.firstPlaces(ctx, all, c.opt.Start)
	if err != nil {
		return err
	}
	return c.take(ctx, places)
}

// origin is the offset at which reading of a partition begins, with the metadata committed for it.
type origin struct {
	offset   int64
	metadata string
}

// take starts to read partitions at the given places.
func (c *Consumer) take(ctx context.Context, places map[wire.TopicPartition]origin) error {
	if len(places) == 0 {
		return nil
	}
	known, began := maps.Clone(places), time.Now()
	c.mu.Lock()
	for tp, from := range places {
		c.preparing[tp] = from.offset
	}
	c.mu.Unlock()
	err := c.askAssigned(ctx, places)
	long := time.Since(began) > trusted
	c.mu.Lock()
	for tp := range known {
		delete(c.preparing, tp)
	}
	if err != nil {
		c.mu.Unlock()
		return err
	}
	for tp, from := range places {
		stream, _ := c.b.names.Stream(tp.Topic)
		p := &inPartition{c: c, tp: tp, stream: stream, position: from.offset, committed: known[tp].offset, leader: unknownNode, metadata: from.metadata,
			life: lifeOf(from.metadata), doubted: long}
		p.note, p.ended = decodeMetadata(from.offset, from.metadata)
		p.mark.begin(from.offset)
		c.parts[tp] = p
	}
	c.mu.Unlock()
	c.wakeRouter()
	return nil
}

// askAssigned calls the hook Assigned, which may move the places.
func (c *Consumer) askAssigned(ctx context.Context, places map[wire.TopicPartition]origin) error {
	if c.opt.Assigned == nil || len(places) == 0 {
		return nil
	}
	var all []Position
	for tp, from := range places {
		stream, _ := c.b.names.Stream(tp.Topic)
		note, _ := decodeMetadata(from.offset, from.metadata)
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
			note, _ := decodeMetadata(from.offset, from.metadata)
			l := lifeOf(from.metadata)
			l.base = max(l.base, LifeOf(m.Offset))
			places[tp] = origin{max(m.Offset, l.base), encodeMetadata(m.Offset, note, nil) + l.encode()}
		}
	}
	return nil
}

// Poll returns the next events of one partition. The caller may use a delivery's events until all
// of them are Done; after that their memory is reused. After an error nothing more is read, unless
// the error is that of the context.
func (c *Consumer) Poll(ctx context.Context) (*Delivery, error) {
	for {
		d, passed, arrived, err := c.takeDelivery()
		for _, p := range passed {
			c.finishHandOut(p)
			p.release()
		}
		if d != nil {
			c.finishHandOut(d)
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

// takeDelivery takes the first delivery that may be handed out. takeDelivery also removes the
// deliveries before this one that have no events.
func (c *Consumer) takeDelivery() (d *Delivery, passed []*Delivery, arrived <-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.queue) > 0 {
		d := c.queue[0]
		c.queue = slices.Delete(c.queue, 0, 1)
		d.wakes = c.waiting >= aheadOfPoll && c.waiting-d.size < aheadOfPoll
		c.waiting -= d.size
		switch d.numberEvents() {
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

// finishHandOut does the rest of the work for a delivery, which must not be done under the lock.
func (c *Consumer) finishHandOut(d *Delivery) {
	for _, l := range d.letters {
		c.letters.send(l)
	}
	if d.wakes {
		c.nudgeAll()
		return
	}
	c.wakeFetcher(d.part)
}

func isClosed(ch chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// offer moves a partition's position past a delivery and queues the delivery for Poll, unless the
// partition has moved since the fetch request. Both happen under both locks. As soon as the
// position has moved, the next records may be fetched, and these must not be queued before the
// delivery.
func (c *Consumer) offer(d *Delivery, a fetchAsk) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	if !a.p.isExpected(a) {
		return false
	}
	c.enqueue(d)
	return true
}

// enqueue moves the position and queues the delivery. The caller holds both locks.
func (c *Consumer) enqueue(d *Delivery) {
	d.part.position = d.next
	d.part.queued++
	c.queue = append(c.queue, d)
	c.waiting += d.size
	c.wakePoll()
}

// isExpected reports whether the partition still waits for this answer. The caller holds its lock.
func (p *inPartition) isExpected(a fetchAsk) bool {
	return p.series == a.series && p.position == a.position && !p.gone
}

// wakePoll makes a waiting Poll look at the queue again. The caller holds the lock.
func (c *Consumer) wakePoll() {
	if !isClosed(c.arrived) {
		close(c.arrived)
	}
}

// Behind reports whether the log has more events than were fetched, and a fetch for them is under way
// or about to begin. A caller that makes large batches of a backlog then waits for the next delivery.
func (c *Consumer) Behind() bool {
	if c.room.full() {
		return false
	}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.parts {
		if p.isBehind(now) {
			return true
		}
	}
	return false
}

// isBehind reports whether the partition can be read now, and the last answer did not reach the end
// of its log.
func (p *inPartition) isBehind(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.position < p.end && !p.gone && !p.paused && !p.draining && p.leader != unknownNode && !now.Before(p.notBefore)
}

// mayFetch reports whether anything more is to be fetched now. After a failure nothing is, because
// Poll would otherwise always have a delivery to return and would never return the error. While much
// waits for Poll, nothing is either: each later answer is then a full one.
func (c *Consumer) mayFetch() bool {
	if c.room.full() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failure == nil && c.waiting < aheadOfPoll
}

// failReading ends reading with an error. Poll returns it after the deliveries that are queued
// already.
func (c *Consumer) failReading(err error) {
	c.mu.Lock()
	if c.failure == nil {
		c.failure = err
	}
	c.wakePoll()
	c.mu.Unlock()
}

// lacksStream reports whether reading has ended because a stream was deleted.
func (c *Consumer) lacksStream() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Is(c.failure, ErrNoStream)
}

// Pause stops handing out events of a partition until Resume. The group keeps the partition, and
// the work on events that were handed out continues. Fetched events that were not handed out are
// dropped, because they would use up bytes in flight that other partitions need.
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
	c.wakePoll()
	c.mu.Unlock()
	if p != nil {
		c.wakeFetcher(p)
	}
}

// Close stops reading. Events that Poll has handed out may end until the context ends. Then Close
// commits their offsets and leaves the group, so that other members take over at once.
func (c *Consumer) Close(ctx context.Context) error {
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		return nil
	}
	c.closing = true
	c.wakePoll()
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
