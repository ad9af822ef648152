package deliver

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// fold makes a partition's state out of its parked log. The newest record of an
// item counts: it stands for what came before.
type fold struct {
	p       *partition
	lines   []*line
	numbers map[string]uint32 // of lines
	entries []folded
	tidied  int // how many entries there were when they were last merged
	next    int64
	begun   int64 // offset of the newest; none if there is none
	on      moment
}

// folded is one record's word on an item.
type folded struct {
	rec   rec
	due   moment
	key   uint64
	line  uint32
	keyed bool
	over  bool
}

// newFold folds into a partition that holds nothing yet.
func newFold(p *partition, t *terms) *fold {
	p.terms = t
	return &fold{p: p, numbers: map[string]uint32{}, begun: none}
}

// add reads the next record of the log.
func (f *fold) add(in *broker.Incoming) error {
	f.p.logEnd = max(f.p.logEnd, in.Offset+1)
	header := recordOf(&in.View)
	switch {
	case header == nil && in.Type == tidemill.TypeParkedSettled:
		return f.settled(in)
	case header == nil && in.Type == tidemill.TypeParkedBegun:
		return f.started(in)
	case header == nil:
		return nil // nothing of ours, whoever put it there
	}
	var r record
	if err := r.decode(header); err != nil {
		return fmt.Errorf("read %s/%d at offset %d: %w", tidemill.Parked(f.p.stream), f.p.number, in.Offset, err)
	}
	n := f.line(r.trigger)
	e := folded{line: n, due: r.due, rec: rec{source: r.source, at: in.Offset, first: uint32(r.first / 1000), replay: f.p.replays.number(r.replay)}}
	t := f.lines[n].trigger
	if e.keyed = in.Key != nil && (t == nil || t.Delivery.Ordered); e.keyed {
		e.key = f.p.hash(in.Key)
	}
	f.next = max(f.next, r.next)
	f.append(e)
	return nil
}

func (f *fold) line(name string) uint32 {
	n, known := f.numbers[name]
	if !known {
		n = uint32(len(f.lines))
		f.lines = append(f.lines, f.p.line(name))
		f.numbers[name] = n
	}
	return n
}

func (f *fold) started(in *broker.Incoming) error {
	var b begun
	if err := json.Unmarshal(in.Data, &b); err != nil {
		return fmt.Errorf("read which triggers have begun on %s/%d at offset %d: %w", f.p.stream, f.p.number, in.Offset, err)
	}
	if b.From == nil {
		b.From = map[string]int64{}
	}
	f.p.begun, f.begun, f.on = b, in.Offset, momentOf(in.Time)
	f.next = max(f.next, b.Next)
	return nil
}

func (f *fold) settled(in *broker.Incoming) error {
	all, err := decodeSettled(in.Data)
	if err != nil {
		return fmt.Errorf("read what has ended of %s/%d at offset %d: %w", tidemill.Parked(f.p.stream), f.p.number, in.Offset, err)
	}
	for _, s := range all {
		n, replay := f.line(s.Trigger), f.p.replays.number(s.Replay)
		for _, source := range s.Offsets {
			f.append(folded{line: n, over: true, rec: rec{source: source, at: in.Offset, replay: replay}})
		}
	}
	return nil
}

func (f *fold) append(e folded) {
	f.entries = append(f.entries, e)
	if len(f.entries) > 2*f.tidied+1<<16 {
		f.merge()
	}
}

// merge keeps one entry an item, of those that are not over: a long log of what
// is over takes no memory.
func (f *fold) merge() {
	slices.SortFunc(f.entries, func(a, b folded) int {
		return cmp.Or(cmp.Compare(a.line, b.line), cmp.Compare(a.rec.source, b.rec.source), cmp.Compare(a.rec.replay, b.rec.replay), cmp.Compare(a.rec.at, b.rec.at))
	})
	kept := f.entries[:0]
	for n, e := range f.entries {
		last := n == len(f.entries)-1 || f.entries[n+1].line != e.line || !f.entries[n+1].rec.same(e.rec)
		if last && !e.over {
			kept = append(kept, e)
		}
	}
	f.entries, f.tidied = kept, len(kept)
}

// finish gives the partition its state, and returns the source offset from
// where it is to be read. proposed is where its group has come to, end is the
// end of the source. Where no state was ever written down triggers begin where the
// partition is read from, and else at the end.
func (f *fold) finish(proposed, end int64, now moment) int64 {
	p := f.p
	f.merge()
	for _, e := range f.entries {
		l := f.lines[e.line]
		c := l.of(e.key, e.keyed)
		c.add(e.rec)
		p.ledger.add(e.rec.at)
		if c.at == lonely {
			c.wait(e.due, now)
		}
	}
	f.entries = nil
	if f.begun != none {
		p.begunAt, p.begunOn = f.begun, f.on
		p.heard.next = p.begun.Acts
		maps.Copy(p.heard.open, p.begun.Letters)
		p.ledger.add(f.begun)
	}
	// A server that dies in the middle of a transaction may show what was parked
	// and forget the offset that belongs to it.
	position := max(proposed, f.next)
	p.base, p.next, p.latest = position, position, end
	if f.begun == none { // never written, or lost: then rather too early than too late
		p.latest = position
	}
	p.skewed = now.after(p.bounds.skew)
	p.apply(p.terms, now)
	return position
}
