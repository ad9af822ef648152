package broker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

// Read calls fn with the committed events of one partition, from a position, for at most about
// maxBytes of the log. Read returns the position for the next call. Read does not wait for new
// events: if it returns the position where it began, the log of committed events ends there. If fn
// returns false, Read stops. fn must not keep the event.
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
	if err == nil && offset > end {
		err = fmt.Errorf("the log ends at %d", end)
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
	frame.From(a.p.tp.Partition, a.position, maxBytes)
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

// offsetsAt asks each partition's leader. It retries through elections and restarts until the
// context ends.
func (b *Broker) offsetsAt(ctx context.Context, queries []wire.OffsetQuery, committed bool) (map[wire.TopicPartition]int64, error) {
	found := make(map[wire.TopicPartition]int64, len(queries))
	var w backoff
	var reason error
	for maxAge := b.requestTimeout; ; maxAge = maxLeaderAge {
		left, err := b.offsetsAtOnce(ctx, queries, committed, found, maxAge)
		if len(left) == 0 {
			return found, nil
		}
		if reason != nil && ctx.Err() != nil { // a try that the context has ended does not know the reason
			return nil, errors.Join(reason, context.Cause(ctx))
		}
		if !isTransient(err) {
			return nil, err
		}
		if ended := w.wait(ctx); ended != nil {
			return nil, errors.Join(err, ended)
		}
		reason = err
		queries = left
	}
}

// offsetsAtOnce fills found. It returns the queries without an answer, and the gravest reason.
func (b *Broker) offsetsAtOnce(ctx context.Context, queries []wire.OffsetQuery, committed bool,
	found map[wire.TopicPartition]int64, maxAge time.Duration) (left []wire.OffsetQuery, failure error) {
	nodes := map[int32][]wire.OffsetQuery{}
	for _, q := range queries {
		node, err := b.leader(ctx, q.TopicPartition, maxAge)
		if err != nil {
			left, failure = append(left, q), graverError(failure, err)
			continue
		}
		nodes[node] = append(nodes[node], q)
	}
	var (
		mu  sync.Mutex
		all sync.WaitGroup
	)
	for node, asked := range nodes {
		all.Go(func() {
			answers, err := b.offsetsOf(ctx, node, asked, committed)
			mu.Lock()
			defer mu.Unlock()
			for _, q := range asked {
				offset, err := offsetIn(answers, q, err)
				if err != nil {
					left, failure = append(left, q), graverError(failure, err)
					continue
				}
				found[q.TopicPartition] = offset
			}
		})
	}
	all.Wait()
	return left, failure
}

func offsetIn(answers map[wire.TopicPartition]wire.OffsetAnswer, q wire.OffsetQuery, err error) (int64, error) {
	a, ok := answers[q.TopicPartition]
	switch {
	case err != nil:
	case !ok:
		err = kafka.NetworkException // the answer does not contain it
	case a.Error != 0:
		err = kafka.Error(a.Error)
	default:
		return a.Offset, nil
	}
	return 0, fmt.Errorf("offsets of %s/%d: %w", q.Topic, q.Partition, err)
}

// leader returns the server that leads a partition.
func (b *Broker) leader(ctx context.Context, p wire.TopicPartition, maxAge time.Duration) (int32, error) {
	leaders, err := b.leaders(ctx, p.Topic, maxAge)
	if err == nil && (int(p.Partition) >= len(leaders) || leaders[p.Partition] < 0) {
		err = kafka.LeaderNotAvailable
	}
	if err != nil {
		return 0, fmt.Errorf("leader of %s/%d: %w", p.Topic, p.Partition, err)
	}
	return leaders[p.Partition], nil
}

func (b *Broker) offsetsOf(ctx context.Context, node int32, queries []wire.OffsetQuery, committed bool) (map[wire.TopicPartition]wire.OffsetAnswer, error) {
	ctx, cancel := b.limitTime(ctx)
	defer cancel()
	var frame wire.Frame
	frame.ListOffsets(b.names.Install(), queries, committed)
	answer, err := b.call(ctx, node, &frame, nil)
	if err != nil {
		return nil, err
	}
	all, err := wire.ReadOffsets(answer)
	if err != nil {
		return nil, err
	}
	byPlace := make(map[wire.TopicPartition]wire.OffsetAnswer, len(all))
	for _, a := range all {
		byPlace[a.TopicPartition] = a
	}
	return byPlace, nil
}

// logEnds returns the start of a partition's log, and the end for a reader of committed events.
func (b *Broker) logEnds(ctx context.Context, p wire.TopicPartition) (start, end int64, err error) {
	ctx, cancel := b.limitTime(ctx)
	defer cancel()
	starts, err := b.offsetsAt(ctx, []wire.OffsetQuery{{TopicPartition: p, Time: wire.Earliest}}, true)
	if err != nil {
		return 0, 0, err
	}
	ends, err := b.offsetsAt(ctx, []wire.OffsetQuery{{TopicPartition: p, Time: wire.Latest}}, true)
	return starts[p], ends[p], err
}

// startOffsets returns the first offset to read in partitions for which the group has no offset.
func (b *Broker) startOffsets(ctx context.Context, parts []wire.TopicPartition, start Start) (map[wire.TopicPartition]origin, error) {
	at := func(time int64) (map[wire.TopicPartition]int64, error) {
		queries := make([]wire.OffsetQuery, len(parts))
		for i, p := range parts {
			queries[i] = wire.OffsetQuery{TopicPartition: p, Time: time}
		}
		found, err := b.offsetsAt(ctx, queries, true)
		if err != nil {
			return nil, fmt.Errorf("find where to start: %w", err)
		}
		return found, nil
	}
	places := make(map[wire.TopicPartition]origin, len(parts))
	if start.kind == atEarliest {
		found, err := at(wire.Earliest)
		for p, offset := range found {
			places[p] = origin{offset: offset}
		}
		return places, err
	}
	// If the log has no event since the given time, reading starts at the end of the log. This end
	// is requested before the search for the time. Otherwise events that arrive between the two
	// requests would be skipped.
	ends, err := at(wire.Latest)
	young := map[wire.TopicPartition]int64{}
	if err == nil && start.kind == atTime {
		young, err = at(start.value)
	}
	for p, offset := range ends {
		if y, ok := young[p]; ok && y >= 0 {
			offset = y
		}
		if start.kind == atOffset {
			offset = min(start.value, offset)
		}
		places[p] = origin{offset: offset}
	}
	return places, err
}

// committedOffsets asks the group's coordinator for the committed offsets. It waits until no open
// transaction can still move them.
func (b *Broker) committedOffsets(ctx context.Context, group string, parts []wire.TopicPartition) (map[wire.TopicPartition]wire.CommittedOffset, error) {
	return b.groupOffsets(ctx, group, parts, true)
}

// groupOffsets is committedOffsets with or without this wait. An empty list of partitions means all
// of them.
func (b *Broker) groupOffsets(ctx context.Context, group string, parts []wire.TopicPartition, stable bool) (map[wire.TopicPartition]wire.CommittedOffset, error) {
	found, err := retryUntil(ctx, func(ctx context.Context) (map[wire.TopicPartition]wire.CommittedOffset, error) {
		return b.groupOffsetsOnce(ctx, group, parts, stable)
	})
	if err != nil {
		return nil, fmt.Errorf("fetch the offsets of group %s: %w", group, err)
	}
	return found, nil
}

func (b *Broker) groupOffsetsOnce(ctx context.Context, group string, parts []wire.TopicPartition, stable bool) (map[wire.TopicPartition]wire.CommittedOffset, error) {
	ctx, cancel := b.limitTime(ctx)
	defer cancel()
	node, err := b.coordinator(ctx, group)
	if err != nil {
		return nil, err
	}
	var frame wire.Frame
	frame.OffsetFetch(b.names.Install(), group, parts, stable)
	answer, err := b.call(ctx, node, &frame, nil)
	if err != nil {
		return nil, err
	}
	all, code, err := wire.ReadOffsetFetch(answer)
	if err == nil && code != 0 {
		err = kafka.Error(code)
	}
	if err != nil {
		return nil, err
	}
	found := make(map[wire.TopicPartition]wire.CommittedOffset, len(all))
	for _, o := range all {
		if o.Error != 0 {
			return nil, kafka.Error(o.Error)
		}
		found[o.TopicPartition] = o
	}
	return found, nil
}

// coordinator finds the server that coordinates a group.
func (b *Broker) coordinator(ctx context.Context, group string) (int32, error) {
	return b.coordinators.find(ctx, coordinated{group, kafka.CoordinatorKeyTypeConsumer})
}

// Places returns the position in each of a stream's partitions at which a reader without a group
// would start.
func (b *Broker) Places(ctx context.Context, stream string, start Start) ([]Position, error) {
	topic := b.names.Topic(stream)
	leaders, err := b.leaders(ctx, topic, maxLeaderAge)
	if err != nil {
		return nil, fmt.Errorf("find a place in stream %s: %w", stream, noStream(err))
	}
	parts := make([]wire.TopicPartition, len(leaders))
	for i := range leaders {
		parts[i] = wire.TopicPartition{Topic: topic, Partition: int32(i)}
	}
	found, err := b.startOffsets(ctx, parts, start)
	if err != nil {
		return nil, fmt.Errorf("find a place in stream %s: %w", stream, err)
	}
	places := make([]Position, 0, len(found))
	for p, from := range found {
		places = append(places, Position{Stream: stream, Partition: p.Partition, Offset: from.offset})
	}
	slices.SortFunc(places, comparePositions)
	return places, nil
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

// Ends returns the position after the last committed event of each of a stream's partitions. A
// reader that has reached all these positions has read every event from before the call.
func (b *Broker) Ends(ctx context.Context, stream string) ([]Position, error) {
	topic := b.names.Topic(stream)
	leaders, err := b.leaders(ctx, topic, maxLeaderAge)
	if err != nil {
		return nil, fmt.Errorf("find the end of stream %s: %w", stream, noStream(err))
	}
	queries := make([]wire.OffsetQuery, len(leaders))
	for i := range leaders {
		queries[i] = wire.OffsetQuery{TopicPartition: wire.TopicPartition{Topic: topic, Partition: int32(i)}, Time: wire.Latest}
	}
	found, err := b.offsetsAt(ctx, queries, true)
	if err != nil {
		return nil, fmt.Errorf("find the end of stream %s: %w", stream, err)
	}
	ends := make([]Position, 0, len(found))
	for p, offset := range found {
		ends = append(ends, Position{Stream: stream, Partition: p.Partition, Offset: offset})
	}
	slices.SortFunc(ends, comparePositions)
	return ends, nil
}

// Committed returns the offsets that a group has committed for some partitions, with their notes.
// The offsets in the argument are ignored. Offset -1 means that no offset is committed. It waits
// until no open transaction can still move the offsets.
func (b *Broker) Committed(ctx context.Context, group string, of []Position) ([]Position, error) {
	if len(of) == 0 {
		return nil, nil // an empty list would mean all partitions
	}
	parts := make([]wire.TopicPartition, len(of))
	for i, p := range of {
		parts[i] = wire.TopicPartition{Topic: b.names.Topic(p.Stream), Partition: p.Partition}
	}
	known, err := b.committedOffsets(ctx, b.names.Group(group), parts)
	if err != nil && !errors.Is(err, kafka.GroupIdNotFound) { // a group without any commit may not exist
		return nil, err
	}
	places := slices.Clone(of)
	for i, tp := range parts {
		places[i].Offset, places[i].Note = -1, ""
		if o, ok := known[tp]; ok && o.Offset >= 0 {
			places[i].Offset = o.Offset
			places[i].Note, _ = decodeMetadata(o.Offset, o.Metadata)
		}
	}
	return places, nil
}

// Positions returns for each partition the next offset that Poll could return. Records that are not
// events, such as transaction markers, count as read once Poll has passed them.
func (c *Consumer) Positions() []Position {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]Position, 0, len(c.parts))
	for tp, p := range c.parts {
		p.mu.Lock()
		if !p.gone {
			all = append(all, Position{Stream: p.stream, Partition: tp.Partition, Offset: p.mark.read})
		}
		p.mu.Unlock()
	}
	slices.SortFunc(all, comparePositions)
	return all
}
