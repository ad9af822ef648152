package broker

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
)

// A reader without a group notices partitions that are added, and misses none of
// their events.
func TestReaderNoticesAddedPartitions(t *testing.T) {
	h := newHostile(t, 1)
	h.b.growthEvery = 20 * time.Millisecond
	c, err := h.b.Consumer(h.ctx(), ConsumerOptions{Streams: []string{"events"}, Start: Latest()})
	h.must(err)
	_, err = h.b.client.CreatePartitions(h.ctx(), &kafka.CreatePartitionsRequest{Topics: []kafka.TopicPartitionsConfig{{Name: "tidemill.events", Count: 8}}})
	h.must(err)
	h.b.cluster.mu.Lock()
	clear(h.b.cluster.topics)
	h.b.cluster.mu.Unlock()
	_, errs := h.publish(0, 40, ProducerOptions{})
	h.must(errors.Join(errs...))
	ctx, cancel := context.WithTimeout(h.ctx(), hostilePatience)
	defer cancel()
	for n := 0; n < 40; {
		d, err := c.Poll(ctx)
		if err != nil {
			t.Fatalf("%d of 40 events have come: %v", n, err)
		}
		n += len(d.Events)
		d.Done()
	}
	h.must(c.Close(h.ctx()))
}

// Who reads a stream that is deleted is told so, with a group and without, and
// also a member that has lost the last partition with it.
func TestDeletedStreamEndsReading(t *testing.T) {
	for _, group := range []string{"", "g"} {
		t.Run("group "+group, func(t *testing.T) {
			h := newHostile(t, 1)
			h.b.growthEvery, h.b.missingFor = 20*time.Millisecond, 300*time.Millisecond
			c, err := h.b.Consumer(h.ctx(), ConsumerOptions{Group: group, Streams: []string{"events"}, SessionTimeout: time.Second})
			h.must(err)
			defer c.Close(h.ctx())
			if group != "" {
				for len(c.Positions()) == 0 {
					h.must(sleep(h.ctx(), time.Millisecond))
				}
			}
			_, err = h.b.client.DeleteTopics(h.ctx(), &kafka.DeleteTopicsRequest{Topics: []string{"tidemill.events"}})
			h.must(err)
			ctx, cancel := context.WithTimeout(h.ctx(), hostilePatience)
			defer cancel()
			if _, err = c.Poll(ctx); !errors.Is(err, ErrNoStream) || !strings.Contains(err.Error(), "stream events") {
				t.Errorf("Poll returns %v", err)
			}
		})
	}
}
