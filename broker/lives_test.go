package broker

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev"
	"tidemill.dev/broker/internal/wire"
	"tidemill.dev/broker/retry"
)

// newLives returns a consumer of group g that has read 40 events.
func newLives(t *testing.T, o ConsumerOptions) (*hostileBroker, *Consumer) {
	t.Helper()
	h := newHostile(t, 1)
	_, err := h.b.EnsureStreams(h.ctx(), []StreamSpec{{Name: tidemill.StreamGroupOffsets, Partitions: 1}}, EnsureOptions{})
	h.must(err)
	c := h.reopen(o)
	_, errs := h.publish(0, 40, ProducerOptions{})
	h.must(errors.Join(errs...))
	return h, c
}

func (h *hostileBroker) reopen(o ConsumerOptions) *Consumer {
	h.Helper()
	o.Group, o.Streams, o.SessionTimeout, o.Start = "g", []string{"events"}, hostileSession, Earliest()
	c, err := h.b.Consumer(h.ctx(), o)
	h.must(err)
	return c
}

// again deletes the stream and creates it again with n events.
func (h *hostileBroker) again(from, n int) {
	h.Helper()
	_, err := h.b.client.DeleteTopics(h.ctx(), &kafka.DeleteTopicsRequest{Topics: []string{"tidemill.events"}})
	h.must(err)
	_, err = h.b.EnsureStreams(h.ctx(), []StreamSpec{{Name: "events", Partitions: 2}}, EnsureOptions{})
	h.must(err)
	_, errs := h.publish(from, from+n, ProducerOptions{})
	h.must(errors.Join(errs...))
}

// pauseWasLong makes the consumer believe that its partitions were in no request for long.
func (c *Consumer) pauseWasLong() {
	c.eachPartition(func(p *inPartition) {
		p.mu.Lock()
		p.heard = p.heard.Add(-time.Hour)
		p.mu.Unlock()
	})
}

// waitForLife waits until all partitions are in another life than the first.
func (h *hostileBroker) waitForLife(c *Consumer) {
	h.Helper()
	for all := false; !all; {
		h.must(retry.Sleep(h.ctx(), time.Millisecond))
		all = true
		c.eachPartition(func(p *inPartition) {
			p.mu.Lock()
			all = all && p.life.base > 0
			p.mu.Unlock()
		})
	}
}

// readDifferent reads until it has this number of different events, and returns their places.
func (h *hostileBroker) readDifferent(c *Consumer, want int) (at []Position) {
	h.Helper()
	for ids := map[string]bool{}; len(ids) < want; {
		d, err := c.Poll(h.ctx())
		h.must(err)
		for i := range d.Events {
			at = append(at, d.Events[i].Position())
			ids[strings.Clone(d.Events[i].ID)] = true
		}
		d.Done()
	}
	return at
}

// askedForID calls do with the number of each request for topic ids. do may answer it.
func (h *hostileBroker) askedForID(do func(n int, r *kmsg.MetadataRequest) kmsg.Response) {
	n := 0
	h.kafka.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		h.kafka.KeepControl()
		req := r.(*kmsg.MetadataRequest)
		if req.Version < 10 {
			return nil, nil, false
		}
		n++
		answer := do(n, req)
		return answer, nil, answer != nil
	})
}

// A stream is created again while it is read, and again while the group has no member. Kafka has forgotten the group's
// offsets. The two streams have no place in common.
func TestEachLifeHasItsNumber(t *testing.T) {
	h, c := newLives(t, ConsumerOptions{})
	h.readDifferent(c, 40)
	h.again(1000, 10)
	was := map[Position]bool{}
	for _, at := range h.readDifferent(c, 10) {
		was[at] = true
	}
	h.must(c.Close(h.ctx()))
	h.again(2000, 10)
	_, err := h.b.client.OffsetDelete(h.ctx(), &kafka.OffsetDeleteRequest{GroupID: "tidemill.g", Topics: map[string][]int{"tidemill.events": {0, 1}}})
	h.must(err)
	c = h.reopen(ConsumerOptions{})
	for _, at := range h.readDifferent(c, 10) {
		if was[at] {
			t.Errorf("%v is a place in the second and in the third stream", at)
		}
	}
	h.must(c.Close(h.ctx()))
}

