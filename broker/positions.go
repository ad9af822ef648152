package broker

import (
	"context"
	"fmt"
	"slices"

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
		ends = append(ends, Position{stream, p.Partition, offset})
	}
	slices.SortFunc(ends, comparePositions)
	return ends, nil
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
		all = append(all, Position{p.stream, tp.Partition, p.mark.read})
		p.mu.Unlock()
	}
	slices.SortFunc(all, comparePositions)
	return all
}
