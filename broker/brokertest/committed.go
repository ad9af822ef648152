package brokertest

import (
	"context"
	"errors"

	"tidemill.dev/broker"
)

var errNo = errors.New("no")

// transactor is a transactor of a group of its own that reads a stream.
func (w *world) transactor(group, stream string) (*broker.Consumer, *broker.Transactor) {
	w.Helper()
	return w.transactorOf(broker.ConsumerOptions{Group: group, Streams: []string{stream}})
}

func (w *world) transactorOf(o broker.ConsumerOptions) (*broker.Consumer, *broker.Transactor) {
	w.Helper()
	c := w.consumer(o)
	t, err := c.Transactor(broker.ProducerOptions{})
	w.must(err)
	w.Cleanup(func() {
		ctx, cancel := closing()
		defer cancel()
		if err := t.Close(ctx); err != nil {
			w.Errorf("close the transactor: %v", err)
		}
	})
	return c, t
}

// end is how far a partition's log goes, whether it is committed or not.
func (w *world) end(stream string) int64 {
	w.Helper()
	return w.info(stream).Records
}

// within sends events in a transaction, waits until they are on the log, does
// something, ends the transaction with err, and waits for its marker: Kafka says
// that a transaction is over before it has written that down everywhere.
func (w *world) within(t *broker.Transactor, stream, key string, n int, during func(), end error) error {
	w.Helper()
	var after int64
	err := t.Do(w.ctx(), func(x *broker.Tx) error {
		before := w.end(stream)
		for i := range n {
			x.Send(w.ctx(), stream, event(key, i))
		}
		w.soon("the events are on the log", func() bool { return w.end(stream) == before+int64(n) })
		during()
		after = w.end(stream)
		return end
	})
	if end == nil && err != nil {
		return err // and nobody knows what is on the log
	}
	w.soon("the marker is on the log", func() bool { return w.end(stream) == after+1 })
	return err
}

func committedAborted(w *world) {
	w.stream("in", 1)
	w.stream("out", 1)
	_, t := w.transactor("g", "in")
	nothing := func() {}
	w.wantErr(w.within(t, "out", "aborted", 5, nothing, errNo), broker.ErrAborted)
	w.must(w.within(t, "out", "kept", 3, nothing, nil))
	w.wantErr(w.within(t, "out", "aborted", 2, nothing, errNo), errNo)
	w.wantErr(w.within(t, "out", "aborted", 4, nothing, errNo), errNo)
	w.publish("out", 1, 2)
	c := w.consumer(broker.ConsumerOptions{Streams: []string{"out"}})
	got := w.ids(c, 5)
	w.wantIDs(got[:3], "kept", 0, 3)
	w.wantIDs(got[3:], key(0), 0, 2)
}

func committedOpen(w *world) {
	w.stream("in", 1)
	w.stream("out", 1)
	_, t := w.transactor("g", "in")
	c := w.consumer(broker.ConsumerOptions{Streams: []string{"out"}})
	w.must(w.within(t, "out", "in-tx", 2, func() {
		w.publish("out", 1, 2) // behind the open transaction
		ctx, cancel := context.WithTimeout(w.ctx(), moment)
		defer cancel()
		if d, err := c.Poll(ctx); err == nil {
			w.Errorf("the transaction is open, and %s has come", d.Events[0].ID)
		}
		end := w.consumer(broker.ConsumerOptions{Streams: []string{"out"}, Start: broker.Latest()})
		w.close(end)
	}, nil))
	got := w.ids(c, 4)
	w.wantIDs(got[:2], "in-tx", 0, 2)
	w.wantIDs(got[2:], key(0), 0, 2)
}

// The markers of transactions at a partition's end count as read.
func committedLag(w *world) {
	w.stream("in", 1)
	w.stream("out", 1)
	_, t := w.transactor("g", "in")
	w.must(w.within(t, "out", "kept", 2, func() {}, nil))
	w.wantErr(w.within(t, "out", "aborted", 2, func() {}, errNo), errNo)
	c := w.consumer(broker.ConsumerOptions{Group: "reader", Streams: []string{"out"}})
	w.wantIDs(w.ids(c, 2), "kept", 0, 2)
	poll := w.pollAside(c)
	w.soon("nothing lags", func() bool { return w.lag("out", "reader").Lag == 0 })
	w.close(c)
	<-poll
}