// A server does not know yet that a stream was created again, or that it is there again.
func TestAServerKnowsTheOldStream(t *testing.T) {
	for name, old := range map[string]bool{"old id": true, "no stream": false} {
		t.Run(name, func(t *testing.T) {
			h, c := newLives(t, ConsumerOptions{})
			h.readDifferent(c, 40)
			id := h.kafka.TopicInfo("tidemill.events").TopicID
			cluster, err := h.b.Cluster(h.ctx())
			h.must(err)
			h.askedForID(func(n int, r *kmsg.MetadataRequest) kmsg.Response {
				if n > 8 {
					return nil
				}
				answer, one := r.ResponseKind().(*kmsg.MetadataResponse), kmsg.NewMetadataResponseTopic()
				one.Topic, one.TopicID = r.Topics[0].Topic, id
				if !old {
					one.ErrorCode, one.TopicID = 3, [16]byte{}
				}
				answer.ClusterID, answer.Topics = &cluster, append(answer.Topics, one)
				return answer
			})
			h.again(1000, 10)
			for _, at := range h.readDifferent(c, 10) {
				if LifeOf(at.Offset) != 1<<lifeBits {
					t.Errorf("%v is a place of the old stream", at)
				}
			}
			h.must(c.Close(h.ctx()))
		})
	}
}

// The group's offsets were copied to a Kafka that has no ids of topics, although it knows the request. The group goes on.
func TestOffsetsComeToAKafkaWithoutIDs(t *testing.T) {
	h, c := newLives(t, ConsumerOptions{})
	h.readDifferent(c, 40)
	h.must(c.Close(h.ctx()))
	h.askedForID(func(_ int, r *kmsg.MetadataRequest) kmsg.Response {
		answer, one := r.ResponseKind().(*kmsg.MetadataResponse), kmsg.NewMetadataResponseTopic()
		one.Topic = r.Topics[0].Topic
		answer.Topics = append(answer.Topics, one)
		return answer
	})
	_, errs := h.publish(40, 50, ProducerOptions{})
	h.must(errors.Join(errs...))
	c = h.reopen(ConsumerOptions{})
	for _, at := range h.readDifferent(c, 10) {
		if LifeOf(at.Offset) != 0 {
			t.Errorf("%v is in another life", at)
		}
	}
	h.must(c.Close(h.ctx()))
}

// A partition is paused and resumed while the id of its topic is asked for.
func TestAPauseWhileTheStreamIsChecked(t *testing.T) {
	h, c := newLives(t, ConsumerOptions{})
	h.readDifferent(c, 40)
	all := func(do func(string, int32)) {
		for n := range int32(2) {
			do("events", n)
		}
	}
	all(c.Pause)
	h.again(1000, 90)
	h.askedForID(func(n int, _ *kmsg.MetadataRequest) kmsg.Response {
		if n == 1 {
			all(c.Pause)
			all(c.Resume)
		}
		return nil
	})
	c.pauseWasLong()
	all(c.Resume)
	h.readDifferent(c, 90)
	h.must(c.Close(h.ctx()))
}

// A partition is paused and resumed after a life has begun, and before Poll has seen that. The new stream is longer than
// the place in the old one.
func TestAPauseAfterALifeBegan(t *testing.T) {
	h, c := newLives(t, ConsumerOptions{})
	h.readDifferent(c, 40)
	h.again(1000, 90)
	h.waitForLife(c)
	for n := range int32(2) {
		c.Pause("events", n)
		c.Resume("events", n)
	}
	h.readDifferent(c, 90)
	h.must(c.Close(h.ctx()))
}

// The ids of the last lives are kept, also in the metadata of an offset.
func TestIDsOfLivesBefore(t *testing.T) {
	l := life{topic: "a.c"}
	for _, id := range []string{"b.c", "c.c", "d.c", "e.c", "f.c"} {
		l = lifeOf(encodeMetadata(7, "a note", []span{{8, 9}}) + l.next(id).encode())
	}
	for n, want := range []string{"", "b.c", "c.c", "d.c", "e.c", "f.c"} {
		at := l.at(int64(n)<<lifeBits + 7)
		if at.topic != want || at.base != int64(n)<<lifeBits {
			t.Errorf("life %d is %+v, and its id is %q", n, at, want)
		}
	}
	if unnamed := (life{}).next("").next(""); unnamed.encode() != "life1::2" {
		t.Errorf("without ids it is %s", unnamed.encode())
	}
}

// The refresher does not write down an offset of a life before over one that was recorded. An offset without a life,
// which a person has committed, gets the recorded one.
func TestARecordOfALifeBefore(t *testing.T) {
	h := newHostile(t, 1)
	_, err := h.b.EnsureStreams(h.ctx(), []StreamSpec{{Name: tidemill.StreamGroupOffsets, Partitions: 1}}, EnsureOptions{})
	h.must(err)
	g, err := h.b.GroupRefresher(h.ctx(), time.Millisecond)
	h.must(err)
	before, now := life{topic: "old.c"}, life{topic: "new.c", base: 1 << lifeBits, past: "old.c"}
	tp := wire.TopicPartition{Topic: "tidemill.events"}
	h.must(h.b.writeGroupRecords(h.ctx(), g.p, []groupRecord{{Group: "g", Stream: "events", Metadata: now.encode()}, {Group: "g", Stream: "events", Offset: 7, Metadata: before.encode()}}))
	h.must(h.b.readGroupRecords(h.ctx(), &g.known))
	if r := g.known.all["g"][tp]; lifeOf(r.Metadata) != now {
		t.Errorf("the record is %+v", r)
	}
	if all := g.due("tidemill.g", map[wire.TopicPartition]wire.CommittedOffset{tp: {Offset: 9, Metadata: before.encode()}}, true); len(all) > 0 {
		t.Errorf("records of the life before: %+v", all)
	}
	all := g.due("tidemill.g", map[wire.TopicPartition]wire.CommittedOffset{tp: {Offset: 9}}, true)
	if len(all) != 1 || lifeOf(all[0].Metadata) != now || all[0].Offset != 9 {
		t.Errorf("records of an offset without a life: %+v", all)
	}
	h.must(g.Close(h.ctx()))
}

