package broker

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

// A stream is created again while the hook prepares to read its partitions again, after an aborted transaction.
func TestAStreamIsCreatedAgainInTheHook(t *testing.T) {
	var h *hostileBroker
	var c *Consumer
	calls := 0
	h, c = newLives(t, ConsumerOptions{Assigned: func(context.Context, []Position) ([]Position, error) {
		if calls++; calls == 2 {
			h.again(1000, 60)
			h.waitForLife(c)
		}
		return nil, nil
	}})
	x, err := c.Transactor(ProducerOptions{})
	h.must(err)
	h.readDifferent(c, 40)
	_, errs := h.publish(40, 50, ProducerOptions{})
	h.must(errors.Join(errs...))
	err = x.Do(h.ctx(), func(tx *Tx) error {
		for n := 0; n < 10; {
			d, err := c.Poll(h.ctx())
			h.must(err)
			n += len(d.Events)
			tx.Done(d)
		}
		return errors.New("not now")
	})
	if !errors.Is(err, ErrAborted) {
		t.Errorf("the transaction ends with %v", err)
	}
	h.readDifferent(c, 60)
	h.must(errors.Join(x.Close(h.ctx()), c.Close(h.ctx())))
}

// A transaction with events of the old stream is aborted. Then all events of the new stream are read again, although
// the group's offset is one of the old stream.
func TestATransactionEndsAfterItsStream(t *testing.T) {
	h := newHostile(t, 1)
	c, err := h.b.Consumer(h.ctx(), ConsumerOptions{Group: "g", Streams: []string{"events"}, SessionTimeout: hostileSession, Start: Earliest()})
	h.must(err)
	x, err := c.Transactor(ProducerOptions{})
	h.must(err)
	defer func() { h.must(errors.Join(x.Close(h.ctx()), c.Close(h.ctx()))) }()
	poll := func(n int, enough func(e *Incoming) bool) (all []*Delivery) {
		t.Helper()
		for n > 0 {
			d, err := c.Poll(h.ctx())
			h.must(err)
			for i := range d.Events {
				if enough(&d.Events[i]) {
					n--
				}
			}
			all = append(all, d)
		}
		return all
	}
	_, errs := h.publish(0, 10, ProducerOptions{})
	h.must(errors.Join(errs...))
	h.must(x.Do(h.ctx(), func(tx *Tx) error {
		for _, d := range poll(10, func(*Incoming) bool { return true }) {
			tx.Done(d)
		}
		return nil
	}))
	_, errs = h.publish(10, 20, ProducerOptions{})
	h.must(errors.Join(errs...))
	old := poll(10, func(*Incoming) bool { return true })
	h.again(100, 50)
	isNew := func(e *Incoming) bool { return LifeOf(e.Offset) > 0 }
	began := poll(50, isNew)
	err = x.Do(h.ctx(), func(tx *Tx) error {
		for _, d := range append(old, began...) {
			tx.Done(d)
		}
		return errors.New("not now")
	})
	if !errors.Is(err, ErrAborted) {
		t.Errorf("the transaction ends with %v", err)
	}
	for _, d := range poll(50, isNew) {
		d.Done()
	}
}

// note reads 40 events and commits a note in a transaction.
func (h *hostileBroker) note(c *Consumer) *Transactor {
	h.Helper()
	x, err := c.Transactor(ProducerOptions{})
	h.must(err)
	h.readDifferent(c, 40)
	h.must(x.Do(h.ctx(), func(tx *Tx) error {
		tx.Note("events", 0, "kept")
		tx.Note("events", 1, "kept")
		return nil
	}))
	return x
}

// A stream is created again, and Kafka forgets the group's offset and note with it, while a transaction is open that is then
// aborted. The next reader still gets the note: without it, a scorer would leave out its parked events.
func TestANoteOutlivesItsStream(t *testing.T) {
	var notes []string
	keep := func(_ context.Context, at []Position) ([]Position, error) {
		for _, p := range at {
			notes = append(notes, p.Note)
		}
		return nil, nil
	}
	h, c := newLives(t, ConsumerOptions{Assigned: keep})
	x := h.note(c)
	_, errs := h.publish(40, 50, ProducerOptions{})
	h.must(errors.Join(errs...))
	notes = nil
	err := x.Do(h.ctx(), func(tx *Tx) error {
		for n := 0; n < 10; {
			d, err := c.Poll(h.ctx())
			h.must(err)
			n += len(d.Events)
			tx.Done(d)
		}
		h.again(1000, 60)
		_, err := h.b.client.OffsetDelete(h.ctx(), &kafka.OffsetDeleteRequest{GroupID: "tidemill.g", Topics: map[string][]int{"tidemill.events": {0, 1}}})
		h.must(err)
		return errors.New("not now")
	})
	if !errors.Is(err, ErrAborted) {
		t.Errorf("the transaction ends with %v", err)
	}
	h.readDifferent(c, 60)
	h.must(errors.Join(x.Close(h.ctx()), c.Close(h.ctx())))
	_, errs = h.publish(2000, 2010, ProducerOptions{})
	h.must(errors.Join(errs...))
	c = h.reopen(ConsumerOptions{Assigned: keep})
	h.readDifferent(c, 10)
	h.must(c.Close(h.ctx()))
	if want := []string{"kept", "kept", "kept", "kept"}; !slices.Equal(notes, want) {
		t.Errorf("the notes are %q, want %q", notes, want)
	}
}

// A life begins while a transaction commits a note, which may fail. The record of the life has the note before.
func TestALifeBeginsInATransaction(t *testing.T) {
	h, c := newLives(t, ConsumerOptions{})
	x := h.note(c)
	places, torn := map[wire.TopicPartition]*txPlace{}, "torn"
	c.eachPartition(func(p *inPartition) { places[p.tp] = &txPlace{p: p, note: &torn} })
	release := c.member.reserve(places, nil)
	h.again(1000, 10)
	h.waitForLife(c)
	var known groupRecords
	h.must(h.b.readGroupRecords(h.ctx(), &known))
	for tp, r := range known.all["g"] {
		if note, _ := decodeMetadata(r.Offset, r.Metadata); note != "kept" || lifeOf(r.Metadata).base != 1<<lifeBits {
			t.Errorf("the record of %v is %+v", tp, r)
		}
	}
	release()
	h.must(errors.Join(x.Close(h.ctx()), c.Close(h.ctx())))
}
