package brokertest

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// forget makes Kafka forget a group, as it does a week after the group's last member has left.
func (w *testWorld) forget(group string) {
	w.Helper()
	w.pollUntil("the group is deleted", func() bool {
		name := w.names.Group(group)
		res, err := w.client.DeleteGroups(w.testContext(), &kafka.DeleteGroupsRequest{GroupIDs: []string{name}})
		return err == nil && res.Errors[name] == nil
	})
}

// refreshGroups runs one pass of a new refresher.
func (w *testWorld) refreshGroups() {
	w.Helper()
	k, err := w.b.GroupRefresher(w.testContext(), 0)
	w.must(err)
	defer func() { w.must(k.Close(w.testContext())) }()
	w.must(k.Pass(w.testContext()))
}

// newForgotten makes the streams of a case.
func (w *testWorld) newForgotten() {
	w.streams(broker.StreamSpec{Name: tidemill.StreamGroupOffsets, Partitions: 1}, broker.StreamSpec{Name: "in", Partitions: 1}, broker.StreamSpec{Name: inParked, Partitions: 1})
}

func (w *testWorld) publishNumbers(from, to int) {
	w.Helper()
	p := w.producer(broker.ProducerOptions{})
	for n := from; n < to; n++ {
		_, err := p.Publish(w.testContext(), "in", testEvent("n", n))
		w.must(err)
	}
}

// readNumbers reads events with group g from the newest one on, marks a parked offset, and leaves.
func (w *testWorld) readNumbers(from, to int) {
	w.Helper()
	begun := make(chan []broker.Position, 10)
	c, t := w.transactorOf(broker.ConsumerOptions{Group: "g", Streams: []string{"in"}, Companions: []string{inParked}, Start: broker.Latest(), Assigned: reportAssigned(begun)})
	<-begun
	w.publishNumbers(from, to)
	for from < to {
		d, err := c.Poll(w.testContext())
		w.must(err)
		from += len(d.Events)
		w.must(t.Do(w.testContext(), func(x *broker.Tx) error {
			x.Done(d)
			x.Note("in", 0, "note "+d.Events[0].ID)
			x.Mark(broker.Position{Stream: inParked, Offset: 7})
			return nil
		}))
	}
	w.must(t.Close(w.testContext()))
	w.close(c)
}

// wantDeadLetters fails unless the stream of dead letters has this number of events.
func (w *testWorld) wantDeadLetters(n int64) {
	w.Helper()
	if got := w.endOffset(tidemill.StreamDeadLetters); got != n {
		w.Errorf("there are %d dead letters, want %d", got, n)
	}
}

// A group that Kafka has forgotten continues where its final record says: with its offset, its note
// and its mark, and without a dead letter.
func forgottenFinal(w *testWorld) {
	w.newForgotten()
	w.publishNumbers(0, 3) // the group is new, and begins after these
	w.readNumbers(3, 6)
	w.refreshGroups()
	_, note := w.noteOf()
	w.forget("g")
	w.publishNumbers(6, 9)
	begun := make(chan []broker.Position, 10)
	c := w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"in"}, Companions: []string{inParked}, Start: broker.Latest(), Assigned: reportAssigned(begun)})
	if at := <-begun; note == "" || at[0].Note != note {
		w.Errorf("the reader gets the note %q, want %q", at[0].Note, note)
	}
	w.wantIDs(w.receiveIDs(c, 3), "n", 6, 9)
	if at := w.parkedOffset(0); at != 7 {
		w.Errorf("the mark is at %d, want 7", at)
	}
	w.wantDeadLetters(0)
}

// A group without a final record continues at its last record. A dead letter names the offsets whose
// events may be handled a second time. The stream of records may get more partitions meanwhile.
func forgottenStale(w *testWorld) {
	w.newForgotten()
	w.publishNumbers(0, 3)
	w.readNumbers(3, 6)
	w.refreshGroups()
	w.streams(broker.StreamSpec{Name: tidemill.StreamGroupOffsets, Partitions: 3})
	w.b = w.reopen()
	w.readNumbers(6, 9) // no refresher runs afterwards
	w.forget("g")
	w.publishNumbers(9, 10)
	c := w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"in"}, Companions: []string{inParked}, Start: broker.Latest()})
	w.wantIDs(w.receiveIDs(c, 4), "n", 6, 10)
	l := w.nextDeadLetter(w.letters())
	if l.Group != "g" || l.Stream != "in" || l.Last < l.Offset+3 || l.Record != nil || !strings.Contains(l.Reason, "was forgotten by Kafka") {
		w.Errorf("the letter is %+v", l)
	}
	w.wantDeadLetters(1)
}

// A group without any record that has written to its companion is not new. It reads everything that
// is left, and a dead letter says so.
func forgottenUnrecorded(w *testWorld) {
	w.streams(broker.StreamSpec{Name: "in", Partitions: 1}, broker.StreamSpec{Name: inParked, Partitions: 1})
	w.readNumbers(0, 3)
	_, err := w.publishTo(w.producer(broker.ProducerOptions{}), inParked, 0, testEvent("waits", 0))
	w.must(err)
	w.forget("g")
	c := w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"in"}, Companions: []string{inParked}, Start: broker.Latest()})
	w.wantIDs(w.receiveIDs(c, 3), "n", 0, 3)
	if l := w.nextDeadLetter(w.letters()); l.Offset != 0 || l.Last < 2 || !strings.Contains(l.Reason, "no record") {
		w.Errorf("the letter is %+v", l)
	}
}

