package score

import (
	"container/heap"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// takeOpen returns the oldest events of the open keys, in the order in which they were parked, up
// to a number of events and bytes. Contents that are not in memory are read again, together with
// the records after them, which mostly come next. It may return fewer events than there are,
// because a record that was just parked may not be readable yet.
//
// Later events of a key may be handled after all of these have been taken, if their
// outputs come after.
func (h *heldIndex) takeOpen(ctx context.Context, events, bytes int) (all []*heldEvent, err error) {
	var later []*heldKey
	for events > 0 && bytes > 0 {
		e, at, k := h.nextOpen()
		if k == nil {
			break
		}
		if e == nil && at != uncommitted {
			if e, err = h.fetch(ctx, k.head, at); err != nil {
				break
			}
		}
		if e == nil {
			later = append(later, h.setAside(k))
			continue
		}
		h.pop(k, e)
		all, events, bytes = append(all, e), events-1, bytes-e.size
	}
	for _, k := range later {
		h.resume(k)
	}
	if len(all) > 0 {
		err = nil // the error comes again
	}
	return all, err
}

// ready reports whether there is an event to be taken, which may not be readable yet.
func (h *heldIndex) ready() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.open) > 0
}

// nextOpen returns the next event of the oldest open key: its content if that is in memory,
// and its place.
func (h *heldIndex) nextOpen() (e *heldEvent, at int64, k *heldKey) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.open) == 0 {
		return nil, 0, nil
	}
	k = h.open[0]
	return h.content(k.head), h.log.entryAt(k.head).at, k
}

// content takes the content of an event out of memory; nil if it is not there.
func (h *heldIndex) content(seq uint64) *heldEvent {
	if e, ok := h.kept.Take(seq); ok {
		return e
	}
	e, _ := h.loaded.Take(seq)
	return e
}

// setAside takes a key out of the heap for a moment; resume puts it back.
func (h *heldIndex) setAside(k *heldKey) *heldKey {
	h.mu.Lock()
	defer h.mu.Unlock()
	heap.Remove(&h.open, k.at)
	k.state = keyAsked
	return k
}

func (h *heldIndex) resume(k *heldKey) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k.state = keyOpen
	heap.Push(&h.open, k)
}

// pop moves a key past an event that is taken.
func (h *heldIndex) pop(k *heldKey, e *heldEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.key = k.name
	entry := h.log.entryAt(e.seq)
	entry.state = heldTaken
	h.waiting--
	if entry.next == 0 {
		h.leave(k)
		delete(h.keys, k.name)
		return
	}
	k.head += uint64(entry.next)
	heap.Fix(&h.open, k.at)
}

// putBack undoes the taking of the newest taken events of a key, in their order. The
// key's model is asked for again.
func (h *heldIndex) putBack(events []*heldEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := len(events) - 1; i >= 0; i-- {
		e := events[i]
		entry := h.log.entryAt(e.seq)
		entry.state = heldWaiting
		h.waiting++
		h.loaded.Put(e.seq, e, e.size)
		k := h.keys[e.key]
		if k == nil {
			k = &heldKey{name: e.key, tail: e.seq}
			entry.next = 0
			h.keys[e.key] = k
		} else {
			h.leave(k)
			entry.next = uint32(k.head - e.seq)
		}
		k.head, k.state = e.seq, keyClosed
		heap.Push(&h.closed, k)
	}
}

// fetch reads the log from an event on and returns that event. It returns nil if the
// event cannot be read yet, because a committed transaction is not visible at once.
func (h *heldIndex) fetch(ctx context.Context, seq uint64, at int64) (*heldEvent, error) {
	h.mu.Lock()
	h.loaded.Clear()
	h.mu.Unlock()
	there := false
	var odd error
	next, err := h.b.Read(ctx, broker.Position{Stream: h.stream, Partition: h.partition, Offset: at}, h.o.Read, func(in *broker.Incoming) bool {
		there = there || in.Offset == at
		if err := h.load(in); err != nil && in.Offset == at {
			odd = err
		}
		return h.loaded.Size() < h.o.Read
	})
	if err != nil {
		return nil, fmt.Errorf("read a parked event again: %w", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	e, _ := h.loaded.Take(seq)
	switch {
	case e != nil || next == at:
		return e, nil
	case odd != nil:
	case there:
		return nil, fmt.Errorf("%w: offset %d of %s/%d", errHeldMismatch, at, h.stream, h.partition)
	default:
		odd = errHeldGone
	}
	return &heldEvent{seq: seq, offset: h.log.entryAt(seq).from, err: odd}, nil
}

// load keeps the content of an event that waits.
func (h *heldIndex) load(in *broker.Incoming) error {
	header := parked.Find(&in.View, headerHeld)
	if in.Err != nil || header == nil {
		return in.Err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	seq, is := h.log.find(in.Offset)
	if !is || h.log.entryAt(seq).state != heldWaiting || h.kept.Has(seq) {
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
	h.loaded.Put(seq, &heldEvent{view: v, key: x.key, offset: x.offset, logged: x.logged, seq: seq, size: size}, size)
	return nil
}

// outbox is a transaction or a producer.
type outbox interface {
	SendTo(ctx context.Context, stream string, partition int32, v *broker.View, done func(broker.Receipt))
}

// park sends an event that hold has decided on, in the order of the decisions. Its offset is known
// when done is called, which must be before the next transaction begins.
func (h *heldIndex) park(ctx context.Context, to outbox, seq uint64, key string, v *broker.View, logged int64) error {
	h.mu.Lock()
	entry := h.log.entryAt(seq)
	x := heldHeader{offset: entry.from, logged: logged, copy: entry.copy, key: key}
	h.mu.Unlock()
	w, err := parked.Wrap(v, headerHeld, x.encode())
	if err != nil {
		return err
	}
	to.SendTo(ctx, h.stream, h.partition, &w, func(r broker.Receipt) {
		h.mu.Lock()
		h.log.entryAt(seq).at = r.Offset
		h.end = max(h.end, r.Offset+1)
		h.mu.Unlock()
	})
	return nil
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
		entry := h.log.entryAt(e.seq)
		if entry.at == uncommitted {
			return nil, 0, fmt.Errorf("the event from offset %d is returned before it has been parked", entry.from)
		}
		offsets = append(offsets, entry.at)
		entry.state = heldReturned
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
	m := heldMark{at: h.end, serial: h.noted}
	for seq := h.log.first; seq < h.log.behind; seq++ {
		if e := h.log.entryAt(seq); !h.isHandled(e) {
			if e.at != uncommitted {
				m.at = e.at
			}
			m.waits = e.state != heldReturned
			break
		}
	}
	return m
}

// isHandled reports whether a successor does not need an entry: the event has been handled,
// and the group will not read it again.
func (h *heldIndex) isHandled(e *heldEntry) bool {
	return e.state == heldReturned && e.from < h.passed
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
	}
	for h.log.len() > 0 && h.isHandled(h.log.entryAt(h.log.first)) {
		h.log.drop()
	}
}
