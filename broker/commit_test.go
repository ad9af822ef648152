package broker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A member whose offsets are refused for good is told so, however much there
// still is to read.
func TestRefusedCommitEndsReading(t *testing.T) {
	h := newHostile(t, 1)
	c, err := h.b.Consumer(h.ctx(), ConsumerOptions{Group: "g", Streams: []string{"events"}, SessionTimeout: hostileSession, CommitEvery: 10 * time.Millisecond})
	h.must(err)
	defer c.Close(h.ctx())
	_, errs := h.publish(0, 4, ProducerOptions{})
	h.must(errors.Join(errs...))
	d, err := c.Poll(h.ctx())
	h.must(err)
	h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.GroupAuthorizationFailed, Count: -1})
	for err == nil {
		d.Done()
		h.publish(4, 8, ProducerOptions{})
		d, err = c.Poll(h.ctx())
	}
	if !errors.Is(err, kafka.GroupAuthorizationFailed) {
		t.Errorf("Poll returns %v", err)
	}
}

// Whoever closes with time to spare commits what has ended, though Kafka takes its
// own: it would be done again.
func TestCloseWaitsForTheLastCommit(t *testing.T) {
	h := newHostile(t, 1)
	c, err := h.b.Consumer(h.ctx(), ConsumerOptions{Group: "g", Streams: []string{"events"}, SessionTimeout: hostileSession, CommitEvery: time.Hour})
	h.must(err)
	_, errs := h.publish(0, 4, ProducerOptions{})
	h.must(errors.Join(errs...))
	for n := 0; n < 4; {
		d, err := c.Poll(h.ctx())
		h.must(err)
		n += len(d.Events)
		d.Done()
	}
	h.kafka.ControlKey(int16(kmsg.OffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
		h.kafka.SleepControl(func() { _ = sleep(h.ctx(), leaveTime*3/2) })
		return nil, nil, false
	})
	h.must(c.Close(h.ctx()))
	if at := h.committed("g"); at != 4 {
		t.Errorf("closed, and the group is at %d of 4", at)
	}
}

// A broker that takes less metadata than we have to say still takes the offset.
func TestCommitWithoutMetadataWhereItIsTooLarge(t *testing.T) {
	h := newHostile(t, 1)
	c, err := h.b.Consumer(h.ctx(), ConsumerOptions{Group: "g", Streams: []string{"events"}, SessionTimeout: hostileSession, CommitEvery: 10 * time.Millisecond})
	h.must(err)
	h.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.OffsetMetadataTooLarge, Count: -1, When: func(r kmsg.Request) bool {
		for _, topic := range r.(*kmsg.OffsetCommitRequest).Topics {
			for _, p := range topic.Partitions {
				if p.Metadata != nil && *p.Metadata != "" {
					return true
				}
			}
		}
		return false
	}})
	p, err := h.b.Producer(ProducerOptions{})
	h.must(err)
	for range 3 {
		_, err := p.Publish(h.ctx(), "events", hostileEvent(0))
		h.must(err)
	}
	h.must(p.Close(h.ctx()))
	var all []*Incoming
	for len(all) < 3 {
		d, err := c.Poll(h.ctx())
		h.must(err)
		for i := range d.Events {
			all = append(all, &d.Events[i])
		}
	}
	all[0].Done()
	all[2].Done()
	for h.committed("g") != 1 {
		h.must(sleep(h.ctx(), time.Millisecond))
	}
	all[1].Done()
	h.must(c.Close(h.ctx()))
}

// A partition that is added to a stream is read from its beginning by a group
// that started at the latest: nobody was there when its first events came.
func TestAddedPartitionIsReadFromItsBeginning(t *testing.T) {
	h := newHostile(t, 1)
	c, err := h.b.Consumer(h.ctx(), ConsumerOptions{Group: "g", Streams: []string{"events"}, Start: Latest(), CommitEvery: 10 * time.Millisecond})
	h.must(err)
	for len(c.Positions()) != 2 { // their starts are committed before they are read
		h.must(sleep(h.ctx(), time.Millisecond))
	}
	_, err = h.b.client.CreatePartitions(h.ctx(), &kafka.CreatePartitionsRequest{Topics: []kafka.TopicPartitionsConfig{{Name: "tidemill.events", Count: 8}}})
	h.must(err)
	h.b.cluster.mu.Lock()
	clear(h.b.cluster.topics)
	h.b.cluster.mu.Unlock()
	_, errs := h.publish(0, 40, ProducerOptions{})
	h.must(errors.Join(errs...))
	c.member.startOver() // as the leader does when it notices
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

// What is published while a reader looks for a time at which it starts is not
// passed over.
func TestNothingIsPassedOverWhileTheStartIsFound(t *testing.T) {
	h := newHostile(t, 1)
	since := time.Now().Add(-time.Hour)
	lists := 0
	h.kafka.ControlKey(int16(kmsg.ListOffsets), func(r kmsg.Request) (kmsg.Response, error, bool) {
		h.kafka.KeepControl()
		if lists++; lists == 2 {
			h.kafka.SleepControl(func() { h.publish(0, 20, ProducerOptions{}) })
		}
		return nil, nil, false
	})
	c, err := h.b.Consumer(h.ctx(), ConsumerOptions{Streams: []string{"events"}, Start: Since(since)})
	h.must(err)
	ctx, cancel := context.WithTimeout(h.ctx(), hostilePatience)
	defer cancel()
	for n := 0; n < 20; {
		d, err := c.Poll(ctx)
		if err != nil {
			t.Fatalf("%d of 20 events have come: %v", n, err)
		}
		n += len(d.Events)
		d.Done()
	}
	h.must(c.Close(h.ctx()))
}
