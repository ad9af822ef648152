package broker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev"
	"tidemill.dev/broker/internal/wire"
)

// Read calls fn with the committed events of one partition, from a position, for at most about
// maxBytes of the log. Read returns the position for the next call. Read does not wait for new
// events: if it returns the position where it began, the log of committed events ends there. If the log ends
// before the position, the error is [ErrCut]. If fn returns false, Read stops. fn must not keep the event.
//
// Read is for random access and makes one request in each call. A position below the start of the
// log means the start. A record that is not an event has its Err set.
func (b *Broker) Read(ctx context.Context, from Position, maxBytes int, fn func(*Incoming) bool) (next int64, err error) {
	p := &inPartition{c: b.reader, stream: from.Stream, tp: wire.TopicPartition{Topic: b.names.Topic(from.Stream), Partition: from.Partition}}
	var w backoff
	for maxAge := time.Minute; ; maxAge = maxLeaderAge {
		next, err = b.readOnce(ctx, fetchAsk{p: p, position: from.Offset}, maxBytes, maxAge, fn)
		if errors.Is(err, kafka.OffsetOutOfRange) {
			if from.Offset, err = b.firstReadable(ctx, p.tp, from.Offset); err == nil {
				continue
			}
		}
		if err == nil {
			return next, nil
		}
		reason := fmt.Errorf("read stream %s, partition %d, from offset %d: %w", from.Stream, from.Partition, from.Offset, err)
		if !isTransient(err) {
			return from.Offset, reason
		}
		if ended := w.wait(ctx); ended != nil {
			return from.Offset, errors.Join(reason, ended)
		}
	}
}

// firstReadable returns the first offset at or after the given one that the log has.
func (b *Broker) firstReadable(ctx context.Context, tp wire.TopicPartition, offset int64) (int64, error) {
	start, end, err := b.logEnds(ctx, tp)
	start, end = start+LifeOf(offset), end+LifeOf(offset)
	if err == nil && offset > end {
		err = lostError(ErrCut, "the log ends at %d", end)
	}
	return max(offset, start), err
}

// readOnce reads from the partition's known leader. Only the try that succeeds calls fn.
func (b *Broker) readOnce(ctx context.Context, a fetchAsk, maxBytes int, maxAge time.Duration, fn func(*Incoming) bool) (next int64, err error) {
	leader, err := b.leaderFor(ctx, a.p.tp, maxAge)
	if err != nil {
		return 0, err
	}
	buffer, err := b.fetchOne(ctx, leader, a, int32(max(1, min(maxBytes, math.MaxInt32))))
	if err != nil {
		return 0, err
	}
	defer buffer.drop()
	err = kafka.NetworkException // unless the answer contains the partition
	code, failed := wire.ReadFetched(buffer.bytes, func(part *wire.Fetched) { next, err = a.decodeAnswer(part, buffer, fn) })
	switch {
	case failed != nil:
		return 0, failed
	case code != 0:
		return 0, kafka.Error(code)
	}
	return next, err
}

// leaderFor is leader with a plain error for a partition that does not exist.
func (b *Broker) leaderFor(ctx context.Context, tp wire.TopicPartition, maxAge time.Duration) (int32, error) {
	leaders, err := b.leaders(ctx, tp.Topic, maxAge)
	switch {
	case err != nil:
		return 0, noStream(err)
	case tp.Partition < 0 || int(tp.Partition) >= len(leaders):
		return 0, fmt.Errorf("the partition is not there: the stream has %d", len(leaders))
	case leaders[tp.Partition] < 0:
		return 0, kafka.LeaderNotAvailable
	}
	return leaders[tp.Partition], nil
}

