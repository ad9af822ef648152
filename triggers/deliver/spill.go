package deliver

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sort"

	"tidemill.dev/broker"
)

// The index of parked records is bounded. The oldest records of a trigger are in its queues; the
// others are spilled: only their places are known, in a list of four bytes each. When half of the
// index is empty again, the oldest spilled records are read from the parked log, and join their queues.
//
// A spilled record has no key, so any key may have one. Until nothing is spilled, new events of an
// ordered trigger therefore join no queue: they wait in the spillway until they are parked, and are
// spilled then. The order of a key holds, because spilled records come back in the order of the source.

// indexed returns the number of the trigger's records that are in queues.
func (ts *triggerState) indexed() int { return ts.parked - ts.spilled.n - len(ts.refill.refs) }

// full reports whether the index has no room for another record.
func (ts *triggerState) full() bool { return ts.indexed() >= ts.part.bounds.index }

// spills reports whether a record of a key may be spilled, so that later events of its key have to
// follow it there.
func (ts *triggerState) spills() bool {
	return ts.spilled.n > 0 || ts.refill.left > 0 || len(ts.spillway.live) > 0 || ts.full()
}

// spill moves a record that has just been parked, or whose queue has nothing else, out of the index.
func (ts *triggerState) spill(r recordRef) {
	ts.spilled.add(r)
	ts.part.stirred = ts.part.stirred || ts.mayRefill()
}

// mayRefill reports whether spilled records should be read back.
func (ts *triggerState) mayRefill() bool {
	return ts.spilled.n > 0 && ts.refill.left == 0 && ts.indexed() <= ts.part.bounds.index/2
}

// leaveIndex spills a queue that has only one record, if the index is full. It reports whether it
// did. A renewal under way must find its record in the queue.
func (c *keyQueue) leaveIndex() bool {
	if !c.trigger.full() || len(c.refs) != 1 || len(c.live) > 0 || c.trigger.part.writing != nil {
		return false
	}
	r := c.refs[0]
	c.refs = nil
	c.trigger.forget(c)
	c.trigger.spill(r)
	return true
}

// settleSpilled spills an item of the spillway whose record has been written.
func (p *partition) settleSpilled(i *item) {
	ts := i.queue.trigger
	ts.tally(i.ref, 1)
	i.queue.evictThrough(i)
	ts.spill(i.ref)
}

// refillAtOnce bounds the records that are read back at once, because the load loop reads nothing
// else meanwhile.
const refillAtOnce = 4 << 10

// refill returns spilled records to be read back, in the order of the log.
func (p *partition) refill(ts *triggerState, now millis) []load {
	if p.closed || p.leaving || p.missing || !ts.mayRefill() || now < ts.refill.notBefore {
		return nil
	}
	refs := ts.spilled.take(min(refillAtOnce, max(p.bounds.index/2, 1)))
	ts.refill = refill{refs: refs, left: len(refs)}
	all := make([]load, len(refs))
	for n, r := range refs {
		all[n] = load{ref: r, back: ts}
	}
	slices.SortFunc(all, func(a, b load) int { return cmp.Compare(a.ref.at, b.ref.at) })
	return all
}

// refill is a number of spilled records that are being read. They join their queues only when all have
// been read: otherwise a record would be sent before an earlier one of its key that could not be read.
type refill struct {
	refs   []recordRef
	read   []foldEntry
	left   int // records whose reading has not ended
	failed bool

	notBefore millis // time of the next try after a failure
}

// refilled accepts a record that was read back. Without a view the record cannot be read; its dead
// letter says so when it is loaded.
func (p *partition) refilled(d load, r *record, v *broker.View, now millis) {
	if p.closed || d.back.refill.left == 0 {
		return
	}
	e := foldEntry{ref: d.ref, due: now}
	if v != nil {
		t := d.back.trigger
		e.due, e.keyed = r.due, v.Key != nil && (t == nil || t.Delivery.Ordered)
		if e.keyed {
			e.key = p.hash(v.Key)
		}
	}
	d.back.refill.read = append(d.back.refill.read, e)
	p.endRefill(d.back, now)
}

// notRefilled reports that a record could not be read for now.
func (p *partition) notRefilled(d load, now millis) {
	if p.closed || d.back.refill.left == 0 {
		return
	}
	d.back.refill.failed = true
	p.endRefill(d.back, now)
}

// endRefill moves records to their queues once all have been read, or back to the spilled ones if
// one could not be read.
func (p *partition) endRefill(ts *triggerState, now millis) {
	if ts.refill.left--; ts.refill.left > 0 {
		return
	}
	done := ts.refill
	ts.refill = refill{}
	if done.failed {
		ts.refill.notBefore = now.add(loadAgain)
		for _, r := range done.refs {
			ts.spilled.add(r)
		}
		return
	}
	slices.SortFunc(done.read, func(a, b foldEntry) int { return compareRefs(a.ref, b.ref) })
	for n := range done.read {
		e := &done.read[n]
		c := ts.queueOf(e.key, e.keyed)
		c.insert(e.ref)
		if c.at == lonely {
			c.waitUntil(e.due, now)
		}
	}
	p.stirred = p.stirred || ts.mayRefill()
}

