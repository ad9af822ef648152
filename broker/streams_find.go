package broker

import (
	"context"
	"fmt"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/describeconfigs"

	"tidemill.dev/broker/internal/wire"
)

// resourceTopic is a topic among the resources of the config requests.
const resourceTopic = 2

// sourceTopic marks a config that the topic itself has.
const sourceTopic = 1

// findStreams reads what Kafka has of this install's streams.
func (b *Broker) findStreams(ctx context.Context) (foundStreams, error) {
	md, err := b.metadata(ctx)
	if err != nil {
		return foundStreams{}, err
	}
	found := foundStreams{brokers: len(md.Brokers), servers: md.Brokers, steward: steward(md), streams: map[string]foundStream{}}
	topics, err := b.ours(md)
	if err != nil {
		return foundStreams{}, err
	}
	settings, err := b.topicSettings(ctx, steward(md), topics)
	if err != nil {
		return foundStreams{}, err
	}
	for _, t := range topics {
		name, _ := b.names.Stream(t.Name)
		f := foundStream{partitions: len(t.Partitions), settings: settings[t.Name]}
		if len(t.Partitions) > 0 {
			f.replication = len(t.Partitions[0].Replicas)
		}
		found.streams[name] = f
	}
	return found, nil
}

// steward is the server to ask for changes and to look at them again: the
// controller if it is named, which with ZooKeeper alone can make them.
func steward(md *wire.Metadata) int32 {
	for _, broker := range md.Brokers {
		if broker.ID == md.Controller {
			return broker.ID
		}
	}
	return anyNode
}

// ours are the topics with this install's prefix.
func (b *Broker) ours(md *wire.Metadata) ([]wire.TopicMetadata, error) {
	var all []wire.TopicMetadata
	for _, t := range md.Topics {
		if _, ok := b.names.Stream(t.Name); !ok || t.Internal {
			continue
		}
		if err := codeError(t.Error, ""); err != nil {
			return nil, fmt.Errorf("look at topic %s: %w", t.Name, err)
		}
		all = append(all, t)
	}
	return all, nil
}

// topicSettings are the configs that we care about, by topic and key.
func (b *Broker) topicSettings(ctx context.Context, node int32, topics []wire.TopicMetadata) (map[string]map[string]setting, error) {
	if len(topics) == 0 {
		return nil, nil
	}
	var keys []string
	for _, w := range settingsOf(StreamSpec{MaxMessageBytes: 1}, 1) {
		keys = append(keys, w.key)
	}
	req := new(describeconfigs.Request)
	for _, t := range topics {
		req.Resources = append(req.Resources, describeconfigs.RequestResource{
			ResourceType: resourceTopic, ResourceName: t.Name, ConfigNames: keys})
	}
	res, err := ask[*describeconfigs.Response](ctx, b, node, req)
	if err != nil {
		return nil, err
	}
	all := make(map[string]map[string]setting, len(topics))
	for _, r := range res.Resources {
		if err := codeError(r.ErrorCode, r.ErrorMessage); err != nil {
			return nil, fmt.Errorf("read the config of topic %s: %w%s", r.ResourceName, err, aclHint(err))
		}
		entries := make(map[string]setting, len(r.ConfigEntries))
		for _, e := range r.ConfigEntries {
			entries[e.ConfigName] = setting{value: e.ConfigValue, own: e.ConfigSource == sourceTopic}
		}
		all[r.ResourceName] = entries
	}
	return all, nil
}

// aclHint is the next step where Kafka's access lists refuse us.
func aclHint(err error) string {
	for _, code := range []kafka.Error{kafka.TopicAuthorizationFailed, kafka.ClusterAuthorizationFailed, kafka.GroupAuthorizationFailed} {
		if isCode(err, code) {
			return ": let our user describe, create and alter the topics with our prefix, and read its groups"
		}
	}
	return ""
}
