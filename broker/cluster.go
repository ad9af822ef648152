package broker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

// cluster knows which server leads which partition. kafka-go's transport keeps
// such a cache too, but serves it stale for seconds after a leader has moved;
// ours is asked anew as soon as an answer says that it is wrong.
type cluster struct {
	mu     sync.Mutex
	topics map[string]*topicPlace
	asking map[string]*asking
}

type topicPlace struct {
	leaders []int32   // by partition; -1 while an election is on
	asked   time.Time // before the question was sent, so that it is never younger than it looks
}

// asking is one metadata request on its way; whoever wants the same topic
// waits for it instead of asking again. Its fields are set before done is
// closed.
type asking struct {
	done      chan struct{}
	leaders   []int32
	err       error
	abandoned bool // whoever asked went away; that says nothing about the cluster
}

// metadata asks the cluster now, around every cache. No topics asks for all.
func (b *Broker) metadata(ctx context.Context, topics ...string) (*wire.Metadata, error) {
	asked := time.Now()
	m, err := b.metadataFrom(ctx, anyNode, topics...)
	if err != nil {
		return nil, err
	}
	b.dialer.learn(m.Brokers)
	b.learn(m.Topics, asked)
	return m, nil
}

// metadataFrom asks how one server sees the cluster.
func (b *Broker) metadataFrom(ctx context.Context, node int32, topics ...string) (*wire.Metadata, error) {
	ctx, cancel := b.within(ctx)
	defer cancel()
	var frame wire.Frame
	frame.Metadata(b.names.Install(), topics)
	answer, err := b.call(ctx, node, &frame, nil)
	if err != nil {
		return nil, fmt.Errorf("ask %s for metadata: %w", b.addr, err)
	}
	m, err := wire.ReadMetadata(answer)
	if err != nil {
		return nil, fmt.Errorf("read metadata from %s: %w", b.addr, err)
	}
	return m, nil
}

// learn remembers where our streams live. A shared Kafka may have thousands of
// other topics.
func (b *Broker) learn(topics []wire.TopicMetadata, asked time.Time) {
	c := &b.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range topics {
		t := &topics[i]
		if _, ours := b.names.Stream(t.Name); !ours || t.Error != 0 {
			continue
		}
		if known := c.topics[t.Name]; known == nil || known.asked.Before(asked) {
			c.topics[t.Name] = &topicPlace{leadersOf(t), asked}
		}
	}
}

func leadersOf(t *wire.TopicMetadata) []int32 {
	leaders := make([]int32, len(t.Partitions))
	for i := range t.Partitions {
		leaders[i] = t.Partitions[i].Leader
	}
	return leaders
}

// leaders returns the leader of each of a topic's partitions. What is older
// than maxAge is asked anew.
func (b *Broker) leaders(ctx context.Context, topic string, maxAge time.Duration) ([]int32, error) {
	for {
		known, a, mine := b.cluster.look(topic, maxAge)
		if known != nil {
			return known, nil
		}
		if mine {
			a.leaders, a.err = b.askLeaders(ctx, topic)
			a.abandoned = a.err != nil && ctx.Err() != nil
			b.cluster.answered(topic, a)
			return a.leaders, a.err
		}
		select {
		case <-a.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if !a.abandoned {
			return a.leaders, a.err
		}
	}
}

// look returns what is known, or the request that is on its way to find out;
// mine if the caller is to make it.
func (c *cluster) look(topic string, maxAge time.Duration) (known []int32, a *asking, mine bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.topics[topic]; p != nil && time.Since(p.asked) <= maxAge {
		return p.leaders, nil, false
	}
	if a := c.asking[topic]; a != nil {
		return nil, a, false
	}
	a = &asking{done: make(chan struct{})}
	c.asking[topic] = a
	return nil, a, true
}

func (c *cluster) answered(topic string, a *asking) {
	c.mu.Lock()
	delete(c.asking, topic)
	c.mu.Unlock()
	close(a.done)
}

func (b *Broker) askLeaders(ctx context.Context, topic string) ([]int32, error) {
	m, err := b.metadata(ctx, topic)
	if err != nil {
		return nil, err
	}
	for i := range m.Topics {
		switch t := &m.Topics[i]; {
		case t.Name != topic:
		case t.Error != 0:
			return nil, kafka.Error(t.Error)
		default:
			return leadersOf(t), nil
		}
	}
	return nil, kafka.UnknownTopicOrPartition
}
