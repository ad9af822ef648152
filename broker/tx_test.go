package broker

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev/broker/internal/wire"
	"tidemill.dev/broker/retry"
)

// parkedFake returns a stream of one partition and its companion.
func parkedFake(t *testing.T) (*Broker, *kfake.Cluster) {
	t.Helper()
	return openFake(t, kfake.SeedTopics(1, "prod.events", "prod.events.parked", "prod.out", "prod.dead-letters"))
}

func pollOne(t *testing.T, c *Consumer) *Delivery {
	t.Helper()
	d, err := c.Poll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// standsAt returns the offset that the group has committed for partition 0.
func standsAt(t *testing.T, b *Broker, stream string) int64 {
	t.Helper()
	all, err := b.Committed(t.Context(), "g", []Position{{Stream: stream}})
	if err != nil {
		t.Fatal(err)
	}
	return all[0].Offset
}

// All offsets of a transaction are sent with member and generation, which keeps zombies out. This
// includes offsets of partitions that were not read.
func TestMarkNamesMemberAndGeneration(t *testing.T) {
	b, k := parkedFake(t)
	publishAll(t, b, "events", "a")
	c, x := openTransactor(t, b, nil)
	d := pollOne(t, c)
	defer d.Done()
	var named atomic.Bool
	k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Count: -1, Observe: true, When: func(r kmsg.Request) bool {
		req := r.(*kmsg.TxnOffsetCommitRequest)
		named.Store(req.MemberID != "" && req.Generation >= 0 && len(req.Topics) == 1 && req.Topics[0].Topic == "prod.events.parked")
		return true
	}})
	if err := x.Do(t.Context(), func(tx *Tx) error { tx.Mark(Position{Stream: "events.parked", Offset: 3}); return nil }); err != nil {
		t.Fatal(err)
	}
	if !named.Load() || standsAt(t, b, "events.parked") != 3 {
		t.Errorf("named: %v; the group is at %d", named.Load(), standsAt(t, b, "events.parked"))
	}
}

// A mark fails if its home is given up between the mark and the commit, even if the home is taken
// again.
func TestMarkWhoseHomeIsLost(t *testing.T) {
	b, _ := parkedFake(t)
	publishAll(t, b, "events", "a")
	asked := make(chan struct{}, 10)
	c, x := openTransactor(t, b, func(context.Context, []Position) ([]Position, error) { asked <- struct{}{}; return nil, nil })
	pollOne(t, c).Done()
	<-asked
	err := x.Do(t.Context(), func(tx *Tx) error {
		tx.Mark(Position{Stream: "events.parked", Offset: 3})
		c.giveUp(c.parts)
		c.member.startOver()
		<-asked
		return nil
	})
	if !errors.Is(err, ErrAborted) || !errors.Is(err, errTakenAway) {
		t.Errorf("error is %v", err)
	}
	if at := standsAt(t, b, "events.parked"); at != -1 {
		t.Errorf("the group is at %d", at)
	}
}

// A delivery may be given to a transaction after its events have ended one by one and its memory
// was reused. The group's offset does not move back.
func TestTransactionOfWhatHasEnded(t *testing.T) {
	b, _ := parkedFake(t)
	publishAll(t, b, "events", "a", "b")
	c, x := openTransactor(t, b, nil)
	first := pollOne(t, c)
	first.Done()
	publishAll(t, b, "events", "c")
	second := pollOne(t, c)
	second.Done()
	publishAll(t, b, "events", "d")
	third := pollOne(t, c)
	for at := int64(0); at != 3; at = standsAt(t, b, "events") {
		if err := retry.Sleep(t.Context(), 1e6); err != nil {
			t.Fatal(err)
		}
	}
	give := func(all ...*Delivery) {
		t.Helper()
		err := x.Do(t.Context(), func(tx *Tx) error {
			for _, d := range all {
				tx.Done(d)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if give(first); standsAt(t, b, "events") != 3 {
		t.Errorf("the group has gone back to %d", standsAt(t, b, "events"))
	}
	if give(first, third); standsAt(t, b, "events") != 4 { // the second is left out because it has ended
		t.Errorf("the group is at %d, want 4", standsAt(t, b, "events"))
	}
}

// A transaction also commits the ended events beyond its offset, and the next reader gets only the
// others. Kafka may allow less metadata than that.
func TestTransactionCarriesWhatEndedBeyond(t *testing.T) {
	for _, tooLarge := range []bool{false, true} {
		t.Run(fmt.Sprint("too large ", tooLarge), func(t *testing.T) {
			b, k := parkedFake(t)
			c, err := b.Consumer(t.Context(), ConsumerOptions{Group: "g", Streams: []string{"events"}, CommitEvery: 1e15})
			if err != nil {
				t.Fatal(err)
			}
			x, err := c.Transactor(ProducerOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var all []*Delivery
			for _, id := range []string{"a", "b", "c"} {
				publishAll(t, b, "events", id)
				all = append(all, pollOne(t, c))
			}
			all[2].Done()
			if tooLarge {
				k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Err: kerr.OffsetMetadataTooLarge})
			}
			if err := x.Do(t.Context(), func(tx *Tx) error { tx.Done(all[0]); return nil }); err != nil {
				t.Fatal(err)
			}
			known, err := b.committedOffsets(t.Context(), "prod.g", []wire.TopicPartition{{Topic: "prod.events"}})
			if err != nil {
				t.Fatal(err)
			}
			at := known[wire.TopicPartition{Topic: "prod.events"}]
			if _, spans := decodeMetadata(at.Offset, at.Metadata); at.Offset != 1 || isCovered(spans, 2) == tooLarge || isCovered(spans, 1) {
				t.Errorf("the group is at %d, ended beyond that: %v", at.Offset, spans)
			}
			all[1].Done()
			if err := errors.Join(x.Close(t.Context()), c.Close(t.Context())); err != nil {
				t.Error(err)
			}
		})
	}
}

// If Kafka does not return the offset of an event and the caller wants it, the transaction fails.
func TestOutputWithoutAPlace(t *testing.T) {
	b, k := parkedFake(t)
	publishAll(t, b, "events", "a")
	c, x := openTransactor(t, b, nil)
	defer pollOne(t, c).Done()
	for _, done := range []func(Receipt){nil, func(r Receipt) { t.Errorf("told of %+v", r) }} {
		k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.DuplicateSequenceNumber})
		err := x.Do(t.Context(), func(tx *Tx) error {
			tx.SendTo(t.Context(), "out", 0, &View{ID: "x", Source: "/x", Type: "t"}, done)
			return nil
		})
		if errors.Is(err, ErrAborted) != (done != nil) {
			t.Errorf("error is %v", err)
		}
	}
}
