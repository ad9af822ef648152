package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

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
