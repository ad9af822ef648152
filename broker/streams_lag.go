package broker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/listgroups"

	"tidemill.dev"
	"tidemill.dev/broker/internal/wire"
)

// commits are a group's committed offsets.
type commits = map[wire.TopicPartition]wire.CommittedOffset

// lags are those of the groups that have committed on a topic, by name.
func (s survey) lags(stream, topic string, partitions []PartitionInfo, prefix string) []GroupLag {
	var all []GroupLag
	if tidemill.Bookmarked(stream) {
		return nil
	}
	for _, group := range slices.Sorted(maps.Keys(s.commits)) {
		of := s.commits[group]
		g := GroupLag{Group: strings.TrimPrefix(group, prefix)}
		reads := false
		for _, p := range partitions {
			committed := int64(-1)
			if o, ok := of[wire.TopicPartition{Topic: topic, Partition: int32(p.Partition)}]; ok {
				committed = o.Offset
			}
			reads = reads || committed >= 0
			one := lag(p, committed)
			g.Partitions = append(g.Partitions, one)
			g.Lag += one.Lag
			g.Lost += one.Lost
		}
		if reads {
			all = append(all, g)
		}
	}
	return all
}

func lag(p PartitionInfo, committed int64) PartitionLag {
	one := PartitionLag{Partition: p.Partition, Committed: committed}
	next := max(committed, p.Start)
	one.Lag = max(0, p.End-next)
	if committed >= 0 {
		one.Lost = next - committed
	}
	return one
}

// groupCommits are the committed offsets of this install's groups, by group.
func (b *Broker) groupCommits(ctx context.Context, brokers []wire.BrokerNode) (map[string]commits, error) {
	groups, err := b.groups(ctx, brokers)
	if err != nil {
		return nil, err
	}
	var (
		mu  sync.Mutex
		all = make(map[string]commits, len(groups))
	)
	const workers = 8
	next := make(chan string, len(groups))
	for _, g := range groups {
		next <- g
	}
	close(next)
	read := func(ctx context.Context) error {
		for group := range next {
			// A lag is a look: it does not wait for a transaction to end.
			of, err := b.groupOffsets(ctx, group, nil, false)
			if isCode(err, kafka.GroupIdNotFound) {
				continue // deleted since it was listed
			}
			if err != nil {
				return err
			}
			mu.Lock()
			all[group] = of
			mu.Unlock()
		}
		return nil
	}
	return all, together(ctx, slices.Repeat([]func(context.Context) error{read}, min(workers, len(groups)))...)
}

// groups are the names of this install's groups. Each broker knows those that
// it coordinates.
func (b *Broker) groups(ctx context.Context, brokers []wire.BrokerNode) ([]string, error) {
	var (
		mu    sync.Mutex
		all   []string
		calls []func(context.Context) error
	)
	for _, broker := range brokers {
		calls = append(calls, func(ctx context.Context) error {
			some, err := b.groupsOn(ctx, broker.ID)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, some...)
			return err
		})
	}
	err := together(ctx, calls...)
	slices.Sort(all)
	return slices.Compact(all), err
}

func (b *Broker) groupsOn(ctx context.Context, broker int32) ([]string, error) {
	res, err := ask[*listgroups.Response](ctx, b, broker, new(listgroups.Request))
	if err != nil {
		return nil, err
	}
	if err := codeError(res.ErrorCode, ""); err != nil {
		return nil, fmt.Errorf("list the groups on broker %d: %w", broker, err)
	}
	var ours []string
	for _, g := range res.Groups {
		if strings.HasPrefix(g.GroupID, b.names.Group("")) {
			ours = append(ours, g.GroupID)
		}
	}
	return ours, nil
}
