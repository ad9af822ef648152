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

// A producer had the partitions of the old stream. It fails what it could not send to the one that is gone, and
// uses the others from then on.
func TestAProducerHasAPartitionThatIsGone(t *testing.T) {
	h := newHostile(t, 1)
	h.b.growthEvery, h.b.missingFor = 10*time.Millisecond, 500*time.Millisecond
	p, err := h.b.Producer(ProducerOptions{Timeout: time.Hour})
	h.must(err)
	send := func(n int) (Receipt, error) { return p.Publish(h.ctx(), "events", hostileEvent(n)) }
	gone := 0
	for ; ; gone++ {
		r, err := send(gone)
		h.must(err)
		if r.Partition == 1 {
			break
		}
	}
	h.againWithOne()
	if _, err := send(gone); !errors.Is(err, errSurplus) {
		t.Errorf("to a partition that is gone: %v", err)
	}
	if r, err := send(gone); err != nil || r.Partition != 0 {
		t.Errorf("then: %+v, %v", r, err)
	}
	done := make(chan error, 1)
	p.SendTo(h.ctx(), "events", 1, hostileEvent(gone), func(_ Receipt, err error) { done <- err })
	if err := <-done; err == nil || !strings.Contains(err.Error(), "the stream has 1") {
		t.Errorf("to that partition by its number: %v", err)
	}
	h.must(p.Close(h.ctx()))
}

// A transaction has events for a partition that is gone. It aborts, and a later one uses the others.
func TestATransactionHasAPartitionThatIsGone(t *testing.T) {
	h := newHostile(t, 1)
	h.b.growthEvery, h.b.missingFor = 10*time.Millisecond, 500*time.Millisecond
	c := h.reopen(ConsumerOptions{})
	x, err := c.Transactor(ProducerOptions{})
	h.must(err)
	do := func() error {
		return x.Do(h.ctx(), func(tx *Tx) error {
			for n := range 8 {
				tx.Send(h.ctx(), "out", hostileEvent(n))
			}
			return nil
		})
	}
	h.must(do())
	h.must(h.kafka.DeleteTopic("tidemill.out"))
	h.must(h.kafka.CreateTopic("tidemill.out", 1, nil))
	for err = do(); errors.Is(err, ErrAborted) && h.Context().Err() == nil; err = do() {
	}
	h.must(err)
	h.must(errors.Join(x.Close(h.ctx()), c.Close(h.ctx())))
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