// spillList is a list of records in the order of their items: source offset, then replay. It
// takes about four bytes a record, because neighbours differ little and only the differences are
// stored.
type spillList struct {
	blocks []spillBlock
	n      int
}

// spillBlock has at least one record.
type spillBlock struct {
	first recordRef
	last  recordRef
	n     int
	data  []byte // differences between neighbours
}

// maxSpillBlock bounds the records of a block, because an insertion decodes one.
const maxSpillBlock = 256

// compareRefs orders records as the items of a queue are.
func compareRefs(a, b recordRef) int {
	return cmp.Or(cmp.Compare(a.source, b.source), cmp.Compare(a.replay, b.replay))
}

// add adds a record in its place, which is nearly always the end.
func (l *spillList) add(r recordRef) {
	l.n++
	last := len(l.blocks) - 1
	if last < 0 || !r.isBefore(l.blocks[last].last) {
		if last < 0 || l.blocks[last].n >= maxSpillBlock {
			l.blocks = append(l.blocks, spillBlock{first: r, last: r, n: 1})
			return
		}
		l.blocks[last].append(r)
		return
	}
	at := sort.Search(len(l.blocks), func(n int) bool { return r.isBefore(l.blocks[n].last) })
	all := l.blocks[at].records()
	n, _ := slices.BinarySearchFunc(all, r, compareRefs)
	l.blocks = slices.Replace(l.blocks, at, at+1, blocksOf(slices.Insert(all, n, r))...)
}

// blocksOf makes one block of some records, or two if they are too many for one.
func blocksOf(all []recordRef) []spillBlock {
	half := len(all)
	if half > maxSpillBlock {
		half /= 2
	}
	var blocks []spillBlock
	for part := range slices.Chunk(all, half) {
		b := spillBlock{first: part[0], last: part[0], n: 1}
		for _, r := range part[1:] {
			b.append(r)
		}
		b.data = slices.Clip(b.data)
		blocks = append(blocks, b)
	}
	return blocks
}

// take removes and returns the first records, at most n.
func (l *spillList) take(n int) []recordRef {
	var all []recordRef
	for len(l.blocks) > 0 && len(all) < n {
		of := l.blocks[0].records()
		l.blocks[0] = spillBlock{}
		l.blocks = l.blocks[1:]
		if most := n - len(all); len(of) > most {
			l.blocks = append(blocksOf(of[most:]), l.blocks...)
			of = of[:most]
		}
		all = append(all, of...)
	}
	if l.n -= len(all); l.n == 0 {
		l.blocks = nil
	}
	return all
}

// merge applies newer records, in the order of their items. A record replaces the one of its item;
// one of an item that is over removes it.
func (l *spillList) merge(entries []foldEntry) {
	keep := sort.Search(len(l.blocks), func(n int) bool { return len(entries) > 0 && !l.blocks[n].last.isBefore(entries[0].ref) })
	old := l.blocks[keep:]
	merged := spillList{blocks: l.blocks[:keep:keep]}
	for _, b := range l.blocks[:keep] {
		merged.n += b.n
	}
	for _, b := range old {
		for _, r := range b.records() {
			for len(entries) > 0 && entries[0].ref.isBefore(r) {
				merged.addNew(&entries[0])
				entries = entries[1:]
			}
			if len(entries) == 0 || !entries[0].ref.same(r) {
				merged.add(r)
			}
		}
	}
	for n := range entries {
		merged.addNew(&entries[n])
	}
	*l = merged
}

func (l *spillList) addNew(e *foldEntry) {
	if !e.over {
		l.add(e.ref)
	}
}

// each calls do with all records in order.
func (l *spillList) each(do func(recordRef)) {
	for n := range l.blocks {
		for _, r := range l.blocks[n].records() {
			do(r)
		}
	}
}

func (b *spillBlock) append(r recordRef) {
	p := b.last
	d := binary.AppendUvarint(b.data, uint64(r.source-p.source))
	d = binary.AppendVarint(d, r.at-p.at)
	d = binary.AppendVarint(d, int64(r.first)-int64(p.first))
	b.data = binary.AppendVarint(d, int64(r.replay)-int64(p.replay))
	b.last = r
	b.n++
}

// records decodes a block.
func (b *spillBlock) records() []recordRef {
	all := make([]recordRef, 1, b.n+1)
	all[0] = b.first
	r, d := b.first, b.data
	number := func() int64 {
		v, size := binary.Varint(d)
		d = d[size:]
		return v
	}
	for len(d) > 0 {
		source, size := binary.Uvarint(d)
		d = d[size:]
		r.source += int64(source)
		r.at += number()
		r.first = uint32(int64(r.first) + number())
		r.replay = uint32(int64(r.replay) + number())
		all = append(all, r)
	}
	return all
}
