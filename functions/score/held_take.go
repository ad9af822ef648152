package score

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/parked"
)

// errHeldGone reports that a parked event is no longer on its stream.
var errHeldGone = errors.New("it waited for its model for longer than the stream where it waited keeps events; give its input a longer retention")

// errAllGone is errHeldGone for the events at several offsets of the parked stream.
var errAllGone = errors.New("events waited for their models for longer than the stream where they waited keeps events; give the scorer's input a longer retention")

// errHeldMismatch reports that the log does not match the index. Then the index is rebuilt.
var errHeldMismatch = errors.New("the parked stream does not match the index")

// takeOpen returns the oldest events of the open models, in the order in which they were parked, up
// to a number of events and bytes. Contents that are not in memory are read again, together with
// the records after them, which mostly come next. It may return fewer events than there are,
// because a record that was just parked may not be readable yet.
//
// Later events of a key may be handled after all of these have been taken, if their
// outputs come after.
func (h *heldIndex) takeOpen(ctx context.Context, events, bytes int) (all []*heldEvent, err error) {
	if h.isBroken() {
		return nil, fmt.Errorf("%w: Kafka did not return the offset of a parked event", errHeldMismatch)
	}
	var later []*heldModel
	for events > 0 && bytes > 0 {
		e, k, r := h.nextOpen()
		if k == nil {
			break
		}
		if e == nil && r.Order != uncommitted {
			if e, err = h.fetch(ctx, r); err != nil {
				break
			}
		}
		if e == nil {
			h.turn(k.name, modelAsked) // for a moment
			later = append(later, k)
			continue
		}
		h.pop(k, e)
		all, events, bytes = append(all, e), events-1, bytes-e.size
	}
	for _, k := range later {
		h.turn(k.name, modelOpen)
	}
	if len(all) > 0 {
		err = nil // the error comes again
	}
	return all, err
}

func (h *heldIndex) isBroken() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.broken
}

// ready reports whether there is an event to be taken, which may not be readable yet.
func (h *heldIndex) ready() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.open) > 0
}

// nextOpen returns the open model with the oldest event, the place of that event, and its
// content if that is in memory.
func (h *heldIndex) nextOpen() (e *heldEvent, k *heldModel, r parked.Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.open) == 0 {
		return nil, nil, r
	}
	if k = h.open[0]; k.first.Order != uncommitted {
		return h.content(k.first.Order), k, k.first
	}
	if k.fresh[0].size > 0 {
		e = k.fresh[0]
	}
	return e, k, k.first
}

// content takes the content of an event out of memory; nil if it is not there.
func (h *heldIndex) content(at int64) *heldEvent {
	if e, ok := h.kept.Take(at); ok {
		return e
	}
	e, _ := h.loaded.Take(at)
	return e
}

// pop moves a model past an event that is taken.
func (h *heldIndex) pop(k *heldModel, e *heldEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.model = k.name
	if k.first.Order == uncommitted {
		h.tally(hashOf(e.key), -1)
		e.taken = true
		h.keeping -= e.size
		k.shift()
	} else {
		h.content(k.first.Order) // it is there if the offset became known meanwhile
		h.tally(uint16(k.first.Copy), -1)
		var more bool
		if k.first, more = k.later.Pop(); !more {
			k.first.Order = uncommitted
		}
	}
	if k.first.Order == uncommitted && len(k.fresh) == 0 {
		h.leave(k)
		delete(h.models, k.name)
		return
	}
	h.fix(k)
}

// shift removes the first event that is about to be parked.
func (k *heldModel) shift() {
	if k.fresh = k.fresh[1:]; len(k.fresh) == 0 {
		k.fresh = nil
	}
}

// putBack undoes the taking of the newest taken events of some models, in their order. The models are
// asked for again.
func (h *heldIndex) putBack(events []*heldEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range slices.Backward(events) {
		k := h.modelNamed(e.model)
		if h.tally(hashOf(e.key), 1); e.at == uncommitted {
			e.taken = false
			h.keeping += e.size
			k.fresh = slices.Insert(k.fresh, 0, e)
		} else {
			h.loaded.Put(e.at, e, e.size)
			h.add(k, e.ref())
		}
		h.move(k, modelClosed)
	}
}

