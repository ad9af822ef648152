package brokertest

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// noteStore holds the last committed note of each partition of "in".
type noteStore struct {
	mu sync.Mutex
	of map[int32]string
}

func (n *noteStore) keep(partition int32, note string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.of == nil {
		n.of = map[int32]string{}
	}
	n.of[partition] = note
}

// checkNote is a hook that fails if a position carries another note.
func (n *noteStore) checkNote(w *testWorld) func(context.Context, []broker.Position) ([]broker.Position, error) {
	return func(_ context.Context, all []broker.Position) ([]broker.Position, error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, p := range all {
			if p.Note != n.of[p.Partition] {
				w.Errorf("the note of %s/%d/%d is %q, and %q was committed last", p.Stream, p.Partition, p.Offset, p.Note, n.of[p.Partition])
			}
		}
		return nil, nil
	}
}

// noteOf returns the group's committed offset and note of partition 0 of "in".
func (w *testWorld) noteOf() (offset int64, note string) {
	w.Helper()
	all, err := w.b.Committed(w.testContext(), "g", []broker.Position{{Stream: "in"}})
	w.must(err)
	return all[0].Offset, all[0].Note
}

// A transaction's note becomes visible together with its offsets, or not at all. A note without a
// delivery moves no offset. The next reader gets the committed note, also after an abort.
func notesInTransactions(w *testWorld) {
	w.stream("in", 1)
	asked := make(chan []broker.Position, 10)
	c, t := w.transactorOf(broker.ConsumerOptions{Group: "g", Streams: []string{"in"}, Assigned: reportAssigned(asked), CommitEvery: time.Millisecond})
	if at := <-asked; at[0].Note != "" {
		w.Errorf("nothing was noted, and the reader gets %+v", at)
	}
	w.publish("in", 1, 4)
	d, err := c.Poll(w.testContext())
	w.must(err)
	first, next := d.Events[0].Offset, d.Next()
	note := func(text string, d *broker.Delivery, fail error) error {
		return t.Do(w.testContext(), func(x *broker.Tx) error {
			x.Note("in", 0, text+" overridden")
			x.Note("in", 0, text)
			if d != nil {
				x.Done(d)
			}
			return fail
		})
	}
	w.must(note("alone", nil, nil))
	if at, text := w.noteOf(); at != first || text != "alone" {
		w.Errorf("the group is at %d with %q, want %d with the note alone", at, text, first)
	}
	w.must(note("with a delivery", d, nil))
	if at, text := w.noteOf(); at != next || text != "with a delivery" {
		w.Errorf("the group is at %d with %q, want %d", at, text, next)
	}
	w.wantErr(note("lost", nil, errNo), errNo)
	if at := <-asked; len(at) != 1 || at[0] != (broker.Position{Stream: "in", Offset: next, Note: "with a delivery"}) {
		w.Errorf("aborted, and asked where to go on from %+v", at)
	}
	w.publish("in", 1, 4) // events end one by one, and commits run in the background
	w.pollUntil("the offset moves on", func() bool {
		ctx, cancel := context.WithTimeout(w.testContext(), moment)
		defer cancel()
		if d, err := c.Poll(ctx); err == nil {
			d.Done()
		}
		at, text := w.noteOf()
		if text != "with a delivery" {
			w.Fatalf("the note of offset %d is %q", at, text)
		}
		return at >= 8
	})
	w.must(t.Close(w.testContext()))
	w.close(c)
	w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"in"}, Assigned: reportAssigned(asked)})
	if at := <-asked; at[0].Note != "with a delivery" {
		w.Errorf("the next reader gets %+v", at)
	}
}

// A note outside a transaction is committed soon, even if no offset is. A note of any allowed
// length reaches the next reader.
func notesByAndBy(w *testWorld) {
	w.stream("in", 2)
	w.publish("in", 1, 6)
	long := strings.Repeat("é", broker.MaxNote/2)
	was := ""
	for n, text := range []string{"first", long, "third"} {
		asked := make(chan []broker.Position, 10)
		c := w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"in"}, CommitEvery: time.Millisecond, Assigned: reportAssigned(asked)})
		for _, p := range <-asked {
			if p.Partition == 0 && p.Note != was {
				w.Errorf("reader %d gets %+v, want the note %q", n, p, was)
			}
		}
		was = text
		w.pollUntil("it reads", func() bool { return c.Note("in", 0, text) == nil })
		w.pollUntil("it is committed", func() bool { _, note := w.noteOf(); return note == text })
		if n == 2 {
			w.must(c.Note("in", 0, "last"))
			was = "last"
		}
		w.close(c) // Close commits the rest
		if _, note := w.noteOf(); note != was {
			w.Errorf("closed, and the offset's note is %q, want %q", note, was)
		}
	}
}

