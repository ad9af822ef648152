package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev"
	"tidemill.dev/broker/retry"
)

// The server that a new group asks does not know yet that the stream was created again. The group reads no event twice
// when it learns the new id.
func TestANewGroupAsksAServerThatKnowsTheOldStream(t *testing.T) {
	h := newHostile(t, 1)
	id := h.kafka.TopicInfo("tidemill.events").TopicID
	cluster, err := h.b.Cluster(h.ctx())
	h.must(err)
	h.again(1000, 10)
	h.askedForID(func(n int, r *kmsg.MetadataRequest) kmsg.Response {
		if n > 1 {
			return nil
		}
		answer, one := r.ResponseKind().(*kmsg.MetadataResponse), kmsg.NewMetadataResponseTopic()
		one.Topic, one.TopicID = r.Topics[0].Topic, id
		answer.ClusterID, answer.Topics = &cluster, append(answer.Topics, one)
		answer.Brokers = oneLed(r, h.kafka.ListenAddrs()).(*kmsg.MetadataResponse).Brokers
		return answer
	})
	c := h.reopen(ConsumerOptions{})
	at := h.readDifferent(c, 10)
	for n := range int32(2) {
		c.Pause("events", n)
	}
	c.pauseWasLong()
	for n := range int32(2) {
		c.Resume("events", n)
	}
	_, errs := h.publish(1010, 1012, ProducerOptions{})
	h.must(errors.Join(errs...))
	at = append(at, h.readDifferent(c, 2)...)
	for _, p := range at {
		if LifeOf(p.Offset) > 0 {
			t.Errorf("%v is in another life", p)
		}
	}
	if len(at) != 12 {
		t.Errorf("%d events are read, want 12", len(at))
	}
	h.must(c.Close(h.ctx()))
}

// A stream whose first events were deleted is created again while a new group asks where it begins. The group does not
// take the beginning of the old stream for that of the new one.
func TestAStreamIsCreatedAgainWhileAGroupBegins(t *testing.T) {
	h := newHostile(t, 1)
	_, errs := h.publish(0, 40, ProducerOptions{})
	h.must(errors.Join(errs...))
	h.must(h.b.DeleteBelow(h.ctx(), []Position{{Stream: "events", Partition: 0, Offset: 20}, {Stream: "events", Partition: 1, Offset: 20}}))
	h.askedForID(func(n int, _ *kmsg.MetadataRequest) kmsg.Response {
		if n == 1 {
			h.kafka.SleepControl(func() { h.again(1000, 60) })
		}
		return nil
	})
	c := h.reopen(ConsumerOptions{})
	first := int64(math.MaxInt64)
	for _, at := range h.readDifferent(c, 1) {
		first = min(first, at.Offset)
	}
	if first > 0 {
		t.Errorf("reading begins at offset %d", first)
	}
	h.must(c.Close(h.ctx()))
}

// A member begins a life while events of the life before are open, and is killed. Events of the new life that have ended
// are not read again. If the stream was created a second time, no event has a place that another had.
func TestALifeHasBegunBeforeACommit(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprint("created a second time: ", again), func(t *testing.T) { killInALife(t, again) })
	}
}

func killInALife(t *testing.T, again bool) {
	h, dying, network := newOpenLife(t)
	h.again(1000, 60)
	h.readDifferent(dying, 60)
	var last map[string][]kafka.OffsetCommit
	for parts := 0; parts < 2; {
		h.must(retry.Sleep(h.ctx(), time.Millisecond))
		all, err := h.b.groupOffsets(h.ctx(), "tidemill.g", nil, true)
		h.must(err)
		parts, last = 0, map[string][]kafka.OffsetCommit{}
		for tp, o := range all {
			last[tp.Topic] = append(last[tp.Topic], kafka.OffsetCommit{Partition: int(tp.Partition), Offset: o.Offset, Metadata: o.Metadata})
			if _, ended := decodeMetadata(o.Offset, o.Metadata); len(ended) == 1 && LifeOf(ended[0].first) == 1<<lifeBits && ended[0].afterLast-ended[0].first == 30 {
				parts++
			}
		}
	}
	network.now()
	want, life := 10, int64(1<<lifeBits)
	if again {
		h.again(2000, 30)
		h.commitLate(last)
		want, life = 40, 2<<lifeBits
	}
	_, errs := h.publish(3000, 3010, ProducerOptions{})
	h.must(errors.Join(errs...))
	at := h.readAfterDeath(dying, want)
	if len(at) != want {
		t.Errorf("%d events are read, want %d", len(at), want)
	}
	for _, at := range at {
		if LifeOf(at.Offset) != life {
			t.Errorf("an event has the place %v", at)
		}
	}
}

