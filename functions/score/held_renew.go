package score

import (
	"container/heap"
	"context"
	"math"
)

// renewal is an event that is parked anew: the old entry is returned, and the new
// one parked, in one transaction.
type renewal struct {
	old *heldEvent
	seq uint64 // for park
}

const (
	// renewMost and renewBytes bound what is parked anew at once.
	renewMost, renewBytes = 4 << 10, 8 << 20
)

// renew parks the events anew that keep the mark from moving on: those of a key
// whose model does not come, while many of others have come and gone behind them.
// Without that the index and the way of a rebuild would grow for as long as one
// model is missing. All of a key move, or their order would be lost; there is
// nothing to do, mostly.
//
// The copy's number tells it from the event that it was made of. When a renewal is
// torn, both are there, and the newer one counts.
func (h *held) renew(ctx context.Context) (all []renewal, err error) {
	k, events, err := h.stale(ctx)
	if k == nil || err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range events {
		old := h.log.of(e.seq)
		old.state, old.next = heldTaken, 0
		seq := h.log.add(heldEntry{at: uncommitted, from: old.from, what: old.what, copy: old.copy + 1})
		all = append(all, renewal{old: e, seq: seq})
	}
	for i, r := range all[1:] {
		h.log.of(all[i].seq).next = uint32(r.seq - all[i].seq)
	}
	h.patience = 0
	k.head, k.tail = all[0].seq, all[len(all)-1].seq
	switch k.state {
	case keyOpen:
		heap.Fix(&h.open, k.at)
	case keyClosed:
		heap.Fix(&h.closed, k.at)
	}
	return all, nil
}

// stale is the key whose events are to be parked anew, and their contents; none if
// none is, or if they cannot be read now.
func (h *held) stale(ctx context.Context) (k *heldKey, events []*heldEvent, err error) {
	k, seqs := h.oldest()
	size := 0
	for _, seq := range seqs {
		h.mu.Lock()
		e, at := h.content(seq), h.log.of(seq).at
		h.mu.Unlock()
		if e == nil && at != uncommitted {
			e, err = h.fetch(ctx, seq, at)
		}
		if e == nil || e.err != nil || err != nil || size > renewBytes {
			h.notNow(events)
			return nil, nil, err
		}
		e.key = k.name
		events, size = append(events, e), size+e.size
	}
	return k, events, nil
}

// notNow gives contents back that were taken in vain, and has nothing parked anew
// before the index has grown.
func (h *held) notNow(events []*heldEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range events {
		h.loaded.put(e)
	}
	h.patience = h.log.len()
}

// oldest is the key with the first entry that waits, if it is time to renew it, and
// all its entries.
func (h *held) oldest() (k *heldKey, seqs []uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting == 0 || h.log.len() < h.patience+h.o.Renew || h.log.len() < h.o.Share*h.waiting {
		return nil, nil
	}
	for _, other := range h.keys {
		if k == nil || other.head < k.head {
			k = other
		}
	}
	if k.head != h.log.first {
		return nil, nil // what is first is on its way
	}
	for seq := k.head; ; {
		seqs = append(seqs, seq)
		e := h.log.of(seq)
		if e.copy == math.MaxUint16 || e.at == uncommitted || len(seqs) > renewMost {
			return nil, nil
		}
		if e.next == 0 {
			return k, seqs
		}
		seq += uint64(e.next)
	}
}
