package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

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

// Ends returns the position after the last committed event of each of a stream's partitions. A
// reader that has reached all these positions has read every event that was committed before the call.
func (b *Broker) Ends(ctx context.Context, stream string) ([]Position, error) {
	return b.ends(ctx, stream, true)
}

// OpenEnds is Ends with the events of open transactions. A reader that has reached all these positions has
// read every event that the log had before the call. It waits for the end of the transactions.
func (b *Broker) OpenEnds(ctx context.Context, stream string) ([]Position, error) {
	return b.ends(ctx, stream, false)
}

func (b *Broker) ends(ctx context.Context, stream string, committed bool) ([]Position, error) {
	topic := b.names.Topic(stream)
	found := map[wire.TopicPartition]int64{}
	var w backoff
	for { // asks whether the stream is there each time, because it may be deleted meanwhile
		leaders, err := b.leaders(ctx, topic, maxLeaderAge)
		lasts := err != nil && (w.failures == 0 || errors.Is(err, kafka.UnknownTopicOrPartition))
		if err == nil {
			queries := make([]wire.OffsetQuery, len(leaders))
			for i := range leaders {
				queries[i] = wire.OffsetQuery{TopicPartition: wire.TopicPartition{Topic: topic, Partition: int32(i)}, Time: wire.Latest}
			}
			var left []wire.OffsetQuery
			if left, err = b.offsetsAtOnce(ctx, queries, committed, found, b.requestTimeout); len(left) == 0 {
				break
			}
		}
		if lasts || !isTransient(err) || w.wait(ctx) != nil {
			return nil, fmt.Errorf("find the end of stream %s: %w", stream, noStream(err))
		}
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

// CommittedAll is Committed for all partitions of all streams that a group has an offset of.
func (b *Broker) CommittedAll(ctx context.Context, group string) (all []Position, err error) {
	known, err := b.committedOffsets(ctx, b.names.Group(group), nil)
	if err != nil && !errors.Is(err, kafka.GroupIdNotFound) {
		return nil, err
	}
	for tp, o := range known {
		if stream, ours := b.names.Stream(tp.Topic); ours && o.Offset >= 0 {
			note, _ := decodeMetadata(o.Offset, o.Metadata)
			all = append(all, Position{Stream: stream, Partition: tp.Partition, Offset: o.Offset, Note: note})
		}
	}
	slices.SortFunc(all, comparePositions)
	return all, nil
}

// CreatedAgain reports whether one of some partitions belongs to a stream that was created again after a group had
// begun to read it.
func (b *Broker) CreatedAgain(ctx context.Context, group string, of []Position) (bool, error) {
	parts := make([]wire.TopicPartition, len(of))
	for i, p := range of {
		parts[i] = wire.TopicPartition{Topic: b.names.Topic(p.Stream), Partition: p.Partition}
	}
	known, err := b.committedOffsets(ctx, b.names.Group(group), parts)
	if err != nil && !errors.Is(err, kafka.GroupIdNotFound) {
		return false, err
	}
	for _, o := range known {
		if lifeOf(o.Metadata).base > 0 {
			return true, nil
		}
	}
	return false, nil
}

// Positions returns for each partition the next offset that Poll could return. Records that are not
// events, such as transaction markers, count as read once Poll has passed them. A partition that is still prepared has the offset
// from which the group would read it. The offsets are Kafka's.
func (c *Consumer) Positions() []Position {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]Position, 0, len(c.parts))
	for tp, p := range c.parts {
		p.mu.Lock()
		if !p.gone {
			all = append(all, Position{Stream: p.stream, Partition: tp.Partition, Offset: kafkaOffset(p.mark.read)})
		}
		p.mu.Unlock()
	}
	for tp, from := range c.preparing {
		stream, _ := c.b.names.Stream(tp.Topic)
		all = append(all, Position{Stream: stream, Partition: tp.Partition, Offset: kafkaOffset(from)})
	}
	slices.SortFunc(all, comparePositions)
	return all
}

// ErrMayNotDelete reports that the Kafka user has no right to delete records of a topic.
var ErrMayNotDelete = errors.New("the Kafka user may not delete records: grant it delete on the install's topics")

// DeleteBelow deletes the records of each partition that are below a position. It tries each leader
// once, because the caller repeats it anyway. Kafka frees the disk by whole segments.
func (b *Broker) DeleteBelow(ctx context.Context, below []Position) error {
	nodes := map[int32]map[wire.TopicPartition]int64{}
	var failed error
	for _, p := range below {
		tp := wire.TopicPartition{Topic: b.names.Topic(p.Stream), Partition: p.Partition}
		node, err := b.leader(ctx, tp, maxLeaderAge)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		if nodes[node] == nil {
			nodes[node] = map[wire.TopicPartition]int64{}
		}
		nodes[node][tp] = p.Offset
	}
	for node, of := range nodes {
		failed = errors.Join(failed, b.deleteOn(ctx, node, of))
	}
	return failed
}

// deleteOn deletes records of the partitions that one server leads.
func (b *Broker) deleteOn(ctx context.Context, node int32, below map[wire.TopicPartition]int64) error {
	ctx, cancel := b.limitTime(ctx)
	defer cancel()
	var frame wire.Frame
	frame.DeleteRecords(b.names.Install(), below, int32(b.requestTimeout.Milliseconds()/2))
	answer, err := b.call(ctx, node, &frame, nil)
	if err != nil {
		return fmt.Errorf("delete records of %d partitions: %w", len(below), err)
	}
	all, err := wire.ReadDeleteRecords(answer)
	if err != nil {
		return fmt.Errorf("delete records of %d partitions: %w", len(below), err)
	}
	for _, a := range all {
		switch code := kafka.Error(a.Error); {
		case code == kafka.TopicAuthorizationFailed:
			return fmt.Errorf("delete records of topic %s: %w", a.Topic, ErrMayNotDelete)
		case code != 0:
			err = errors.Join(err, fmt.Errorf("delete records of %s/%d: %w", a.Topic, a.Partition, code))
		}
	}
	return err
}
