package brokertest

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/segmentio/kafka-go"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// letter reads the next dead letter.
func (w *world) letter(c *broker.Consumer) broker.DeadLetter {
	w.Helper()
	d, err := c.Poll(w.ctx())
	w.must(err)
	defer d.Done()
	if len(d.Events) != 1 || d.Events[0].Type != tidemill.TypeEventDeadLettered {
		w.Fatalf("want one dead letter, have %d, the first a %q", len(d.Events), d.Events[0].Type)
	}
	var l broker.DeadLetter
	w.must(json.Unmarshal(d.Events[0].Data, &l))
	return l
}

func (w *world) letters() *broker.Consumer {
	w.Helper()
	return w.consumer(broker.ConsumerOptions{Streams: []string{tidemill.StreamDeadLetters}})
}

func letterUndecodable(w *world) {
	w.stream("events", 1)
	w.publish("events", 1, 3)
	w.raw("events", 0, []byte("no event \x00\xff"), kafka.Header{Key: "who", Value: []byte("a stranger")})
	p := w.producer(broker.ProducerOptions{})
	_, err := p.Publish(w.ctx(), "events", event(key(0), 3))
	w.must(err)
	w.raw("events", 0, noise(1_000_000))
	c := w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"events"}})
	w.wantIDs(w.ids(c, 4), key(0), 0, 4)
	dead := w.letters()
	poll := w.pollAside(c)
	l := w.letter(dead)
	if l.Stream != "events" || l.Offset != 3 || l.Last != 3 || l.Group != "g" || l.Record == nil ||
		string(l.Record.Value) != "no event \x00\xff" || len(l.Record.Headers) != 1 || string(l.Record.Headers[0].Value) != "a stranger" {
		w.Errorf("the letter is %+v", l)
	}
	if l := w.letter(dead); l.Offset != 5 || l.Record == nil {
		w.Errorf("the large record's letter is of offset %d, its record %v", l.Offset, l.Record != nil)
	}
	w.soon("the partition moves on", func() bool { return w.lag("events", "g").Lag == 0 })
	w.close(c)
	<-poll

	// Without a group there is nobody to write letters for: it is told.
	c = w.consumer(broker.ConsumerOptions{Streams: []string{"events"}, Start: broker.AtOffset(3)})
	d, err := c.Poll(w.ctx())
	w.must(err)
	if e := &d.Events[0]; e.Err == nil || string(e.Data) != "no event \x00\xff" || e.Offset != 3 {
		w.Errorf("read without a group, it is %+v", e)
	}
	d.Done()
}

// A letter that cannot carry its record says where it is, and reading goes on.
func letterTooLarge(w *world) {
	w.streams(broker.StreamSpec{Name: tidemill.StreamDeadLetters, Partitions: 1, MaxMessageBytes: 10_000})
	w.stream("events", 1)
	w.raw("events", 0, noise(50_000))
	w.publish("events", 1, 1)
	c := w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"events"}})
	w.wantIDs(w.ids(c, 1), key(0), 0, 1)
	if l := w.letter(w.letters()); l.Offset != 0 || l.Record != nil || !strings.Contains(l.Reason, "too large") {
		w.Errorf("the letter is of offset %d, reason %q, with a record: %v", l.Offset, l.Reason, l.Record != nil)
	}
	w.close(c)
	if lag := w.lag("events", "g").Lag; lag != 0 {
		w.Errorf("the lag is %d", lag)
	}
}

// pollAside polls where no more events are expected: letters, too, go out when
// somebody polls.
func (w *world) pollAside(c *broker.Consumer) <-chan struct{} {
	gone := make(chan struct{})
	w.Cleanup(func() { <-gone })
	go func() {
		defer close(gone)
		d, err := c.Poll(w.Context())
		switch {
		case err == nil:
			w.Errorf("an event too many: %s", d.Events[0].ID)
		case !errors.Is(err, broker.ErrClosed) && !errors.Is(err, context.Canceled):
			w.Errorf("poll: %v", err)
		}
	}()
	return gone
}

func letterGap(w *world) {
	w.stream("events", 1)
	w.publish("events", 1, 10)
	c := w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"events"}})
	d, err := c.Poll(w.ctx())
	w.must(err)
	d.Events[0].Done()
	d.Events[1].Done()
	w.soon("two are committed", func() bool { return w.lag("events", "g").Lag == 8 })
	w.kill(c)
	w.trim("events", 0, 6)
	c = w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"events"}})
	w.wantIDs(w.ids(c, 4), key(0), 6, 10)
	l := w.letter(w.letters())
	if l.Offset != 2 || l.Last != 5 || l.Record != nil || !strings.Contains(l.Reason, "2 to 5") {
		w.Errorf("the letter is %+v", l)
	}
	w.close(c)
	if lag := w.lag("events", "g").Lag; lag != 0 {
		w.Errorf("the lag is %d", lag)
	}
}

// kill closes a consumer without waiting for its events.
func (w *world) kill(c *broker.Consumer) {
	ctx, cancel := closing()
	cancel()
	_ = c.Close(ctx)
}

// A group that stands beyond the log's end reads on at the end, loses none of
// what comes there, and a letter says what happened.
func letterBeyond(w *world) {
	w.stream("events", 1)
	w.publish("events", 1, 5)
	w.soon("the group has a coordinator and an offset", func() bool {
		res, err := w.client.OffsetCommit(w.ctx(), &kafka.OffsetCommitRequest{GroupID: w.names.Group("g"), GenerationID: -1,
			Topics: map[string][]kafka.OffsetCommit{w.names.Topic("events"): {{Partition: 0, Offset: 9}}}})
		return err == nil && res.Topics[w.names.Topic("events")][0].Error == nil
	})
	c := w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"events"}})
	poll := make(chan *broker.Delivery)
	go func() {
		d, err := c.Poll(w.Context())
		if err != nil {
			w.Error(err)
		}
		poll <- d
	}()
	l := w.letter(w.letters())
	if l.Offset != 5 || l.Last != 8 || l.Record != nil {
		w.Errorf("the letter is %+v", l)
	}
	// Until the group has gone back, a member that joins anew begins at 9 again.
	w.soon("the group has gone back", func() bool { return w.committedAt("g", "events") == 5 })
	p := w.producer(broker.ProducerOptions{})
	_, err := p.Publish(w.ctx(), "events", event("after", 0))
	w.must(err)
	d := <-poll
	if d.Events[0].Offset != 5 {
		w.Errorf("the next event is at %d, want 5", d.Events[0].Offset)
	}
	w.kill(c) // the event is open, so it must not be committed
	c = w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"events"}})
	w.wantIDs(w.ids(c, 1), "after", 0, 1)
	w.close(c)
}

// committedAt is where a group is in the first partition of a stream; -1 is
// nowhere.
func (w *world) committedAt(group, stream string) int64 {
	w.Helper()
	topic := w.names.Topic(stream)
	res, err := w.client.OffsetFetch(w.ctx(), &kafka.OffsetFetchRequest{GroupID: w.names.Group(group), Topics: map[string][]int{topic: {0}}})
	if err == nil && len(res.Topics[topic]) == 1 {
		return res.Topics[topic][0].CommittedOffset
	}
	return -1 // or the coordinator moves
}
