package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/createpartitions"
	"github.com/segmentio/kafka-go/protocol/createtopics"
	"github.com/segmentio/kafka-go/protocol/incrementalalterconfigs"

	"tidemill.dev/broker/internal/wire"
)

// adminTimeoutMs is how long Kafka may take over a creation before it answers
// that it goes on in the background. It is less than we wait for an answer.
const adminTimeoutMs = 5_000

// applyPlan does what plan decided, and decides nothing. A step that another
// process took first is no error. Every step is tried, whatever became of the
// one before, and what is for good outweighs what may pass.
func (b *Broker) applyPlan(ctx context.Context, node int32, a actions) error {
	var gravest error
	for _, err := range []error{
		b.createStreams(ctx, node, a.create),
		b.alterStreams(ctx, node, a.alter),
		b.growStreams(ctx, node, a.grow),
	} {
		gravest = graver(gravest, err)
	}
	return gravest
}

func (b *Broker) createStreams(ctx context.Context, node int32, all []newStream) error {
	if len(all) == 0 {
		return nil
	}
	req := &createtopics.Request{TimeoutMs: adminTimeoutMs}
	for _, s := range all {
		t := createtopics.RequestTopic{Name: b.names.Topic(s.name), NumPartitions: int32(s.partitions), ReplicationFactor: int16(s.replication)}
		for _, w := range s.settings {
			t.Configs = append(t.Configs, createtopics.RequestConfig{Name: w.key, Value: w.value})
		}
		req.Topics = append(req.Topics, t)
	}
	res, err := ask[*createtopics.Response](ctx, b, node, req)
	if err != nil {
		return err
	}
	var failed []error
	for _, t := range res.Topics {
		err := codeError(t.ErrorCode, t.ErrorMessage)
		if err != nil && !isCode(err, kafka.TopicAlreadyExists) {
			failed = append(failed, fmt.Errorf("create topic %s: %w%s", t.Name, err, aclHint(err)))
		}
	}
	return worst(failed)
}

func (b *Broker) alterStreams(ctx context.Context, node int32, all []alteredStream) error {
	if len(all) == 0 {
		return nil
	}
	req := new(incrementalalterconfigs.Request)
	for _, s := range all {
		r := incrementalalterconfigs.RequestResource{ResourceType: resourceTopic, ResourceName: b.names.Topic(s.name)}
		for _, w := range s.settings {
			r.Configs = append(r.Configs, incrementalalterconfigs.RequestConfig{Name: w.key, Value: w.value})
		}
		req.Resources = append(req.Resources, r)
	}
	res, err := ask[*incrementalalterconfigs.Response](ctx, b, node, req)
	if err != nil {
		return err
	}
	var failed []error
	for _, r := range res.Responses {
		if err := codeError(r.ErrorCode, r.ErrorMessage); err != nil {
			failed = append(failed, fmt.Errorf("alter topic %s: %w%s", r.ResourceName, err, aclHint(err)))
		}
	}
	return worst(failed)
}

func (b *Broker) growStreams(ctx context.Context, node int32, all []grownStream) error {
	if len(all) == 0 {
		return nil
	}
	req := &createpartitions.Request{TimeoutMs: adminTimeoutMs}
	for _, s := range all {
		req.Topics = append(req.Topics, createpartitions.RequestTopic{Name: b.names.Topic(s.name), Count: int32(s.to)})
	}
	res, err := ask[*createpartitions.Response](ctx, b, node, req)
	if err != nil {
		return err
	}
	var failed []error
	for _, r := range res.Results {
		err := codeError(r.ErrorCode, r.ErrorMessage)
		// Too few partitions asked for: another process has grown it first.
		if err != nil && !isCode(err, kafka.InvalidPartitionNumber) {
			failed = append(failed, fmt.Errorf("add partitions to topic %s: %w%s", r.Name, err, aclHint(err)))
		}
	}
	return worst(failed)
}

// worst joins the errors that are for good; without one, those that may pass.
func worst(failed []error) error {
	if lasting := slices.DeleteFunc(slices.Clone(failed), passing); len(lasting) > 0 {
		return errors.Join(lasting...)
	}
	return errors.Join(failed...)
}

// awaitLeaders waits until every server knows a leader for every partition of
// the streams: until then a publisher, whichever server it asks, would only see
// errors. A server that cannot be reached misleads nobody and is not asked.
func (b *Broker) awaitLeaders(ctx context.Context, servers []wire.BrokerNode, specs []StreamSpec) error {
	if len(specs) == 0 {
		return nil
	}
	topics := make([]string, len(specs))
	for i, s := range specs {
		topics[i] = b.names.Topic(s.Name)
	}
	waiting := topics
	_, err := persist(ctx, func(ctx context.Context) (any, error) {
		md, err := b.metadata(ctx, topics...)
		if err != nil {
			return nil, err
		}
		waiting = leaderless(md)
		for _, s := range servers {
			switch md, err := b.metadataFrom(ctx, s.ID, topics...); {
			case err == nil:
				waiting = append(waiting, leaderless(md)...)
			case isCode(err, kafka.BrokerNotAvailable): // kafka-go has not heard of it yet
				return nil, err
			}
		}
		if len(waiting) > 0 {
			return nil, kafka.LeaderNotAvailable
		}
		return nil, nil
	})
	if err != nil {
		slices.Sort(waiting)
		return fmt.Errorf("wait for leaders of %s: %w: are all brokers up?", strings.Join(slices.Compact(waiting), ", "), err)
	}
	return nil
}

// leaderless are the topics that are not, or not wholly, ready.
func leaderless(md *wire.Metadata) []string {
	var all []string
	for _, t := range md.Topics {
		notLed := func(p wire.PartitionMetadata) bool {
			return p.Leader < 0 || p.Error == int16(kafka.LeaderNotAvailable)
		}
		if t.Error != 0 || len(t.Partitions) == 0 || slices.ContainsFunc(t.Partitions, notLed) {
			all = append(all, t.Name)
		}
	}
	return all
}

func isCode(err error, code kafka.Error) bool { return errors.Is(err, code) }
