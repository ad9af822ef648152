package score

import (
	"container/heap"
	"context"
	"errors"
	"fmt"

	"tidemill.dev/broker"
)

// errHeldGone says that an event that was parked is on its stream no more.
var errHeldGone = errors.New("it waited for its model for longer than the stream where it waited keeps events; give its input a longer retention")

// errHeldBooks says that the log has something that the books on it do not: they
// are made anew then.
var errHeldBooks = errors.New("what is parked is not where the books say")

// take is the oldest events of the keys that are open, in the order in which they
// were parked, up to so many of them or so many bytes. What is not in memory is
// read again, a stretch of the log at once, which is then what comes next mostly.
// It may be fewer than there are, since what was parked a moment ago may not be
// readable yet.
//
// A later event of a key may be dealt with once all of these have been taken, if
// its output goes behind theirs.
func (h *held) take(ctx context.Context, events, bytes int) (all []*heldEvent, err error) {
	var later []*heldKey
	for events > 0 && bytes > 0 {
		e, at, k := h.next()
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
		err = nil // it comes again
	}
	return all, err
}

// ready tells whether there is an event to be taken, perhaps not yet readable.
func (h *held) ready() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.open) > 0
}

// next is the next event of the oldest open key: its content if that is in memory,
// and else its place.
func (h *held) next() (e *heldEvent, at int64, k *heldKey) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.open) == 0 {
		return nil, 0, nil
	}
	k = h.open[0]
	return h.content(k.head), h.log.of(k.head).at, k
}

// content takes what is in memory of an event; nil if nothing is.
func (h *held) content(seq uint64) *heldEvent {
	if e := h.kept.take(seq); e != nil {
		return e
	}
	return h.loaded.take(seq)
}

// setAside takes a key out of the heap for a moment, and resume puts it back.
func (h *held) setAside(k *heldKey) *heldKey {
	h.mu.Lock()
	defer h.mu.Unlock()
	heap.Remove(&h.open, k.at)
	k.state = keyAsked
	return k
}

func (h *held) resume(k *heldKey) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k.state = keyOpen
	heap.Push(&h.open, k)
}

// pop moves a key on behind an event that is taken.
func (h *held) pop(k *heldKey, e *heldEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.key = k.name
	entry := h.log.of(e.seq)
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

// putBack undoes the taking of the newest events that were taken of a key, in
// their order. The key is asked for again.
func (h *held) putBack(events []*heldEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := len(events) - 1; i >= 0; i-- {
		e := events[i]
		entry := h.log.of(e.seq)
		entry.state = heldWaiting
		h.waiting++
		h.loaded.put(e)
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

// fetch reads the stretch of the log that begins with an event, and returns that
// event, nil if it cannot be read yet: a transaction that has been committed is
// not visible at once.
func (h *held) fetch(ctx context.Context, seq uint64, at int64) (*heldEvent, error) {
	h.mu.Lock()
	h.loaded.clear()
	h.mu.Unlock()
	there := false
	var odd error
	next, err := h.b.Read(ctx, broker.Position{Stream: h.stream, Partition: h.partition, Offset: at}, h.o.Read, func(in *broker.Incoming) bool {
		there = there || in.Offset == at
		if err := h.load(in); err != nil && in.Offset == at {
			odd = err
		}
		return h.loaded.size < h.o.Read
	})
	if err != nil {
		return nil, fmt.Errorf("read a parked event again: %w", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.loaded.take(seq)
	switch {
	case e != nil || next == at:
		return e, nil
	case odd != nil:
	case there:
		return nil, fmt.Errorf("%w: offset %d of %s/%d", errHeldBooks, at, h.stream, h.partition)
	default:
		odd = errHeldGone
	}
	return &heldEvent{seq: seq, offset: h.log.of(seq).from, err: odd}, nil
}

// load keeps the content of an event that waits.
func (h *held) load(in *broker.Incoming) error {
	header := headerOf(&in.View)
	if in.Err != nil || header == nil {
		return in.Err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	seq, is := h.log.find(in.Offset)
	if !is || h.log.of(seq).state != heldWaiting || h.kept.events[seq] != nil {
		return nil
	}
	x, err := readHeldHeader(header)
	if err != nil {
		return err
	}
	h.loaded.put(&heldEvent{view: withoutHeader(in.Clone()), key: x.key, offset: x.offset, logged: x.logged, seq: seq, size: sizeOf(&in.View)})
	return nil
}