// fetch reads the log from an event on and returns that event. It returns nil if the
// event cannot be read yet, because a committed transaction is not visible at once.
func (h *heldIndex) fetch(ctx context.Context, r parked.Ref) (*heldEvent, error) {
	h.mu.Lock()
	h.loaded.Clear()
	h.mu.Unlock()
	there := false
	var odd error
	next, err := h.b.Read(ctx, broker.Position{Stream: h.stream, Partition: h.partition, Offset: r.Order}, h.o.Read, func(in *broker.Incoming) bool {
		there = there || in.Offset == r.Order
		if err := h.load(in); err != nil && in.Offset == r.Order {
			odd = err
		}
		return h.loaded.Size() < h.o.Read
	})
	if err != nil {
		return nil, fmt.Errorf("read a parked event again: %w", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	e, _ := h.loaded.Take(r.Order)
	switch {
	case e != nil || next == r.Order:
		return e, nil
	case odd != nil:
	case there:
		return nil, fmt.Errorf("%w: offset %d of %s/%d", errHeldMismatch, r.Order, h.stream, h.partition)
	default:
		odd = errHeldGone
	}
	return &heldEvent{heldHeader: heldHeader{offset: r.Other}, at: r.Order, err: odd}, nil
}

// load keeps the content of an event that waits. It may also keep one that has just been taken.
func (h *heldIndex) load(in *broker.Incoming) error {
	header := parked.Find(&in.View, headerHeld)
	if in.Err != nil || header == nil {
		return in.Err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.needed.Has(in.Offset) || h.kept.Has(in.Offset) {
		return nil
	}
	x, err := readHeldHeader(header)
	if err != nil {
		return err
	}
	v, err := parked.Unwrap(in.Clone(), headerHeld)
	if err != nil {
		return err
	}
	size := parked.Size(&v)
	h.loaded.Put(in.Offset, &heldEvent{heldHeader: x, at: in.Offset, view: v, size: size}, size)
	return nil
}

// outbox is a transaction or a producer.
type outbox interface {
	SendTo(ctx context.Context, stream string, partition int32, v *broker.View, done func(broker.Receipt))
}

// park sends an event that hold has decided on. Its offset is known when done is called, which must
// be in the order of the calls and before the next transaction begins.
func (h *heldIndex) park(ctx context.Context, to outbox, e *heldEvent, v *broker.View) error {
	w, err := parked.Wrap(v, headerHeld, e.encode())
	if err != nil {
		return err
	}
	to.SendTo(ctx, h.stream, h.partition, &w, func(r broker.Receipt) { h.placed(e, r.Offset) })
	return nil
}

// placed reports the offset of an event that was parked.
func (h *heldIndex) placed(e *heldEvent, at int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.broken = h.broken || at < 0; h.broken {
		return
	}
	h.end = max(h.end, at+1)
	h.needed.Add(at)
	h.unparked--
	if e.at = at; e.taken {
		return
	}
	k := h.models[e.model]
	if k.shift(); e.size > 0 {
		h.keeping -= e.size
		h.kept.Put(at, e, e.size)
	}
	h.add(k, e.ref())
}

// returned writes which events have been handled, in the transaction with their
// results. It must be part of every transaction that has a note of the partition.
func (h *heldIndex) returned(ctx context.Context, to outbox, source string, events []*heldEvent) error {
	data, first, err := h.record(events)
	if data == nil && err == nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("record the processed parked events of %s/%d: %w", h.stream, h.partition, err)
	}
	v := broker.View{
		ID: tidemill.ID("returned", source, fmt.Sprint(h.partition), fmt.Sprint(first), string(data)), Source: source, Type: tidemill.TypeScorerReturned,
		Time: time.Now().UTC().Format(time.RFC3339Nano), DataSchema: tidemill.Schema(tidemill.TypeScorerReturned), DataContentType: "application/json", Data: data,
	}
	to.SendTo(ctx, h.stream, h.partition, &v, func(r broker.Receipt) {
		h.mu.Lock()
		h.end = max(h.end, r.Offset+1)
		h.mu.Unlock()
	})
	return nil
}

// record encodes the data and marks the events as returned.
func (h *heldIndex) record(events []*heldEvent) (data []byte, first int64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	offsets := h.owed
	for _, e := range events {
		if e.at == uncommitted {
			return nil, 0, fmt.Errorf("the event from offset %d is returned before it has been parked", e.offset)
		}
		offsets = append(offsets, e.at)
		if e.offset < h.passed {
			h.needed.Remove(e.at)
		} else {
			h.handled[e.at] = e.offset // a successor must know that it need not be read again
		}
	}
	if len(offsets) == 0 {
		return nil, 0, nil
	}
	h.owed = nil
	h.serial++
	r := returnedData{Serial: h.serial, Offsets: ranges(offsets), Void: h.void}
	h.noted = h.serial
	data, err = json.Marshal(r)
	return data, offsets[0], err
}

// heldMark is the part of the note that rebuild needs.
type heldMark struct {
	at     int64 // lowest offset of the parked partition that is needed
	serial int64 // serial number of the newest returned record that counts
	waits  bool  // whether the first event from at on waits
}

// noMark is the mark of a partition without a note.
var noMark = heldMark{at: uncommitted}

// returnMark returns the mark of the transaction whose events returned has written.
func (h *heldIndex) returnMark() heldMark {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := heldMark{at: h.needed.Low(h.end), serial: h.noted, waits: h.unparked > 0}
	if h.needed.Len() > 0 {
		_, handled := h.handled[m.at]
		m.waits = !handled
	}
	return m
}

// committed reports that the last transaction is committed, and that the group's offset
// is this or a later one.
func (h *heldIndex) committed(offset int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.noted == h.serial {
		h.void = nil
	}
	if offset > h.passed {
		h.passed = offset
		for at := range h.ahead {
			if at < offset {
				delete(h.ahead, at)
			}
		}
		for at, from := range h.handled {
			if from < offset {
				h.needed.Remove(at)
				delete(h.handled, at)
			}
		}
	}
}
