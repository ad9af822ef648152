package score

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

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

// refAt returns the place of the event in the lists. There the copy also has the hash of the key, so
// that a key's count stays exact if the event can no longer be read.
func (x *heldHeader) refAt(at int64) parked.Ref {
	return parked.Ref{Order: at, Other: x.offset, Copy: uint32(x.copy)<<16 | uint32(hashOf(x.key))}
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
	f := newHeldFold(h)
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
	models  map[string]*parked.List // all parked events in the order of the input, with their identities as extra numbers
	records []foundRecord
	over    parked.Offsets    // events that were returned
	scored  map[[2]int64]bool // offsets and identities of events with an output
}

func newHeldFold(h *heldIndex) *heldFold {
	return &heldFold{h: h, models: map[string]*parked.List{}, scored: map[[2]int64]bool{}}
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
	model := f.h.modelOf(x.key)
	l := f.models[model]
	if l == nil {
		l = &parked.List{}
		f.models[strings.Clone(model)] = l
	}
	r := x.refAt(in.Offset)
	r.Order, r.Other, r.Extra = r.Other, r.Order, parkedIdentity(in)
	l.Add(r)
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
			f.drop(r.Offsets)
		}
	}
}

// drop marks events as returned.
func (f *heldFold) drop(offsets [][2]int64) {
	for _, r := range offsets {
		for at := max(r[0], 0); at <= min(r[1], f.h.end); at++ {
			if !f.over.Has(at) {
				f.over.Add(at)
			}
		}
	}
}

// scored reports that the output of an event exists. The event no longer has to wait.
func (h *heldIndex) scored(offset int64, what uint32) {
	if h.fold != nil {
		h.fold.scored[[2]int64{offset, int64(what)}] = true
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
	for model, l := range f.models {
		var same []parked.Ref // entries of one input offset
		for r, more := l.Pop(); more; r, more = l.Pop() {
			if len(same) > 0 && same[0].Order != r.Order {
				f.settle(model, same)
				same = same[:0]
			}
			same = append(same, r)
		}
		f.settle(model, same)
	}
}

// settle decides about the entries of one input offset. An event may be parked twice: by two owners
// without transactions, or by renew. The newest copy counts. If one entry of that copy was returned,
// all of them are.
func (f *heldFold) settle(model string, same []parked.Ref) {
	h, newest := f.h, int64(uncommitted)
	slices.SortFunc(same, func(a, b parked.Ref) int {
		return cmp.Or(cmp.Compare(a.Extra, b.Extra), -cmp.Compare(a.Copy, b.Copy), cmp.Compare(f.rank(a), f.rank(b)), cmp.Compare(a.Other, b.Other))
	})
	for i, r := range same {
		over := f.over.Has(r.Other) || i > 0 && same[i-1].Extra == r.Extra
		if !over && f.scored[[2]int64{r.Order, int64(r.Extra)}] {
			over = true
			h.owed = append(h.owed, r.Other)
		}
		ahead := r.Order >= h.passed
		if ahead && r.Other > newest {
			h.ahead[r.Order], newest = r.Extra, r.Other
		}
		switch {
		case !over:
			h.needed.Add(r.Other)
			h.tally(uint16(r.Copy), 1)
			h.add(h.modelNamed(model), parked.Ref{Order: r.Other, Other: r.Order, Copy: r.Copy})
		case ahead:
			h.needed.Add(r.Other)
			h.handled[r.Other] = r.Order
		}
	}
}

// rank orders returned events before others.
func (f *heldFold) rank(r parked.Ref) int {
	if f.over.Has(r.Other) {
		return 0
	}
	return 1
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
type renewal struct{ old, again *heldEvent }

// renew returns events that are to be parked again: those of a model that does not come, while many
// others come and go. They keep the mark where it is. Otherwise the log and the time of a
// rebuild would grow for as long as one model is missing. All events of a model move
// together. Mostly there is nothing to do.
//
// The copy number distinguishes the new event from the old one. If a renewal is torn,
// both exist and the newer one counts.
func (h *heldIndex) renew(ctx context.Context) (all []renewal, err error) {
	k, events, err := h.modelToRenew(ctx)
	if k == nil || err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.patience = 0
	k.first.Order, k.later = uncommitted, parked.List{}
	h.fix(k)
	for _, e := range events {
		again := &heldEvent{heldHeader: e.heldHeader}
		again.copy++
		h.expect(k, again)
		all = append(all, renewal{e, again})
	}
	return all, nil
}

// modelToRenew returns the model whose events are to be parked again, with their contents; nil
// if there is none or they cannot be read now.
func (h *heldIndex) modelToRenew(ctx context.Context) (k *heldModel, events []*heldEvent, err error) {
	k, refs := h.oldest()
	size := 0
	for _, r := range refs {
		h.mu.Lock()
		e := h.content(r.Order)
		h.mu.Unlock()
		if e == nil {
			e, err = h.fetch(ctx, r)
		}
		if e == nil || e.err != nil || err != nil || size > parked.RenewBytes {
			if size > parked.RenewBytes {
				h.warnPinned(k.name, len(refs))
			}
			h.notNow(events)
			return nil, nil, err
		}
		e.model = k.name
		events, size = append(events, e), size+e.size
	}
	return k, events, nil
}

// notNow gives back contents that were not used. The next renewal waits until the log
// has grown.
func (h *heldIndex) notNow(events []*heldEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range events {
		h.loaded.Put(e.at, e, e.size)
	}
	h.patience = h.length()
}

// warnPinned logs that the events of a model cannot be parked again, because they are too many or too large for one
// transaction.
func (h *heldIndex) warnPinned(model string, events int) {
	if h.pinned == model {
		return // it is known
	}
	h.pinned = model
	h.o.Log.Warn("scorer: too many events wait for a model to park them again; they become dead letters after the retention",
		"stream", h.stream, "partition", h.partition, "model", model, "events", events,
		"next", "tidemill scorers has the reason in the last error; repair the model or promote another version")
}

// length returns the length of the log that a rebuild reads.
func (h *heldIndex) length() int { return int(h.end - h.needed.Low(h.end)) }

// oldest returns the model of the lowest offset that is needed with all its events, if a renewal
// is due.
func (h *heldIndex) oldest() (*heldModel, []parked.Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.o.Renew.Due(h.length(), h.waiting, h.patience) {
		return nil, nil
	}
	low := h.needed.Low(h.end)
	for _, k := range h.models {
		if k.first.Order != low {
			continue // if it is none of them, the first event has been taken
		}
		if k.later.Len() >= parked.RenewRecords {
			h.warnPinned(k.name, k.later.Len()+1)
			break
		}
		if len(k.fresh) > 0 {
			break // these are newer, and are about to be parked first
		}
		refs := []parked.Ref{k.first}
		k.later.Each(func(r parked.Ref) { refs = append(refs, r) })
		if slices.ContainsFunc(refs, func(r parked.Ref) bool { return r.Copy>>16 == math.MaxUint16 }) {
			break
		}
		return k, refs
	}
	return nil, nil
}
