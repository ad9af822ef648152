package brokertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/segmentio/kafka-go"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// nextDeadLetter reads the next dead letter.
func (w *testWorld) nextDeadLetter(c *broker.Consumer) broker.DeadLetter {
	w.Helper()
	d, err := c.Poll(w.testContext())
	w.must(err)
	defer d.Done()
	if len(d.Events) != 1 || d.Events[0].Type != tidemill.TypeEventDeadLettered {
		w.Fatalf("want one dead letter, have %d, the first a %q", len(d.Events), d.Events[0].Type)
	}
	var l broker.DeadLetter
	w.must(json.Unmarshal(d.Events[0].Data, &l))
	return l
}

func (w *testWorld) letters() *broker.Consumer {
	w.Helper()
	return w.consumer(broker.ConsumerOptions{Streams: []string{tidemill.StreamDeadLetters}})
}

func letterUndecodable(w *testWorld) {
	w.stream("events", 1)
	w.publish("events", 1, 3)
	w.writeRaw("events", 0, []byte("no event \x00\xff"), kafka.Header{Key: "who", Value: []byte("a stranger")})
	p := w.producer(broker.ProducerOptions{})
	_, err := p.Publish(w.testContext(), "events", testEvent(key(0), 3))
	w.must(err)
	w.writeRaw("events", 0, randomBytes(1_000_000))
	c := w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"events"}})
	w.wantIDs(w.receiveIDs(c, 4), key(0), 0, 4)
	dead := w.letters()
	poll := w.pollAside(c)
	l := w.nextDeadLetter(dead)
	if l.Stream != "events" || l.Offset != 3 || l.Last != 3 || l.Group != "g" || l.Record == nil ||
		string(l.Record.Value) != "no event \x00\xff" || len(l.Record.Headers) != 1 || string(l.Record.Headers[0].Value) != "a stranger" {
		w.Errorf("the letter is %+v", l)
	}
	if l := w.nextDeadLetter(dead); l.Offset != 5 || l.Record == nil {
		w.Errorf("the large record's letter is of offset %d, its record %v", l.Offset, l.Record != nil)
	}
	w.pollUntil("the partition moves on", func() bool { return w.groupLag("events", "g").Lag == 0 })
	w.close(c)
	<-poll

	// Without a group no dead letter is written: the consumer returns the error with the event.
	c = w.consumer(broker.ConsumerOptions{Streams: []string{"events"}, Start: broker.AtOffset(3)})
	d, err := c.Poll(w.testContext())
	w.must(err)
	if e := &d.Events[0]; e.Err == nil || string(e.Data) != "no event \x00\xff" || e.Offset != 3 {
		w.Errorf("read without a group, it is %+v", e)
	}
	d.Done()
}

// If a record is too large for its dead letter, the dead letter has only the record's position, and
// reading continues.
func letterTooLarge(w *testWorld) {
	w.streams(broker.StreamSpec{Name: tidemill.StreamDeadLetters, Partitions: 1, MaxMessageBytes: 10_000})
	w.stream("events", 1)
	w.writeRaw("events", 0, randomBytes(50_000))
	w.publish("events", 1, 1)
	c := w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"events"}})
	w.wantIDs(w.receiveIDs(c, 1), key(0), 0, 1)
	if l := w.nextDeadLetter(w.letters()); l.Offset != 0 || l.Record != nil || !strings.Contains(l.Reason, "too large") {
		w.Errorf("the letter is of offset %d, reason %q, with a record: %v", l.Offset, l.Reason, l.Record != nil)
	}
	w.close(c)
	if lag := w.groupLag("events", "g").Lag; lag != 0 {
		w.Errorf("the lag is %d", lag)
	}
}

// pollAside polls in the background when no further event is expected, because dead letters are
// written during a poll.
func (w *testWorld) pollAside(c *broker.Consumer) <-chan struct{} {
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

func letterGap(w *testWorld) {
	w.stream("events", 1)
	w.publish("events", 1, 10)
	c := w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"events"}})
	d, err := c.Poll(w.testContext())
	w.must(err)
	d.Events[0].Done()
	d.Events[1].Done()
	w.pollUntil("two are committed", func() bool { return w.groupLag("events", "g").Lag == 8 })
	w.killConsumer(c)
	w.deleteBelow("events", 0, 6)
	c = w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"events"}})
	w.wantIDs(w.receiveIDs(c, 4), key(0), 6, 10)
	l := w.nextDeadLetter(w.letters())
	if l.Offset != 2 || l.Last != 5 || l.Record != nil || !strings.Contains(l.Reason, "2 to 5") {
		w.Errorf("the letter is %+v", l)
	}
	w.close(c)
	if lag := w.groupLag("events", "g").Lag; lag != 0 {
		w.Errorf("the lag is %d", lag)
	}
}

// killConsumer closes a consumer without waiting for its events.
func (w *testWorld) killConsumer(c *broker.Consumer) {
	ctx, cancel := cleanupContext()
	cancel()
	_ = c.Close(ctx)
}