// fetchOne asks for the records from one position on, without waiting for new ones.
func (b *Broker) fetchOne(ctx context.Context, leader int32, a fetchAsk, maxBytes int32) (*fetchBuffer, error) {
	ctx, cancel := b.limitTime(ctx)
	defer cancel()
	var frame wire.Frame
	frame.BeginFetch(wire.FetchHead{Client: b.names.Install(), MaxBytes: maxBytes, Topics: 1})
	frame.Topic(a.p.tp.Topic, 1)
	frame.From(a.p.tp.Partition, kafkaOffset(a.position), maxBytes)
	frame.EndFetch()
	memory := b.reader.buffers.Get().(*fetchBuffer).bytes
	answer, err := b.call(ctx, leader, &frame, memory)
	if err != nil {
		return nil, err
	}
	buffer := &fetchBuffer{c: b.reader, bytes: answer, pooled: true}
	buffer.users.Store(1)
	b.reader.room.take(buffer.size())
	return buffer, nil
}

// decodeAnswer decodes an answer and calls fn with its events.
func (a *fetchAsk) decodeAnswer(part *wire.Fetched, buffer *fetchBuffer, fn func(*Incoming) bool) (next int64, err error) {
	switch code := kafka.Error(part.Error); {
	case code == kafka.TopicAuthorizationFailed:
		return 0, refusedRead(code)
	case code != 0:
		return 0, code
	case len(part.Records) == 0:
		return a.position, nil
	}
	a.intoLife(part)
	d := a.p.c.newDelivery(*a, buffer, a.position)
	err = d.decode(*a, part)
	d.addInFlight()
	defer d.release()
	if err == nil && d.next == a.position {
		err = fmt.Errorf("no batch in %d bytes: its length must be corrupt", len(part.Records))
	}
	if err != nil && d.next == a.position {
		return a.position, err
	}
	for i := range d.Events {
		if e := &d.Events[i]; !fn(e) {
			return e.Offset + 1, nil
		}
	}
	return d.next, nil
}

// ReadBack calls fn with the committed events of some partitions, in the order of each partition,
// from the given positions up to the end of the log at the time of the call. It returns the
// positions for the next call.
//
// It waits for transactions that were open at the call. Kafka ends a transaction in each partition
// separately, perhaps after the group's offsets have moved. A reader of the events committed so far
// would then miss outputs of inputs below these offsets. So ReadBack must not be called inside a
// transaction that has sent to these partitions.
//
// ReadBack is for a consumer that must know the earlier output of its own group before the consumer
// produces more. ConsumerOptions.Assigned is the place to call it. fn must not keep the event.
func (b *Broker) ReadBack(ctx context.Context, from []Position, fn func(*Incoming)) ([]Position, error) {
	if len(from) == 0 {
		return nil, nil
	}
	places, ends, err := b.readRange(ctx, from)
	if err != nil {
		return nil, fmt.Errorf("read back %d partitions: %w", len(from), err)
	}
	c := b.newConsumer(ConsumerOptions{})
	defer func() {
		c.stop(ErrClosed)
		c.running.Wait()
	}()
	if err := c.take(ctx, places); err != nil {
		return nil, err
	}
	for !c.hasReachedEnd(ends) {
		if err := c.readSome(ctx, ends, fn); err != nil {
			return nil, fmt.Errorf("read back %d partitions: %w", len(from), err)
		}
	}
	stopped := slices.Clone(from)
	for i, p := range stopped {
		stopped[i].Offset = ends[wire.TopicPartition{Topic: b.names.Topic(p.Stream), Partition: p.Partition}]
	}
	return stopped, nil
}

// readRange returns the positions at which to start and to end. Records below the log's start are
// deleted and cannot be read back.
func (b *Broker) readRange(ctx context.Context, from []Position) (places map[wire.TopicPartition]origin, ends map[wire.TopicPartition]int64, err error) {
	places = map[wire.TopicPartition]origin{}
	var first, last []wire.OffsetQuery
	for _, p := range from {
		tp := wire.TopicPartition{Topic: b.names.Topic(p.Stream), Partition: p.Partition}
		places[tp] = origin{offset: p.Offset}
		first = append(first, wire.OffsetQuery{TopicPartition: tp, Time: wire.Earliest})
		last = append(last, wire.OffsetQuery{TopicPartition: tp, Time: wire.Latest})
	}
	starts, err := b.offsetsAt(ctx, first, true)
	if err != nil {
		return nil, nil, err
	}
	for tp, start := range starts {
		places[tp] = origin{offset: max(places[tp].offset, start)}
	}
	ends, err = b.offsetsAt(ctx, last, false)
	for tp, end := range ends {
		ends[tp] = max(end, places[tp].offset)
	}
	return places, ends, err
}

