package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

const (
	growthEvery = 10 * time.Second
	missingFor  = time.Minute // after which a stream that is not there is taken for deleted
)

// watch looks, for a consumer without a group, after partitions that are added
// to its streams. They are read from their beginning.
func (c *Consumer) watch(counts map[string]int) {
	for sleep(c.ctx, c.b.growthEvery) == nil {
		for topic, before := range counts {
			n, err := c.grow(topic, before)
			if err != nil && c.ctx.Err() == nil && !passing(err) {
				c.fail(fmt.Errorf("look after added partitions: %w", err))
			}
			counts[topic] = n
		}
	}
}

// grow takes the partitions that a topic has beyond those that were there.
func (c *Consumer) grow(topic string, before int) (int, error) {
	ctx, cancel := context.WithTimeout(c.ctx, c.b.requestTimeout)
	defer cancel()
	leaders, err := c.b.leaders(ctx, topic, fresh)
	if err != nil || len(leaders) <= before {
		return before, err
	}
	var added []wire.TopicPartition
	for i := before; i < len(leaders); i++ {
		added = append(added, wire.TopicPartition{Topic: topic, Partition: int32(i)})
	}
	places, err := c.b.startOffsets(ctx, added, Earliest())
	if err != nil {
		return before, err
	}
	return len(leaders), c.take(ctx, places)
}

// missing takes note whether Kafka knows a place. It may deny that it does
// while a server restarts; a minute of that ends reading, which would otherwise
// look in silence for a stream that has been deleted. A partition of -1 stands
// for the whole topic.
func (c *Consumer) missing(tp wire.TopicPartition, err error) {
	c.mu.Lock()
	if !errors.Is(err, kafka.UnknownTopicOrPartition) {
		if err == nil {
			delete(c.absent, tp)
		}
		c.mu.Unlock()
		return
	}
	since, known := c.absent[tp]
	if !known {
		since = time.Now()
		c.absent[tp] = since
	}
	c.mu.Unlock()
	if gone := time.Since(since); gone >= c.b.missingFor {
		stream, _ := c.b.names.Stream(tp.Topic)
		c.fail(fmt.Errorf("read stream %s: it has not been there for %v and must have been deleted: %w", stream, gone.Round(time.Second), noStream(err)))
	}
}

// lookAfter checks that the streams of a member are still there: of one that is
// not it has no partitions to fail at.
func (m *member) lookAfter(ctx context.Context) {
	for _, s := range m.c.opt.Streams {
		topic := m.c.b.names.Topic(s)
		_, err := m.c.b.leaders(ctx, topic, m.c.b.growthEvery/2)
		m.c.missing(wire.TopicPartition{Topic: topic, Partition: -1}, err)
	}
}
