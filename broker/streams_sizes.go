package broker

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

// logSizes are the bytes of each partition on its leader's disk. It is nil
// where Kafka does not let us ask, which takes a right over the whole cluster
// that a shared Kafka may not give.
func (b *Broker) logSizes(ctx context.Context, topics []wire.TopicMetadata) (map[wire.TopicPartition]int64, error) {
	var (
		mu    sync.Mutex
		all   = map[wire.TopicPartition]int64{}
		calls []func(context.Context) error
	)
	for node, led := range byLeader(topics) {
		calls = append(calls, func(ctx context.Context) error {
			some, err := b.logSizesOn(ctx, node, led)
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(all, some)
			return err
		})
	}
	err := together(ctx, calls...)
	if isCode(err, kafka.ClusterAuthorizationFailed) || isCode(err, kafka.UnsupportedVersion) {
		return nil, nil
	}
	return all, err
}

// byLeader are the partitions that each server leads.
func byLeader(topics []wire.TopicMetadata) map[int32][]wire.TopicPartition {
	all := map[int32][]wire.TopicPartition{}
	for _, t := range topics {
		for _, p := range t.Partitions {
			if p.Leader >= 0 {
				all[p.Leader] = append(all[p.Leader], wire.TopicPartition{Topic: t.Name, Partition: p.Index})
			}
		}
	}
	return all
}

func (b *Broker) logSizesOn(ctx context.Context, node int32, partitions []wire.TopicPartition) (map[wire.TopicPartition]int64, error) {
	ctx, cancel := b.within(ctx)
	defer cancel()
	var frame wire.Frame
	frame.LogDirs(b.names.Install(), partitions)
	answer, err := b.call(ctx, node, &frame, nil)
	if err == nil {
		var dirs []wire.LogDir
		if dirs, err = wire.ReadLogDirs(answer); err == nil {
			return sumLogs(dirs)
		}
	}
	return nil, fmt.Errorf("read the sizes of logs: %w", err)
}

func sumLogs(dirs []wire.LogDir) (map[wire.TopicPartition]int64, error) {
	if len(dirs) == 0 { // how this version says that we may not ask
		return nil, fmt.Errorf("read the sizes of logs: %w", kafka.ClusterAuthorizationFailed)
	}
	all := map[wire.TopicPartition]int64{}
	for _, d := range dirs {
		if code := kafka.Error(d.Error); code != 0 && code != kafka.KafkaStorageError { // a dead disk leads nothing
			return nil, fmt.Errorf("read the sizes of logs: %w", code)
		}
		for _, l := range d.Logs {
			if !l.Moving {
				all[l.TopicPartition] += l.Bytes
			}
		}
	}
	return all, nil
}
