package brokertest

import (
	"errors"
	"strings"
	"sync"

	"github.com/segmentio/kafka-go"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// inParked is where events of the stream "in" wait.
var inParked = tidemill.Parked("in")

// parking is a stream, its parked companion, and a transactor that reads the
// stream alone.
func (w *world) parking(partitions int, o broker.ConsumerOptions) (*broker.Consumer, *broker.Transactor) {
	w.Helper()
	w.stream("in", partitions)
	w.stream(inParked, partitions)
	o.Group, o.Streams = "g", []string{"in"}
	return w.transactorOf(o)
}

// marked is where the group stands in the parked companion.
func (w *world) marked(partition int32) int64 {
	w.Helper()
	return w.committed(broker.Position{Stream: inParked, Partition: partition})
}

func (w *world) committed(p broker.Position) int64 {
	w.Helper()
	all, err := w.b.Committed(w.ctx(), "g", []broker.Position{p})
	w.must(err)
	if len(all) != 1 || all[0].Stream != p.Stream || all[0].Partition != p.Partition {
		w.Fatalf("asked for %+v, told of %+v", p, all)
	}
	return all[0].Offset
}

// publishTo sends an event to a partition and returns what became of it.
func (w *world) publishTo(p *broker.Producer, stream string, partition int32, v *broker.View) (at broker.Receipt, err error) {
	var told sync.WaitGroup
	told.Add(1)
	p.SendTo(w.ctx(), stream, partition, v, func(r broker.Receipt, e error) {
		at, err = r, e
		told.Done()
	})
	told.Wait()
	return at, err
}

// An event goes where it is sent, whatever its key says, also to a partition that
// has just been added; one that is not there is an error that says how many are.
func publishTo(w *world) {
	w.stream("events", 3)
	p := w.producer(broker.ProducerOptions{})
	for i := range int32(3) {
		r, err := w.publishTo(p, "events", i, event("same", int(i)))
		w.must(err)
		if r != (broker.Receipt{Stream: "events", Partition: i}) {
			w.Errorf("sent to partition %d it lies at %+v", i, r)
		}
	}
	for _, i := range []int32{3, -1} {
		if _, err := w.publishTo(p, "events", i, event("same", 9)); err == nil || !strings.Contains(err.Error(), "the stream has 3") {
			w.Errorf("sent to partition %d: %v", i, err)
		}
	}
	w.stream("events", 5)
	w.soon("a new partition is there", func() bool {
		_, err := w.publishTo(p, "events", 4, event("same", 4))
		return err == nil
	})
}

// What is sent to a place and the place that is remembered beside it become
// visible with the deliveries, or not at all; and who sent it is told where it
// lies only then.
func transactMarks(w *world) {
	c, t := w.parking(2, broker.ConsumerOptions{})
	w.publish("in", 8, 1)
	if at := w.marked(0); at != -1 {
		w.Errorf("nothing is marked yet, and the group stands at %d", at)
	}
	lies := map[int32]int64{}
	move := func(d *broker.Delivery, mark int64, fail error) ([]broker.Receipt, error) {
		var told []broker.Receipt
		err := t.Do(w.ctx(), func(x *broker.Tx) error {
			for i := range d.Events {
				x.SendTo(w.ctx(), inParked, d.Partition, &d.Events[i].View, func(r broker.Receipt) { told = append(told, r) })
			}
			x.Mark(broker.Position{Stream: inParked, Partition: d.Partition, Offset: mark + 1000})
			x.Mark(broker.Position{Stream: inParked, Partition: d.Partition, Offset: mark})
			x.Done(d)
			return fail
		})
		return told, err
	}
	for ended, n := 0, 0; ended < 8; n++ {
		d, err := c.Poll(w.ctx())
		w.must(err)
		before, partition, events, next := w.marked(d.Partition), d.Partition, len(d.Events), d.Next()
		if n%2 == 0 {
			told, err := move(d, 777, errNo)
			w.wantErr(err, broker.ErrAborted)
			if at := w.marked(partition); at != before || len(told) > 0 {
				w.Errorf("an aborted transaction has marked %d and told %v", at, told)
			}
			continue
		}
		told, err := move(d, int64(40+n), nil)
		w.must(err)
		ended += events
		if len(told) != events {
			w.Errorf("%d events were sent, of %d it is known where they lie", events, len(told))
		}
		for _, r := range told {
			if r.Stream != inParked || r.Partition != partition || r.Offset < lies[partition] {
				w.Errorf("an event lies at %+v, the last lies before %d", r, lies[partition])
			}
			lies[partition] = r.Offset + 1
		}
		if at, in := w.marked(partition), w.committed(broker.Position{Stream: "in", Partition: partition}); at != int64(40+n) || in != next {
			w.Errorf("the group stands at %d and %d, want %d and %d", at, in, 40+n, next)
		}
	}
	if n := len(w.log(inParked)); n != 8 {
		w.Errorf("%d events are parked, want 8", n)
	}
}

// A transaction that moves no offset still carries its mark; where it fails the
// mark's home is taken back, and what is open of it comes again.
func transactMarkAlone(w *world) {
	asked := make(chan []broker.Position, 10)
	c, t := w.parking(1, broker.ConsumerOptions{Assigned: tellAssigned(asked)})
	w.publish("in", 1, 4)
	var events []*broker.Incoming
	for len(events) < 2 { // they may come one at a time
		d, err := c.Poll(w.ctx())
		w.must(err)
		for i := range d.Events {
			events = append(events, &d.Events[i])
		}
	}
	events[1].Done()
	<-asked
	mark := func(p broker.Position, fail error) error {
		return t.Do(w.ctx(), func(x *broker.Tx) error {
			x.SendTo(w.ctx(), inParked, 0, event("note", 0), nil)
			x.Mark(p)
			return fail
		})
	}
	w.must(mark(broker.Position{Stream: inParked, Offset: 1}, nil))
	if at, in := w.marked(0), w.committed(broker.Position{Stream: "in"}); at != 1 || in != 0 {
		w.Errorf("the group stands at %d and %d, want 1 and 0", at, in)
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
		e.Done() // in vain, and the second for the second time
	}
	var again []string
	for len(again) < 3 { // all but what ended by itself
		d, err := c.Poll(w.ctx())
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

// A member that the group has put out cannot commit a mark, though it has noticed
// nothing.
func transactMarkZombie(w *world) {
	_, t := w.parking(1, broker.ConsumerOptions{SessionTimeout: patience})
	err := errNo
	w.soon("a transaction runs to its end", func() bool {
		err = t.Do(w.ctx(), func(x *broker.Tx) error {
			x.SendTo(w.ctx(), inParked, 0, event("note", 0), nil)
			x.Mark(broker.Position{Stream: inParked, Offset: 1})
			w.expel("g")
			return nil
		})
		return err == nil || !strings.Contains(err.Error(), "taken away") // not assigned yet
	})
	w.wantErr(err, broker.ErrAborted)
	if at := w.marked(0); at != -1 {
		w.Errorf("the group stands at %d", at)
	}
}

// expel puts a group's members out, as the group does with those it takes for
// dead.
func (w *world) expel(group string) {
	w.Helper()
	var res *kafka.DescribeGroupsResponse
	w.soon("the group is described", func() (ok bool) { // the client may not know where it is
		var err error
		res, err = w.client.DescribeGroups(w.ctx(), &kafka.DescribeGroupsRequest{GroupIDs: []string{w.names.Group(group)}})
		var refused kafka.Error // others are about what members say of themselves
		return err == nil && !errors.As(res.Groups[0].Error, &refused)
	})
	for _, m := range res.Groups[0].Members {
		w.soon("a member is put out", func() bool {
			left, err := w.client.LeaveGroup(w.ctx(), &kafka.LeaveGroupRequest{GroupID: w.names.Group(group),
				Members: []kafka.LeaveGroupRequestMember{{ID: m.MemberID}}})
			if err == nil {
				err = left.Error
			}
			return err == nil || errors.Is(err, kafka.UnknownMemberId) // it was heard, and its answer was not
		})
	}
}
