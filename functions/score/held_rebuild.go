package score

import (
	"cmp"
	"container/heap"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/parked"
)

// headerHeld marks an event on a scorer's parked stream as waiting. It is a header of
// the record and no attribute, so the event itself is unchanged.
const headerHeld = "tidemill-held"

const heldVersion = 1

// heldHeader is that header: the event's offset on the input, the time when it came
// there, the number of earlier copies, and its key.
type heldHeader struct {
	offset int64
	logged int64 // time in milliseconds
	copy   uint16
	key    string
}

func (x *heldHeader) encode() []byte {
	b := append(make([]byte, 0, 24+len(x.key)), heldVersion)
	for _, n := range [...]int64{int64(x.copy), x.offset, x.logged} {
		b = parked.AppendNumber(b, n)
	}
	return append(b, x.key...)
}

func readHeldHeader(b []byte) (heldHeader, error) {
	r := parked.Read(b, heldVersion)
	x := heldHeader{copy: uint16(r.Number()), offset: r.Number(), logged: r.Number()}
	x.key = string(r.Rest())
	return x, r.Err()
}

// returnedData is the data of tidemill.scorer.returned: the parked events that were
// handled in the same transaction. It counts if the note's serial number has reached
// its own, and if no later record declares it void.
type returnedData struct {
	Serial  int64      `json:"serial"`
	Offsets [][2]int64 `json:"offsets"`        // first and last offsets on the same partition
	Void    []int64    `json:"void,omitempty"` // offsets of such records
}

func readReturned(data []byte) (r returnedData, err error) {
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("read which parked events have been dealt with: %w", err)
	}
	return r, nil
}

// ranges sorts offsets and joins adjacent ones.
func ranges(offsets []int64) (all [][2]int64) {
	slices.Sort(offsets)
	for _, at := range offsets {
		if n := len(all); n > 0 && all[n-1][1]+1 >= at {
			all[n-1][1] = at
			continue
		}
		all = append(all, [2]int64{at, at})
	}
	return all
}

// rebuild reads the parked partition from a note's mark. offset is the group's. After
// it, scored is called for the outputs that exist, and settle ends the rebuild.
//
// A server that dies at a transaction's end may show some partitions records that the
// others never get, and it writes the group's offsets and notes last. So an event that
// is parked after the group's offset is parked for good, and seen reports it. A
// returned record counts only if the note has reached its serial number, because its
// outputs may have been lost. Otherwise the next such record declares it void.
func (h *heldIndex) rebuild(ctx context.Context, m heldMark, offset int64) error {
	h.passed, h.serial, h.noted = offset, m.serial, m.serial
	if m.at == uncommitted { // nothing is parked that counts
		return h.begin(ctx)
	}
	f := &heldFold{h: h}
	from := []broker.Position{{Stream: h.stream, Partition: h.partition, Offset: m.at}}
	stopped, err := parked.Rebuild(ctx, h.b, from, f.add)
	if err != nil {
		return fmt.Errorf("find which events wait: %w", err)
	}
	h.end, h.fold = stopped[0].Offset, f
	f.applyReturned()
	return nil
}