// A member that the group has expelled cannot commit a note, even if it has not noticed
// the expulsion.
func notesZombie(w *testWorld) {
	w.stream("in", 1)
	_, t := w.transactorOf(broker.ConsumerOptions{Group: "g", Streams: []string{"in"}, SessionTimeout: waitLimit})
	err, n := errNo, 0
	w.pollUntil("a transaction runs to its end", func() bool {
		err = t.Do(w.testContext(), func(x *broker.Tx) error {
			x.Note("in", 0, "zombie "+strconv.Itoa(n))
			w.removeMembers("g")
			return nil
		})
		n++
		return err == nil || !strings.Contains(err.Error(), "taken away") // not assigned yet
	})
	w.wantErr(err, broker.ErrAborted)
	if _, note := w.noteOf(); note != "" {
		w.Errorf("%q is committed", note)
	}
}

// inParked is the companion stream where parked events of the stream "in" are stored.
var inParked = tidemill.Parked("in")

// newParkedStream makes the stream "in", its parked companion, and a transactor that is the only
// reader of the stream.
func (w *testWorld) newParkedStream(partitions int, o broker.ConsumerOptions) (*broker.Consumer, *broker.Transactor) {
	w.Helper()
	w.stream("in", partitions)
	w.stream(inParked, partitions)
	o.Group, o.Streams = "g", []string{"in"}
	return w.transactorOf(o)
}

// parkedOffset returns the group's committed offset in the parked companion.
func (w *testWorld) parkedOffset(partition int32) int64 {
	w.Helper()
	return w.committed(broker.Position{Stream: inParked, Partition: partition})
}

func (w *testWorld) committed(p broker.Position) int64 {
	w.Helper()
	all, err := w.b.Committed(w.testContext(), "g", []broker.Position{p})
	w.must(err)
	if len(all) != 1 || all[0].Stream != p.Stream || all[0].Partition != p.Partition {
		w.Fatalf("asked for %+v, got %+v", p, all)
	}
	return all[0].Offset
}

// publishTo sends an event to a partition and returns its receipt or error.
func (w *testWorld) publishTo(p *broker.Producer, stream string, partition int32, v *broker.View) (at broker.Receipt, err error) {
	var told sync.WaitGroup
	told.Add(1)
	p.SendTo(w.testContext(), stream, partition, v, func(r broker.Receipt, e error) {
		at, err = r, e
		told.Done()
	})
	told.Wait()
	return at, err
}

// SendTo writes an event to the given partition, whatever its key, also to a partition that has
// just been added. The error for a missing partition gives the number of partitions.
func publishTo(w *testWorld) {
	w.stream("events", 3)
	p := w.producer(broker.ProducerOptions{})
	for i := range int32(3) {
		r, err := w.publishTo(p, "events", i, testEvent("same", int(i)))
		w.must(err)
		if r != (broker.Receipt{Stream: "events", Partition: i}) {
			w.Errorf("sent to partition %d it is at %+v", i, r)
		}
	}
	for _, i := range []int32{3, -1} {
		if _, err := w.publishTo(p, "events", i, testEvent("same", 9)); err == nil || !strings.Contains(err.Error(), "the stream has 3") {
			w.Errorf("sent to partition %d: %v", i, err)
		}
	}
	w.stream("events", 5)
	w.pollUntil("a new partition is there", func() bool {
		_, err := w.publishTo(p, "events", 4, testEvent("same", 4))
		return err == nil
	})
}

// Parked events and the mark that is committed with them become visible together with the
// deliveries, or not at all. The sender gets the positions of its events only after the commit.
func transactMarks(w *testWorld) {
	c, t := w.newParkedStream(2, broker.ConsumerOptions{})
	w.publish("in", 8, 1)
	if at := w.parkedOffset(0); at != -1 {
		w.Errorf("nothing is marked yet, and the group is at %d", at)
	}
	lies := map[int32]int64{}
	move := func(d *broker.Delivery, mark int64, fail error) ([]broker.Receipt, error) {
		var told []broker.Receipt
		err := t.Do(w.testContext(), func(x *broker.Tx) error {
			for i := range d.Events {
				x.SendTo(w.testContext(), inParked, d.Partition, &d.Events[i].View, func(r broker.Receipt) { told = append(told, r) })
			}
			x.Mark(broker.Position{Stream: inParked, Partition: d.Partition, Offset: mark + 1000})
			x.Mark(broker.Position{Stream: inParked, Partition: d.Partition, Offset: mark})
			x.Done(d)
			return fail
		})
		return told, err
	}
	for ended, n := 0, 0; ended < 8; n++ {
		d, err := c.Poll(w.testContext())
		w.must(err)
		before, partition, events, next := w.parkedOffset(d.Partition), d.Partition, len(d.Events), d.Next()
		if n%2 == 0 {
			told, err := move(d, 777, errNo)
			w.wantErr(err, broker.ErrAborted)
			if at := w.parkedOffset(partition); at != before || len(told) > 0 {
				w.Errorf("an aborted transaction has marked %d and reported %v", at, told)
			}
			continue
		}
		told, err := move(d, int64(40+n), nil)
		w.must(err)
		ended += events
		if len(told) != events {
			w.Errorf("%d events were sent, the positions of %d are known", events, len(told))
		}
		for _, r := range told {
			if r.Stream != inParked || r.Partition != partition || r.Offset < lies[partition] {
				w.Errorf("an event is at %+v, the last is before %d", r, lies[partition])
			}
			lies[partition] = r.Offset + 1
		}
		if at, in := w.parkedOffset(partition), w.committed(broker.Position{Stream: "in", Partition: partition}); at != int64(40+n) || in != next {
			w.Errorf("the group is at %d and %d, want %d and %d", at, in, 40+n, next)
		}
	}
	if n := len(w.committedLog(inParked)); n != 8 {
		w.Errorf("%d events are parked, want 8", n)
	}
}