// A group whose offset is beyond the log's end continues at the end and misses no later
// event; a dead letter reports this.
func letterBeyond(w *testWorld) {
	w.stream("events", 1)
	w.publish("events", 1, 5)
	w.pollUntil("the group has a coordinator and an offset", func() bool {
		res, err := w.client.OffsetCommit(w.testContext(), &kafka.OffsetCommitRequest{GroupID: w.names.Group("g"), GenerationID: -1,
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
	l := w.nextDeadLetter(w.letters())
	if l.Offset != 5 || l.Last != 8 || l.Record != nil {
		w.Errorf("the letter is %+v", l)
	}
	// Until the group's offset has been reset, a new member would begin at 9 again.
	w.pollUntil("the group has gone back", func() bool { return w.committedAt("g", "events") == 5 })
	p := w.producer(broker.ProducerOptions{})
	_, err := p.Publish(w.testContext(), "events", testEvent("after", 0))
	w.must(err)
	d := <-poll
	if d.Events[0].Offset != 5 {
		w.Errorf("the next event is at %d, want 5", d.Events[0].Offset)
	}
	w.killConsumer(c) // the event is open, so it must not be committed
	c = w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"events"}})
	w.wantIDs(w.receiveIDs(c, 1), "after", 0, 1)
	w.close(c)
}

// committedAt returns a group's committed offset in the first partition of a stream, or -1 if no
// offset is committed.
func (w *testWorld) committedAt(group, stream string) int64 {
	w.Helper()
	topic := w.names.Topic(stream)
	res, err := w.client.OffsetFetch(w.testContext(), &kafka.OffsetFetchRequest{GroupID: w.names.Group(group), Topics: map[string][]int{topic: {0}}})
	if err == nil && len(res.Topics[topic]) == 1 {
		return res.Topics[topic][0].CommittedOffset
	}
	return -1 // -1 also while the coordinator is moving
}

// streamEntry is one event as stored on a stream.
type streamEntry struct {
	partition int32
	offset    int64
	id, typ   string
	size      int
	data      string
}

const sealType = "suite.seal"

// writeRaw writes a record to a partition without our producer.
func (w *testWorld) writeRaw(stream string, partition int, value []byte, headers ...kafka.Header) int64 {
	w.Helper()
	var res *kafka.ProduceResponse
	w.pollUntil("the client knows the topic", func() (ok bool) { // the client refreshes its metadata rarely
		var err error
		res, err = w.client.Produce(w.testContext(), &kafka.ProduceRequest{Topic: w.names.Topic(stream), Partition: partition,
			RequiredAcks: kafka.RequireAll,
			Records:      kafka.NewRecordReader(kafka.Record{Value: kafka.NewBytes(value), Headers: headers})})
		return err == nil
	})
	w.must(res.Error)
	return res.BaseOffset
}

// writeEndMark writes an event that marks the end of reading in a partition.
func (w *testWorld) writeEndMark(stream string, partition int) {
	w.Helper()
	h := func(k, v string) kafka.Header { return kafka.Header{Key: k, Value: []byte(v)} }
	w.writeRaw(stream, partition, nil, h("ce_specversion", "1.0"), h("ce_id", fmt.Sprint("seal-", partition)),
		h("ce_source", "/suite"), h("ce_type", sealType))
}

// committedLog returns all events of a stream that readers of committed events see, in the order
// of its partitions.
func (w *testWorld) committedLog(stream string) []streamEntry {
	w.Helper()
	open := map[int32]bool{}
	for _, p := range w.streamInfo(stream).Partitions {
		w.writeEndMark(stream, p.Partition)
		open[int32(p.Partition)] = true
	}
	c := w.consumer(broker.ConsumerOptions{Streams: []string{stream}})
	var all []streamEntry
	for len(open) > 0 {
		d, err := c.Poll(w.testContext())
		w.must(err)
		for i := range d.Events {
			e := &d.Events[i]
			switch {
			case !open[d.Partition]:
			case e.Type == sealType:
				delete(open, d.Partition)
			default:
				all = append(all, streamEntry{d.Partition, e.Offset, string([]byte(e.ID)), string([]byte(e.Type)), len(e.Data), string(e.Data)})
			}
		}
		d.Done()
	}
	w.close(c)
	return all
}

// wantOnLog checks that a stream holds each acknowledged event once, at the acknowledged offset and
// in the order of its key. It may also hold events whose publishing failed with an unknown outcome.
func (w *testWorld) wantOnLog(stream string, s *sentEvents) {
	w.Helper()
	last, seen := map[string]int{}, map[string]bool{}
	for _, e := range w.committedLog(stream) {
		r, ok := s.all[e.id]
		if !ok {
			if err := s.errs[e.id]; !errors.Is(err, broker.ErrInDoubt) {
				w.Errorf("%s is on the stream, and its publisher got: %v", e.id, err)
			}
			continue
		}
		if seen[e.id] {
			w.Errorf("%s is on the stream twice", e.id)
		}
		seen[e.id] = true
		if r.Partition != e.partition || r.Offset != e.offset && r.Offset != -1 {
			w.Errorf("%s is at %d/%d, its receipt says %d/%d", e.id, e.partition, e.offset, r.Partition, r.Offset)
		}
		k, n := keyAndNumber(e.id)
		if before, ok := last[k]; ok && before > n {
			w.Errorf("%s comes after number %d of its key", e.id, before)
		}
		last[k] = n
	}
	for id := range s.all {
		if !seen[id] {
			w.Errorf("%s was acknowledged and is not on the stream", id)
		}
	}
}

var errNo = errors.New("no")

// newTransactor makes a transactor of a new group that reads a stream.
func (w *testWorld) newTransactor(group, stream string) (*broker.Consumer, *broker.Transactor) {
	w.Helper()
	return w.transactorOf(broker.ConsumerOptions{Group: group, Streams: []string{stream}})
}

func (w *testWorld) transactorOf(o broker.ConsumerOptions) (*broker.Consumer, *broker.Transactor) {
	w.Helper()
	c := w.consumer(o)
	t, err := c.Transactor(broker.ProducerOptions{})
	w.must(err)
	w.Cleanup(func() {
		ctx, cancel := cleanupContext()
		defer cancel()
		if err := t.Close(ctx); err != nil {
			w.Errorf("close the transactor: %v", err)
		}
	})
	return c, t
}

// endOffset returns the number of offsets of a stream, uncommitted records and markers included.
func (w *testWorld) endOffset(stream string) (n int64) {
	w.Helper()
	for _, p := range w.streamInfo(stream).Partitions {
		n += p.End - p.Start
	}
	return n
}

// sendInTransaction sends events in a transaction, waits until they are on the log, calls the
// function during, ends the transaction with the result end, and waits for the transaction's
// marker. Kafka reports the end of a transaction before all its markers are written.
func (w *testWorld) sendInTransaction(t *broker.Transactor, stream, key string, n int, during func(), end error) error {
	w.Helper()
	var after int64
	err := t.Do(w.testContext(), func(x *broker.Tx) error {
		before := w.endOffset(stream)
		for i := range n {
			x.Send(w.testContext(), stream, testEvent(key, i))
		}
		w.pollUntil("the events are on the log", func() bool { return w.endOffset(stream) == before+int64(n) })
		during()
		after = w.endOffset(stream)
		return end
	})
	if end == nil && err != nil {
		return err // the content of the log is unknown
	}
	w.pollUntil("the marker is on the log", func() bool { return w.endOffset(stream) == after+1 })
	return err
}

func committedAborted(w *testWorld) {
	w.stream("in", 1)
	w.stream("out", 1)
	_, t := w.newTransactor("g", "in")
	nothing := func() {}
	w.wantErr(w.sendInTransaction(t, "out", "aborted", 5, nothing, errNo), broker.ErrAborted)
	w.must(w.sendInTransaction(t, "out", "kept", 3, nothing, nil))
	w.wantErr(w.sendInTransaction(t, "out", "aborted", 2, nothing, errNo), errNo)
	w.wantErr(w.sendInTransaction(t, "out", "aborted", 4, nothing, errNo), errNo)
	w.publish("out", 1, 2)
	c := w.consumer(broker.ConsumerOptions{Streams: []string{"out"}})
	got := w.receiveIDs(c, 5)
	w.wantIDs(got[:3], "kept", 0, 3)
	w.wantIDs(got[3:], key(0), 0, 2)
}

func committedOpen(w *testWorld) {
	w.stream("in", 1)
	w.stream("out", 1)
	_, t := w.newTransactor("g", "in")
	c := w.consumer(broker.ConsumerOptions{Streams: []string{"out"}})
	w.must(w.sendInTransaction(t, "out", "in-tx", 2, func() {
		w.publish("out", 1, 2) // after the open transaction
		ctx, cancel := context.WithTimeout(w.testContext(), moment)
		defer cancel()
		if d, err := c.Poll(ctx); err == nil {
			w.Errorf("the transaction is open, and %s has come", d.Events[0].ID)
		}
		end := w.consumer(broker.ConsumerOptions{Streams: []string{"out"}, Start: broker.Latest()})
		w.close(end)
	}, nil))
	got := w.receiveIDs(c, 4)
	w.wantIDs(got[:2], "in-tx", 0, 2)
	w.wantIDs(got[2:], key(0), 0, 2)
}

// The markers of transactions at a partition's end count as read.
func committedLag(w *testWorld) {
	w.stream("in", 1)
	w.stream("out", 1)
	_, t := w.newTransactor("g", "in")
	w.must(w.sendInTransaction(t, "out", "kept", 2, func() {}, nil))
	w.wantErr(w.sendInTransaction(t, "out", "aborted", 2, func() {}, errNo), errNo)
	c := w.consumer(broker.ConsumerOptions{Group: "reader", Streams: []string{"out"}})
	w.wantIDs(w.receiveIDs(c, 2), "kept", 0, 2)
	poll := w.pollAside(c)
	w.pollUntil("nothing lags", func() bool { return w.groupLag("out", "reader").Lag == 0 })
	w.close(c)
	<-poll
}
