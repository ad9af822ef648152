package broker

import (
	"context"
	"fmt"
	"slices"

	"tidemill.dev/broker/internal/wire"
)

// Places are where a reader without a group would begin to read each of a
// stream's partitions.
func (b *Broker) Places(ctx context.Context, stream string, start Start) ([]Position, error) {
	topic := b.names.Topic(stream)
	leaders, err := b.leaders(ctx, topic, fresh)
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
