package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// recreate plans that a stream of users is deleted and created again, in one of six worlds: the oracle then forgives that an
// event is lost which was published before.
func (p *plan) recreate(r *rand.Rand) {
	if !isOn("recreate") || p.observers > 0 || p.judging.rollout != "" || r.IntN(6) > 0 {
		return
	}
	stream := []string{"messages", "scored", "events"}[r.IntN(3)]
	if stream == "events" && p.committers > 0 {
		stream = "messages" // an acknowledged commit would lose its event
	}
	p.faults = append(p.faults, fault{at: p.load/4 + time.Duration(r.Int64N(int64(p.load/2))), kind: "recreate",
		other: stream, lasts: time.Duration(r.IntN(4000)) * time.Millisecond})
}

// recreate deletes a stream, and creates it again with the same settings, unless a process of Tidemill is faster.
func (w *world) recreate(f fault) {
	c, err := kgo.NewClient(w.kafka()...)
	if err != nil {
		w.t.Error(err)
		return
	}
	defer c.Close()
	topic := "tidemill." + f.other
	var again *kmsg.CreateTopicsRequest
	w.until(func(ctx context.Context) (err error) { again, err = likeTopic(ctx, c, topic); return err })
	w.until(func(ctx context.Context) error { return deleteTopic(ctx, c, topic) })
	w.history.say("stream %s is deleted", f.other)
	sleep(w.ctx, f.lasts)
	w.until(func(ctx context.Context) error {
		resp, err := again.RequestWith(ctx, c)
		if err == nil {
			err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
		}
		if errors.Is(err, kerr.TopicAlreadyExists) {
			return nil
		}
		return err
	})
	w.history.say("stream %s is there again", f.other)
	w.again[f.other] = time.Now()
}

// until tries again until a request of the chaos host succeeds. Its server may be dead.
func (w *world) until(do func(context.Context) error) {
	for w.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(w.ctx, 10*time.Second)
		err := do(ctx)
		cancel()
		if err == nil {
			return
		}
		w.must(err)
		sleep(w.ctx, time.Second)
	}
}

// likeTopic returns a request that creates a topic as it is now.
func likeTopic(ctx context.Context, c *kgo.Client, topic string) (*kmsg.CreateTopicsRequest, error) {
	meta := kmsg.NewPtrMetadataRequest()
	one := kmsg.NewMetadataRequestTopic()
	one.Topic = &topic
	meta.Topics = append(meta.Topics, one)
	there, err := meta.RequestWith(ctx, c)
	if err == nil {
		err = kerr.ErrorForCode(there.Topics[0].ErrorCode)
	}
	if err != nil {
		return nil, err
	}
	describe := kmsg.NewPtrDescribeConfigsRequest()
	of := kmsg.NewDescribeConfigsRequestResource()
	of.ResourceType, of.ResourceName = kmsg.ConfigResourceTypeTopic, topic
	describe.Resources = append(describe.Resources, of)
	settings, err := describe.RequestWith(ctx, c)
	if err != nil {
		return nil, err
	}
	create := kmsg.NewCreateTopicsRequestTopic()
	create.Topic, create.NumPartitions, create.ReplicationFactor = topic, int32(len(there.Topics[0].Partitions)), 1
	for _, s := range settings.Resources[0].Configs {
		if s.Source == kmsg.ConfigSourceDynamicTopicConfig {
			create.Configs = append(create.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: s.Name, Value: s.Value})
		}
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Topics = append(req.Topics, create)
	return req, nil
}

func deleteTopic(ctx context.Context, c *kgo.Client, topic string) error {
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TopicNames = []string{topic}
	one := kmsg.NewDeleteTopicsRequestTopic()
	one.Topic = &topic
	req.Topics = append(req.Topics, one)
	resp, err := req.RequestWith(ctx, c)
	if err != nil {
		return err
	}
	if err := kerr.ErrorForCode(resp.Topics[0].ErrorCode); err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
		return fmt.Errorf("delete %s: %w", topic, err)
	}
	return nil
}

// mayBeLost returns the ids of events that were published before one of the streams was created again. Such an event may be
// lost with its stream, and another copy of it may be on the new one.
func (o *oracle) mayBeLost(streams ...string) map[string]bool {
	all := map[string]bool{}
	for _, stream := range streams {
		at, was := o.w.again[stream]
		if !was {
			continue
		}
		for _, p := range o.w.posts.all {
			if !p.began.After(at) {
				all[p.id] = true
			}
		}
	}
	return all
}