// A transaction that moves no offset still commits its mark. If the transaction fails, the consumer
// reads the mark's partition again, and the open events of this partition are delivered again.
func transactMarkAlone(w *testWorld) {
	asked := make(chan []broker.Position, 10)
	c, t := w.newParkedStream(1, broker.ConsumerOptions{Assigned: reportAssigned(asked)})
	w.publish("in", 1, 4)
	var events []*broker.Incoming
	for len(events) < 2 { // the events may come one at a time
		d, err := c.Poll(w.testContext())
		w.must(err)
		for i := range d.Events {
			events = append(events, &d.Events[i])
		}
	}
	events[1].Done()
	<-asked
	mark := func(p broker.Position, fail error) error {
		return t.Do(w.testContext(), func(x *broker.Tx) error {
			x.SendTo(w.testContext(), inParked, 0, testEvent("note", 0), nil)
			x.Mark(p)
			return fail
		})
	}
	w.must(mark(broker.Position{Stream: inParked, Offset: 1}, nil))
	if at, in := w.parkedOffset(0), w.committed(broker.Position{Stream: "in"}); at != 1 || in != 0 {
		w.Errorf("the group is at %d and %d, want 1 and 0", at, in)
	}
	for _, bad := range []broker.Position{{Stream: "in"}, {Stream: "dead-letters"}, {Stream: inParked, Partition: 5}} {
		if err := mark(bad, nil); !errors.Is(err, broker.ErrAborted) {
			w.Errorf("marking %+v: %v", bad, err)
		}
	}
	w.wantErr(mark(broker.Position{Stream: inParked, Offset: 9}, errNo), broker.ErrAborted)
	if all := <-asked; len(all) != 1 || all[0] != (broker.Position{Stream: "in"}) {
		w.Errorf("asked again where to read %+v", all)
	}
	for _, e := range events {
		e.Done() // no effect; for the second event, Done is called for the second time
	}
	var again []string
	for len(again) < 3 { // all except the event that ended by itself
		d, err := c.Poll(w.testContext())
		w.must(err)
		for i := range d.Events {
			again = append(again, string([]byte(d.Events[i].ID)))
		}
		d.Done()
	}
	if want := key(0) + "/0 " + key(0) + "/2 " + key(0) + "/3"; strings.Join(again, " ") != want {
		w.Errorf("%v come again, want %s", again, want)
	}
}

// A member that the group has expelled cannot commit a mark, even if it has not noticed
// the expulsion.
func transactMarkZombie(w *testWorld) {
	_, t := w.newParkedStream(1, broker.ConsumerOptions{SessionTimeout: waitLimit})
	err := errNo
	w.pollUntil("a transaction runs to its end", func() bool {
		err = t.Do(w.testContext(), func(x *broker.Tx) error {
			x.SendTo(w.testContext(), inParked, 0, testEvent("note", 0), nil)
			x.Mark(broker.Position{Stream: inParked, Offset: 1})
			w.removeMembers("g")
			return nil
		})
		return err == nil || !strings.Contains(err.Error(), "taken away") // not assigned yet
	})
	w.wantErr(err, broker.ErrAborted)
	if at := w.parkedOffset(0); at != -1 {
		w.Errorf("the group is at %d", at)
	}
}

// removeMembers removes a group's members, as Kafka does with members that it considers dead.
func (w *testWorld) removeMembers(group string) {
	w.Helper()
	var res *kafka.DescribeGroupsResponse
	w.pollUntil("the group is described", func() (ok bool) { // the client may not know the coordinator
		var err error
		res, err = w.client.DescribeGroups(w.testContext(), &kafka.DescribeGroupsRequest{GroupIDs: []string{w.names.Group(group)}})
		var refused kafka.Error // other errors are about parsing the members' metadata
		return err == nil && !errors.As(res.Groups[0].Error, &refused)
	})
	for _, m := range res.Groups[0].Members {
		w.pollUntil("a member is put out", func() bool {
			left, err := w.client.LeaveGroup(w.testContext(), &kafka.LeaveGroupRequest{GroupID: w.names.Group(group),
				Members: []kafka.LeaveGroupRequestMember{{ID: m.MemberID}}})
			if err == nil {
				err = left.Error
			}
			return err == nil || errors.Is(err, kafka.UnknownMemberId) // an earlier request was processed, and its response was lost
		})
	}
}
