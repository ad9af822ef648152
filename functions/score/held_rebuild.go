package score

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// rebuild reads the parked partition from a note's mark. offset is the group's.
// Then scored is told what outputs there are, and settle ends it.
//
// A server that dies in the middle of a transaction's end may show some partitions
// what the others will never see, while the group's offsets, and the notes beside
// them, are written last. So an event that is parked beyond the group's offset is
// parked for good, and seen says so. But a record of returned events counts only
// if the note has come to its serial number: the outputs that belong to it may have
// been lost. The next such record says that this one is void.
func (h *held) rebuild(ctx context.Context, m heldMark, offset int64) error {
	h.passed, h.serial, h.noted = offset, m.serial, m.serial
	if m.at == uncommitted { // nobody has parked anything that counts
		return h.begin(ctx)
	}
	f := &heldFold{h: h}
	from := []broker.Position{{Stream: h.stream, Partition: h.partition, Offset: m.at}}
	stopped, err := h.b.ReadBack(ctx, from, f.add)
	if err == nil {
		err = f.err
	}
	if err != nil {
		return fmt.Errorf("read which events wait on %s/%d: %w", h.stream, h.partition, err)
	}
	h.end, h.fold = stopped[0].Offset, f
	f.count()
	return nil
}

// begin finds where the partition ends.
func (h *held) begin(ctx context.Context) error {
	ends, err := h.b.Ends(ctx, h.stream)
	if err != nil {
		return fmt.Errorf("look at where %s ends: %w", h.stream, err)
	}
	if int(h.partition) >= len(ends) {
		return fmt.Errorf("stream %s has %d partitions and needs %d, as many as the scorer's input: run `tidemill streams apply`", h.stream, len(ends), h.partition+1)
	}
	h.end = ends[h.partition].Offset
	return nil
}

// heldFold is a rebuild under way.
type heldFold struct {
	h       *held
	names   map[string]uint32
	texts   []string
	keyOf   []uint32 // by entry
	records []foundRecord
	sorted  []uint64 // entries, by where and what their events are
	err     error
}

type foundRecord struct {
	at int64
	returnedData
}

func (f *heldFold) add(in *broker.Incoming) {
	if f.err != nil {
		return
	}
	header := headerOf(&in.View)
	switch {
	case header == nil && in.Type == tidemill.TypeScorerReturned:
		var r returnedData
		r, f.err = readReturned(in.Data)
		f.records = append(f.records, foundRecord{in.Offset, r})
	case header != nil:
		f.err = f.item(in, header)
	}
	if f.err != nil {
		f.err = fmt.Errorf("offset %d: %w", in.Offset, f.err)
	}
}

func (f *heldFold) item(in *broker.Incoming, header []byte) error {
	x, err := readHeldHeader(header)
	if err != nil {
		return err
	}
	n, known := f.names[x.key]
	if !known {
		if f.names == nil {
			f.names = map[string]uint32{}
		}
		n = uint32(len(f.texts))
		f.names[x.key], f.texts = n, append(f.texts, x.key)
	}
	f.keyOf = append(f.keyOf, n)
	f.h.log.add(heldEntry{at: in.Offset, from: x.offset, copy: x.copy, what: identity(in.Source, in.ID)})
	return nil
}

// count finds which records count, and what they say.
func (f *heldFold) count() {
	h := f.h
	void := map[int64]bool{}
	for _, r := range f.records {
		if r.Serial <= h.noted {
			for _, at := range r.Void {
				void[at] = true
			}
		}
	}
	for _, r := range f.records {
		h.serial = max(h.serial, r.Serial)
		switch {
		case void[r.at]:
		case r.Serial > h.noted:
			h.void = append(h.void, r.at)
		default:
			h.drop(r.Offsets)
		}
	}
	f.once()
}

// drop takes some entries for returned.
func (h *held) drop(offsets [][2]int64) {
	for _, r := range offsets {
		for seq, _ := h.log.find(r[0]); seq < h.log.behind && h.log.of(seq).at <= r[1]; seq++ {
			h.log.of(seq).state = heldReturned
		}
	}
}

// once leaves one entry of each event, for it may have been parked twice: by two
// owners where there are no transactions, or anew by renew. Of copies the newest
// counts; if any of that kind was returned, all are.
func (f *heldFold) once() {
	l := &f.h.log
	f.sorted = make([]uint64, l.len())
	for i := range f.sorted {
		f.sorted[i] = l.first + uint64(i)
	}
	slices.SortFunc(f.sorted, func(a, b uint64) int {
		x, y := l.of(a), l.of(b)
		return cmp.Or(x.compare(y.from, y.what), -cmp.Compare(x.copy, y.copy), -cmp.Compare(x.state, y.state), cmp.Compare(a, b))
	})
	for i := 1; i < len(f.sorted); i++ {
		x, y := l.of(f.sorted[i-1]), l.of(f.sorted[i])
		if x.compare(y.from, y.what) == 0 {
			y.state = heldReturned
		}
	}
}

func (e *heldEntry) compare(from int64, what uint32) int {
	return cmp.Or(cmp.Compare(e.from, from), cmp.Compare(e.what, what))
}

// scored says that the output of an event is on the log. If the event still waits
// it need not any more.
func (h *held) scored(offset int64, what uint32) {
	if h.fold == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	i, _ := slices.BinarySearchFunc(h.fold.sorted, offset, func(seq uint64, _ int64) int {
		return h.log.of(seq).compare(offset, what)
	})
	if i == len(h.fold.sorted) {
		return
	}
	if e := h.log.of(h.fold.sorted[i]); e.compare(offset, what) == 0 && e.state == heldWaiting {
		e.state = heldReturned
		h.owed = append(h.owed, e.at)
	}
}

// settle ends a rebuild: what still waits waits for its model from now on.
func (h *held) settle() {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.fold
	if h.fold = nil; f == nil {
		return
	}
	for i, n := range f.keyOf {
		seq := h.log.first + uint64(i)
		e := h.log.of(seq)
		if e.from >= h.passed {
			h.ahead[e.from] = e.what
		}
		if e.state == heldWaiting {
			h.append(f.texts[n], seq)
		}
	}
}

// aheadTo is behind the last input offset that was parked and that the group has
// yet to pass; 0 if there is none.
func (h *held) aheadTo() (behind int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for offset := range h.ahead {
		behind = max(behind, offset+1)
	}
	return behind
}
