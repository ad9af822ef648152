package score

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// outbox takes what goes onto a stream: a transaction, or a producer.
type outbox interface {
	SendTo(ctx context.Context, stream string, partition int32, v *broker.View, done func(broker.Receipt))
}

// park sends an event that hold has decided on. Events are parked in the order in
// which they were held. Its place is known when done is called, which must be
// before the next transaction begins.
func (h *held) park(ctx context.Context, to outbox, seq uint64, key string, v *broker.View, logged int64) {
	h.mu.Lock()
	entry := h.log.of(seq)
	x := heldHeader{offset: entry.from, logged: logged, copy: entry.copy, key: key}
	h.mu.Unlock()
	w := withHeader(v, x.encode())
	to.SendTo(ctx, h.stream, h.partition, &w, func(r broker.Receipt) {
		h.mu.Lock()
		h.log.of(seq).at = r.Offset
		h.end = max(h.end, r.Offset+1)
		h.mu.Unlock()
	})
}

// returned says which events have been dealt with, in the transaction that deals
// with them. It belongs into every transaction that has a note of the partition.
func (h *held) returned(ctx context.Context, to outbox, source string, events []*heldEvent) error {
	data, first, err := h.record(events)
	if data == nil && err == nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("say which parked events of %s/%d have been dealt with: %w", h.stream, h.partition, err)
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

// record writes the data, and takes the events for returned.
func (h *held) record(events []*heldEvent) (data []byte, first int64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	offsets := h.owed
	for _, e := range events {
		entry := h.log.of(e.seq)
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

// heldMark is what the note says of what is held, for rebuild.
type heldMark struct {
	at     int64 // nothing that waits lies below it on the parked partition
	serial int64 // of the newest record of returned events that counts
}

// noMark is that of a partition that has no note.
var noMark = heldMark{at: uncommitted}

// mark is what the note says if the transaction is committed whose events have
// been given to returned.
func (h *held) mark() heldMark {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := heldMark{at: h.end, serial: h.noted}
	for seq := h.log.first; seq < h.log.behind; seq++ {
		if e := h.log.of(seq); !h.over(e) {
			if e.at != uncommitted {
				m.at = e.at
			}
			break
		}
	}
	return m
}

// over tells whether an entry need not be found by a successor: the event has
// been dealt with, and the group will not read it again.
func (h *held) over(e *heldEntry) bool {
	return e.state == heldReturned && e.from < h.passed
}

// committed says that the last transaction has been, and that the group's offset
// is where it says, or beyond.
func (h *held) committed(offset int64) {
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
	for h.log.len() > 0 && h.over(h.log.of(h.log.first)) {
		h.log.drop()
	}
}