// begin finds where the partition ends.
func (h *heldIndex) begin(ctx context.Context) error {
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

// heldFold is the state of a rebuild.
type heldFold struct {
	h       *heldIndex
	names   map[string]uint32
	texts   []string
	keyOf   []uint32 // number of the key of each entry
	records []foundRecord
	sorted  []uint64 // entries, ordered by input offset and identity
}

type foundRecord struct {
	at int64
	returnedData
}

func (f *heldFold) add(in *broker.Incoming) error {
	if header := parked.Find(&in.View, headerHeld); header != nil {
		return f.item(in, header)
	}
	if in.Type != tidemill.TypeScorerReturned {
		return nil
	}
	r, err := readReturned(in.Data)
	f.records = append(f.records, foundRecord{in.Offset, r})
	return err
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
	f.h.log.add(heldEntry{at: in.Offset, from: x.offset, copy: x.copy, what: parkedIdentity(in)})
	return nil
}

// parkedIdentity returns the identity of a parked event as it was on the input. If it cannot be decoded, load
// reports that.
func parkedIdentity(in *broker.Incoming) uint32 {
	if parked.Find(&in.View, parked.HeaderOdd) != nil {
		if v, err := parked.Unwrap(in.Clone(), headerHeld); err == nil {
			return identity(v.Source, v.ID)
		}
	}
	return identity(in.Source, in.ID)
}

// applyReturned finds the returned records that count, and applies these records.
func (f *heldFold) applyReturned() {
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
	f.dropDuplicates()
}

// drop marks entries as returned.
func (h *heldIndex) drop(offsets [][2]int64) {
	for _, r := range offsets {
		for seq, _ := h.log.find(r[0]); seq < h.log.behind && h.log.entryAt(seq).at <= r[1]; seq++ {
			h.log.entryAt(seq).state = heldReturned
		}
	}
}

// dropDuplicates leaves one entry for each event. An event may be parked twice: by two owners
// without transactions, or by renew. The newest copy counts. If one entry of that copy
// was returned, all of them are.
func (f *heldFold) dropDuplicates() {
	l := &f.h.log
	f.sorted = make([]uint64, l.len())
	for i := range f.sorted {
		f.sorted[i] = l.first + uint64(i)
	}
	slices.SortFunc(f.sorted, func(a, b uint64) int {
		x, y := l.entryAt(a), l.entryAt(b)
		return cmp.Or(x.compare(y.from, y.what), -cmp.Compare(x.copy, y.copy), -cmp.Compare(x.state, y.state), cmp.Compare(a, b))
	})
	for i := 1; i < len(f.sorted); i++ {
		x, y := l.entryAt(f.sorted[i-1]), l.entryAt(f.sorted[i])
		if x.compare(y.from, y.what) == 0 {
			y.state = heldReturned
		}
	}
}

func (e *heldEntry) compare(from int64, what uint32) int {
	return cmp.Or(cmp.Compare(e.from, from), cmp.Compare(e.what, what))
}

// scored reports that the output of an event exists. The event no longer has to wait.
func (h *heldIndex) scored(offset int64, what uint32) {
	if h.fold == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	i, _ := slices.BinarySearchFunc(h.fold.sorted, offset, func(seq uint64, _ int64) int {
		return h.log.entryAt(seq).compare(offset, what)
	})
	if i == len(h.fold.sorted) {
		return
	}
	if e := h.log.entryAt(h.fold.sorted[i]); e.compare(offset, what) == 0 && e.state == heldWaiting {
		e.state = heldReturned
		h.owed = append(h.owed, e.at)
	}
}

// endRebuild ends a rebuild. The remaining events wait for their models.
func (h *heldIndex) endRebuild() {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.fold
	if h.fold = nil; f == nil {
		return
	}
	for i, n := range f.keyOf {
		seq := h.log.first + uint64(i)
		e := h.log.entryAt(seq)
		if e.from >= h.passed {
			h.ahead[e.from] = e.what
		}
		if e.state == heldWaiting {
			h.append(f.texts[n], seq)
		}
	}
}

// aheadTo returns the offset after the last parked input offset that the group has yet
// to pass; 0 if there is none.
func (h *heldIndex) aheadTo() (behind int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for offset := range h.ahead {
		behind = max(behind, offset+1)
	}
	return behind
}

// renewal is an event that is parked again. The same transaction returns the old entry
// and parks the new one.
type renewal struct {
	old *heldEvent
	seq uint64 // sequence number for park
}

// renew parks events again that keep the mark where it is: those of a key whose model
// does not come, while many others come and go. Otherwise the index and the time of a
// rebuild would grow for as long as one model is missing. All events of a key move
// together, because their order would be lost otherwise. Mostly there is nothing to do.
//
// The copy number distinguishes the new event from the old one. If a renewal is torn,
// both exist and the newer one counts.
func (h *heldIndex) renew(ctx context.Context) (all []renewal, err error) {
	k, events, err := h.keyToRenew(ctx)
	if k == nil || err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range events {
		old := h.log.entryAt(e.seq)
		old.state, old.next = heldTaken, 0
		seq := h.log.add(heldEntry{at: uncommitted, from: old.from, what: old.what, copy: old.copy + 1})
		all = append(all, renewal{old: e, seq: seq})
	}
	for i, r := range all[1:] {
		h.log.entryAt(all[i].seq).next = uint32(r.seq - all[i].seq)
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

// keyToRenew returns the key whose events are to be parked again, with their contents; nil
// if there is none or they cannot be read now.
func (h *heldIndex) keyToRenew(ctx context.Context) (k *heldKey, events []*heldEvent, err error) {
	k, seqs := h.oldest()
	size := 0
	for _, seq := range seqs {
		h.mu.Lock()
		e, at := h.content(seq), h.log.entryAt(seq).at
		h.mu.Unlock()
		if e == nil && at != uncommitted {
			e, err = h.fetch(ctx, seq, at)
		}
		if e == nil || e.err != nil || err != nil || size > parked.RenewBytes {
			h.notNow(events)
			return nil, nil, err
		}
		e.key = k.name
		events, size = append(events, e), size+e.size
	}
	return k, events, nil
}

// notNow gives back contents that were not used. The next renewal waits until the index
// has grown.
func (h *heldIndex) notNow(events []*heldEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range events {
		h.loaded.Put(e.seq, e, e.size)
	}
	h.patience = h.log.len()
}

// oldest returns the key of the first waiting entry with all its entries, if a renewal
// is due.
func (h *heldIndex) oldest() (k *heldKey, seqs []uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.o.Renew.Due(h.log.len(), h.waiting, h.patience) {
		return nil, nil
	}
	for _, other := range h.keys {
		if k == nil || other.head < k.head {
			k = other
		}
	}
	if k.head != h.log.first {
		return nil, nil // the first entry has been taken
	}
	for seq := k.head; ; {
		seqs = append(seqs, seq)
		e := h.log.entryAt(seq)
		if e.copy == math.MaxUint16 || e.at == uncommitted || len(seqs) > parked.RenewRecords {
			return nil, nil
		}
		if e.next == 0 {
			return k, seqs
		}
		seq += uint64(e.next)
	}
}
