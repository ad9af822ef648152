package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

// Ping asks Kafka for something small, around every cache, so that its answer
// tells how Kafka is now.
func (b *Broker) Ping(ctx context.Context) error {
	_, err := b.metadata(ctx, b.names.Topic("events"))
	return err
}

// Cluster is the id that Kafka has given itself. Installs of one name that share
// a Redis and not a Kafka are told apart by it.
func (b *Broker) Cluster(ctx context.Context) (string, error) {
	m, err := b.metadata(ctx, b.names.Topic("events"))
	if err != nil {
		return "", err
	}
	return m.Cluster, nil
}

// Ends are the places behind the last committed event of each of a stream's
// partitions. A reader that has come to all of them has read the stream as it
// was.
func (b *Broker) Ends(ctx context.Context, stream string) ([]Position, error) {
	topic := b.names.Topic(stream)
	leaders, err := b.leaders(ctx, topic, fresh)
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

// Committed are how far a group has committed the places of some partitions: the
// offsets of the given positions do not matter, and an offset of -1 says that
// there is none. With each comes the note beside it. It waits until no open
// transaction could still move them.
func (b *Broker) Committed(ctx context.Context, group string, of []Position) ([]Position, error) {
	if len(of) == 0 {
		return nil, nil // to Kafka, none are all
	}
	parts := make([]wire.TopicPartition, len(of))
	for i, p := range of {
		parts[i] = wire.TopicPartition{Topic: b.names.Topic(p.Stream), Partition: p.Partition}
	}
	known, err := b.committedOffsets(ctx, b.names.Group(group), parts)
	if err != nil && !errors.Is(err, kafka.GroupIdNotFound) { // who has committed nothing need not be there
		return nil, err
	}
	places := slices.Clone(of)
	for i, tp := range parts {
		places[i].Offset, places[i].Note = -1, ""
		if o, ok := known[tp]; ok && o.Offset >= 0 {
			places[i].Offset = o.Offset
			places[i].Note, _ = decodeBeside(o.Offset, o.Metadata)
		}
	}
	return places, nil
}

// Positions are how far each partition has been read: the next offset that Poll
// could return. Records that are no events, such as the markers of transactions,
// count as read once Poll has come past them.
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