// readSome calls fn with the events of the next delivery that are before the ends.
func (c *Consumer) readSome(ctx context.Context, ends map[wire.TopicPartition]int64, fn func(*Incoming)) error {
	d, passed, arrived, err := c.takeDelivery()
	for _, p := range passed {
		c.finishHandOut(p)
		p.release()
	}
	switch {
	case err != nil:
		return err
	case d == nil && len(passed) > 0:
		return nil
	case d == nil:
		select {
		case <-arrived:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	c.finishHandOut(d)
	defer d.Done()
	for i := range d.Events {
		if e := &d.Events[i]; e.Offset < ends[d.part.tp] {
			if e.Err != nil {
				return fmt.Errorf("stream %s, partition %d, offset %d: %w", d.Stream, d.Partition, e.Offset, e.Err)
			}
			fn(e)
		}
	}
	return nil
}

// hasReachedEnd reports whether every partition has been read up to its end.
func (c *Consumer) hasReachedEnd(ends map[wire.TopicPartition]int64) bool {
	all := true
	c.eachPartition(func(p *inPartition) {
		p.mu.Lock()
		defer p.mu.Unlock()
		all = all && p.mark.read >= ends[p.tp]
	})
	return all
}

// noStream turns Kafka's unknown topic into an error that names the command for a list of streams.
func noStream(err error) error {
	if errors.Is(err, kafka.UnknownTopicOrPartition) {
		return fmt.Errorf("%w; `tidemill streams` lists the streams", ErrNoStream)
	}
	return err
}

// Ping sends Kafka a small request without any cache, so that the answer shows Kafka's present
// state.
func (b *Broker) Ping(ctx context.Context) error {
	_, err := b.metadata(ctx, b.names.Topic("events"))
	return err
}

// Cluster returns the id of the Kafka cluster. The id distinguishes installs of one name that share
// a Redis but not a Kafka.
func (b *Broker) Cluster(ctx context.Context) (string, error) {
	m, err := b.metadata(ctx, b.names.Topic("events"))
	if err != nil {
		return "", err
	}
	return m.Cluster, nil
}

// Place returns the position as a text, such as messages/3/17. An answer of a scorer has the place
// of its input as its id.
func (p Position) Place() string {
	return p.Stream + "/" + strconv.Itoa(int(p.Partition)) + "/" + strconv.FormatInt(p.Offset, 10)
}

// ParsePlace reads a text as [Position.Place] writes it.
func ParsePlace(text string) (p Position, ok bool) {
	parts := strings.Split(text, "/")
	if len(parts) != 3 || tidemill.CheckStream(parts[0]) != nil {
		return p, false
	}
	partition, err := strconv.ParseInt(parts[1], 10, 32)
	offset, err2 := strconv.ParseInt(parts[2], 10, 64)
	if err != nil || err2 != nil || partition < 0 || offset < 0 {
		return p, false
	}
	return Position{Stream: parts[0], Partition: int32(partition), Offset: offset}, true
}

// EventAt calls fn with the event at a position, and reports whether there is one: the position may be
// past the end of its partition, or the event may have expired.
func (b *Broker) EventAt(ctx context.Context, at Position, fn func(*Incoming)) (found bool, err error) {
	ends, err := b.Ends(ctx, at.Stream)
	if err != nil || int(at.Partition) >= len(ends) || at.Offset >= LifeOf(at.Offset)+ends[at.Partition].Offset {
		return false, err
	}
	const oneEvent = 1 // least bytes to read; the read returns a whole event
	_, err = b.Read(ctx, at, oneEvent, func(e *Incoming) bool {
		if e.Offset == at.Offset && e.Err == nil {
			found = true
			fn(e)
		}
		return e.Offset < at.Offset
	})
	return found, err
}