// A stream that was made again has other events at the same offsets. A group that Kafka has
// forgotten reads them all.
func forgottenStream(w *testWorld) { testForgottenStream(w, 8) }

// The same if the stream is shorter than it was.
func forgottenShortStream(w *testWorld) { testForgottenStream(w, 2) }

func testForgottenStream(w *testWorld, events int) {
	w.newForgotten()
	w.readNumbers(0, 3)
	w.refreshGroups()
	w.forget("g")
	w.createAgain(events)
	c := w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"in"}, Companions: []string{inParked}, Start: broker.Latest()})
	w.wantNewStream(c, events)
}

// A member notices that its stream was deleted and created again, whether the new one is longer or shorter.
func streamAgainWhileRead(w *testWorld) {
	w.newForgotten()
	c := w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"in"}, Start: broker.Earliest()})
	w.publishNumbers(0, 3)
	w.wantIDs(w.receiveIDs(c, 3), "n", 0, 3)
	w.createAgain(8)
	w.wantNewStream(c, 8)
	w.createAgain(2)
	w.wantIDs(w.receiveIDs(c, 2), "n", 0, 2)
	w.wantDeadLetters(2)
}

// wantNewStream reads a stream that was created again, and its dead letter.
func (w *testWorld) wantNewStream(c *broker.Consumer, events int) {
	w.Helper()
	w.wantIDs(w.receiveIDs(c, events), "n", 0, events)
	if l := w.nextDeadLetter(w.letters()); l.Last != l.Offset || !strings.Contains(l.Reason, "created again") {
		w.Errorf("the letter is %+v", l)
	}
}

// createAgain deletes the stream and creates it again with some events.
func (w *testWorld) createAgain(events int) {
	w.Helper()
	w.pollUntil("the stream is deleted", func() bool {
		res, err := w.client.DeleteTopics(w.testContext(), &kafka.DeleteTopicsRequest{Topics: []string{w.names.Topic("in")}})
		return err == nil && res.Errors[w.names.Topic("in")] == nil
	})
	w.pollUntil("the stream is gone", func() bool {
		_, err := w.b.Ends(w.testContext(), "in")
		return errors.Is(err, broker.ErrNoStream)
	})
	w.stream("in", 1)
	w.pollUntil("the new stream takes events", func() bool {
		var records []kafka.Record
		for n := range events {
			// The events are newer than the record by more than clocks may differ.
			records = append(records, rawRecord(broker.RecordOf(testEvent("n", n)), time.Now().Add(time.Minute)))
		}
		res, err := w.client.Produce(w.testContext(), &kafka.ProduceRequest{Topic: w.names.Topic("in"), RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(records...)})
		return err == nil && res.Error == nil
	})
}

// A publisher whose clock is wrong does not make a stream look as if it was made again.
func forgottenClock(w *testWorld) {
	w.newForgotten()
	w.pollUntil("an event of the future is stored", func() bool {
		record := rawRecord(broker.RecordOf(testEvent("future", 0)), time.Now().Add(time.Hour))
		res, err := w.client.Produce(w.testContext(), &kafka.ProduceRequest{Topic: w.names.Topic("in"), RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(record)})
		return err == nil && res.Error == nil
	})
	w.readNumbers(0, 3)
	w.refreshGroups()
	w.forget("g")
	w.publishNumbers(3, 6)
	c := w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"in"}, Companions: []string{inParked}, Start: broker.Latest()})
	w.wantIDs(w.receiveIDs(c, 3), "n", 3, 6)
	w.wantDeadLetters(0)
}

// rawRecord returns a record with the given time.
func rawRecord(r *broker.DeadRecord, at time.Time) kafka.Record {
	k := kafka.Record{Time: at, Key: kafka.NewBytes(r.Key), Value: kafka.NewBytes(r.Value)}
	for _, h := range r.Headers {
		k.Headers = append(k.Headers, kafka.Header{Key: h.Key, Value: h.Value})
	}
	return k
}

// A refresher that passes while members join and leave takes no event away and gives none twice.
func refresherBesideMembers(w *testWorld) {
	w.newForgotten()
	passes, stop := context.WithCancel(w.testContext())
	ended := make(chan error, 1)
	k, err := w.b.GroupRefresher(w.testContext(), time.Nanosecond) // it joins in each pass
	w.must(err)
	go func() {
		var err error
		for passes.Err() == nil && err == nil {
			err = k.Pass(passes)
		}
		ended <- err
	}()
	for n := range 4 {
		w.readNumbers(3*n, 3*n+3)
	}
	stop()
	if err := <-ended; err != nil && context.Cause(passes) == nil {
		w.Error(err)
	}
	w.must(k.Close(w.testContext()))
	w.wantDeadLetters(0)
}
