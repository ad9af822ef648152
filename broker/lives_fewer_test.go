package broker

import (
	"errors"
	"strings"
	"testing"
	"time"

	"tidemill.dev/broker/retry"
)

// againWithOne deletes the stream and creates it again with one partition.
func (h *hostileBroker) againWithOne() {
	h.Helper()
	h.must(h.kafka.DeleteTopic("tidemill.events"))
	h.must(h.kafka.CreateTopic("tidemill.events", 1, nil))
	_, err := h.b.EnsureStreams(h.ctx(), []StreamSpec{{Name: "events", Partitions: 1}}, EnsureOptions{}) // finds the partitions for the producer
	h.must(err)
	_, errs := h.publish(1000, 1010, ProducerOptions{})
	h.must(errors.Join(errs...))
}

// A stream is created again with fewer partitions. Close does not wait for the partition that is gone.
func TestCloseAfterAStreamGotFewerPartitions(t *testing.T) {
	h, c := newLives(t, ConsumerOptions{CommitEvery: time.Hour})
	h.readDifferent(c, 40)
	h.againWithOne()
	h.readDifferent(c, 10)
	h.must(c.Close(h.ctx()))
}

// A member gives up a partition that its stream no longer has.
func TestAMemberHasAPartitionThatIsGone(t *testing.T) {
	h, c := newLives(t, ConsumerOptions{})
	h.readDifferent(c, 40)
	h.must(c.Close(h.ctx()))
	h.b.growthEvery = 10 * time.Millisecond
	c = h.reopen(ConsumerOptions{})
	h.againWithOne()
	h.readDifferent(c, 10)
	for len(c.Positions()) != 1 {
		h.must(retry.Sleep(h.ctx(), time.Millisecond))
	}
	h.must(c.Close(h.ctx()))
}

// A consumer without a group ends, and says that a partition is gone.
func TestAReaderHasAPartitionThatIsGone(t *testing.T) {
	h := newHostile(t, 1)
	h.b.missingFor = time.Second
	c, err := h.b.Consumer(h.ctx(), ConsumerOptions{Streams: []string{"events"}})
	h.must(err)
	_, errs := h.publish(0, 40, ProducerOptions{})
	h.must(errors.Join(errs...))
	h.readDifferent(c, 40)
	h.againWithOne()
	for err == nil {
		var d *Delivery
		if d, err = c.Poll(h.ctx()); err == nil {
			d.Done()
		}
	}
	if !errors.Is(err, ErrNoStream) || !strings.Contains(err.Error(), "fewer partitions") {
		t.Errorf("it says %v", err)
	}
	h.must(c.Close(h.ctx()))
}