// A person or an earlier version commits an offset without the life. The record still has it.
func TestAnOffsetWithoutItsLife(t *testing.T) {
	h, c := newLives(t, ConsumerOptions{})
	h.readDifferent(c, 40)
	h.again(1000, 40)
	at := h.readDifferent(c, 40)
	if found, err := h.b.EventAt(h.ctx(), at[0], func(*Incoming) {}); err != nil || !found {
		t.Errorf("%v has no event: %v", at[0], err)
	}
	h.must(c.Close(h.ctx()))
	_, err := h.b.client.OffsetCommit(h.ctx(), &kafka.OffsetCommitRequest{GroupID: "tidemill.g", GenerationID: -1,
		Topics: map[string][]kafka.OffsetCommit{"tidemill.events": {{Partition: 0, Offset: 10}, {Partition: 1, Offset: 10}}}})
	h.must(err)
	c = h.reopen(ConsumerOptions{})
	for _, at := range h.readDifferent(c, 20) {
		if LifeOf(at.Offset) != 1<<lifeBits {
			t.Errorf("%v is a place of the old stream", at)
		}
	}
	h.must(c.Close(h.ctx()))
}

// A stream is deleted and created again, twice, while a member reads it or while the group has none. All events of
// the new streams are read once, at offsets that the group has not had before.
func TestAStreamIsCreatedAgain(t *testing.T) {
	for _, again := range []int{10, 90} { // shorter and longer than the stream before
		for _, stops := range []bool{false, true} {
			for _, ids := range []bool{true, false} {
				if ids || !stops && again == 10 { // a Kafka without topic ids shows it only by its end
					t.Run(fmt.Sprintf("events=%d,stops=%t,ids=%t", again, stops, ids), func(t *testing.T) { createAgain(t, again, stops, ids) })
				}
			}
		}
	}
}

func createAgain(t *testing.T, again int, stops, ids bool) {
	h := newHostile(t, 1)
	h.b.dialer.hasTopicIDs.Store(ids)
	_, err := h.b.EnsureStreams(h.ctx(), []StreamSpec{{Name: tidemill.StreamGroupOffsets, Partitions: 1}}, EnsureOptions{})
	h.must(err)
	var c *Consumer
	start := func() {
		t.Helper()
		var err error
		c, err = h.b.Consumer(h.ctx(), ConsumerOptions{Group: "g", Streams: []string{"events"}, SessionTimeout: hostileSession})
		h.must(err)
	}
	start()
	seen, places := map[string]bool{}, map[Position]bool{}
	read := func(want int) {
		t.Helper()
		for n := 0; n < want; {
			d, err := c.Poll(h.ctx())
			h.must(err)
			for i := range d.Events {
				e := &d.Events[i]
				if at := e.Position(); seen[e.ID] || places[at] {
					t.Errorf("event %s at %v comes twice", e.ID, at)
				}
				seen[strings.Clone(e.ID)], places[e.Position()] = true, true
			}
			n += len(d.Events)
			d.Done()
		}
	}
	publish := func(from, n int) {
		t.Helper()
		_, errs := h.publish(from, from+n, ProducerOptions{})
		h.must(errors.Join(errs...))
	}
	publish(0, 40)
	read(40)
	for turn := range 2 {
		if stops {
			h.must(c.Close(h.ctx()))
		}
		for n := range int32(2) {
			c.Pause("events", n)
		}
		h.again(1000*(turn+1), again)
		if stops {
			start()
		}
		c.pauseWasLong()
		for n := range int32(2) {
			c.Resume("events", n)
		}
		read(again)
		publish(1000*(turn+1)+500, 10)
		read(10)
	}
	h.must(c.Close(h.ctx()))
	committed, err := h.b.groupOffsets(h.ctx(), "tidemill.g", nil, true)
	h.must(err)
	sum := int64(0)
	for tp, o := range committed {
		sum += o.Offset
		if l := lifeOf(o.Metadata); l.base != 2<<lifeBits || ids != (l.topic != "") {
			t.Errorf("%v is committed in life %v", tp, l)
		}
	}
	if sum != int64(again+10) {
		t.Errorf("%d offsets are committed in Kafka, want %d", sum, again+10)
	}
}