// newOpenLife returns a consumer of group g with its network. It has read 60 events, and the last 20 are open.
func newOpenLife(t *testing.T) (*hostileBroker, *Consumer, *wireCut) {
	t.Helper()
	h := newHostile(t, 1)
	_, err := h.b.EnsureStreams(h.ctx(), []StreamSpec{{Name: tidemill.StreamGroupOffsets, Partitions: 1}}, EnsureOptions{})
	h.must(err)
	other, err := Open(h.ctx(), Options{Addr: h.kafka.ListenAddrs()[0], Names: h.b.names})
	h.must(err)
	network := new(wireCut)
	network.through(other)
	c, err := other.Consumer(h.ctx(), ConsumerOptions{Group: "g", Streams: []string{"events"}, SessionTimeout: time.Second, Start: Earliest(), CommitEvery: 10 * time.Millisecond})
	h.must(err)
	_, errs := h.publish(0, 40, ProducerOptions{})
	h.must(errors.Join(errs...))
	h.readDifferent(c, 40)
	_, errs = h.publish(40, 60, ProducerOptions{})
	h.must(errors.Join(errs...))
	for n := 0; n < 20; {
		d, err := c.Poll(h.ctx())
		h.must(err)
		n += len(d.Events)
	}
	return h, c, network
}

// readAfterDeath reads the given number of different events after the network of the group's member was cut.
func (h *hostileBroker) readAfterDeath(dead *Consumer, want int) []Position {
	h.Helper()
	c := h.reopen(ConsumerOptions{})
	at := h.readDifferent(c, want)
	h.must(c.Close(h.ctx()))
	brief, cancel := context.WithTimeout(h.ctx(), time.Millisecond)
	defer cancel()
	if err := dead.Close(brief); err == nil {
		h.Error("a member without a network has left its group")
	}
	return at
}

// Kafka allows little metadata, so that commits have no spans of ended events. A member begins a life while events of the
// life before are open, and is killed. Its offsets are not taken for those of the new stream.
func TestALifeHasBegunBeforeABareCommit(t *testing.T) {
	h, dying, network := newOpenLife(t)
	dying.member.committing.Lock()
	dying.member.bare = true
	dying.member.committing.Unlock()
	h.again(1000, 60)
	h.readDifferent(dying, 60)
	h.must(dying.member.commit(h.ctx(), true))
	network.now()
	_, errs := h.publish(3000, 3001, ProducerOptions{}) // otherwise a member that leaves out the others would wait for ever
	h.must(errors.Join(errs...))
	first := int64(math.MaxInt64)
	for _, at := range h.readAfterDeath(dying, 1) {
		first = min(first, kafkaOffset(at.Offset))
	}
	if first > 0 {
		t.Errorf("reading goes on at offset %d", first)
	}
}

// Two lives begin while events of the first are open, and the member is killed. The events of the second that have ended
// are not taken for events of the third.
func TestTwoLivesHaveBegunBeforeACommit(t *testing.T) {
	h, dying, network := newOpenLife(t)
	h.again(1000, 60)
	h.readDifferent(dying, 60)
	h.again(2000, 60)
	for all := false; !all; {
		h.must(retry.Sleep(h.ctx(), time.Millisecond))
		all = true
		dying.eachPartition(func(p *inPartition) {
			p.mu.Lock()
			defer p.mu.Unlock()
			all = all && p.life.base == 2<<lifeBits
		})
	}
	h.must(dying.member.commit(h.ctx(), true))
	network.now()
	_, errs := h.publish(3000, 3001, ProducerOptions{})
	h.must(errors.Join(errs...))
	first := int64(math.MaxInt64)
	for _, at := range h.readAfterDeath(dying, 1) {
		first = min(first, at.Offset)
	}
	if first != 2<<lifeBits {
		t.Errorf("reading goes on at offset %d", first)
	}
}

// commitLate commits offsets of group g once it has no members.
func (h *hostileBroker) commitLate(offsets map[string][]kafka.OffsetCommit) {
	h.Helper()
	for refused := true; refused; {
		h.must(retry.Sleep(h.ctx(), 10*time.Millisecond))
		res, err := h.b.client.OffsetCommit(h.ctx(), &kafka.OffsetCommitRequest{GroupID: "tidemill.g", GenerationID: -1, Topics: offsets})
		h.must(err)
		refused = false
		for _, parts := range res.Topics {
			for _, p := range parts {
				refused = refused || p.Error != nil
			}
		}
	}
}

// A stream is created again while a partition of it is prepared, and is then longer than the place of the group.
func TestAStreamIsCreatedAgainWhileItIsPrepared(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		b, _ := virtualFake(t, slog.DiscardHandler, "prod.events", "prod.dead-letters", "prod.group-offsets")
		publishAll(t, b, "events", "1")
		readOnce(t, b, "g")
		c, err := b.Consumer(t.Context(), ConsumerOptions{Group: "g", Streams: []string{"events"}, Start: Earliest(),
			Assigned: func(ctx context.Context, _ []Position) ([]Position, error) {
				if _, err := b.client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{"prod.events"}}); err != nil {
					return nil, err
				}
				_, err := b.EnsureStreams(ctx, []StreamSpec{{Name: "events", Partitions: 1}}, EnsureOptions{})
				publishAll(t, b, "events", "2", "3", "4")
				return nil, errors.Join(err, retry.Sleep(ctx, time.Minute))
			}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(context.Background())
		for got := 0; got < 3; {
			d := pollOne(t, c)
			for i := range d.Events {
				if got++; d.Events[i].ID != strconv.Itoa(got+1) {
					t.Fatalf("%s is read as event %d of the new stream", d.Events[i].ID, got)
				}
			}
			d.Done()
		}
	})
}
