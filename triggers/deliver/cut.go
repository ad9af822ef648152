package deliver

import (
	"cmp"
	"slices"

	"tidemill.dev/broker"
	"tidemill.dev/broker/parked"
)

// partitionWrite is a partition's part of one transaction.
type partitionWrite struct {
	batches  []*sourceBatch // batches of the window's front; the transaction ends their deliveries
	parks    []recordWrite
	settled  []endedItem
	begun    *triggerStarts
	begins   bool // whether triggers begin or end with it
	replayed *replayBatch
	renewed  int   // number of renewals, which come first in parks
	replays  int   // number of replayed dead letters, which come last in parks
	next     int64 // source offset that it commits up to
	mark     int64 // lowest offset of the parked log that is still needed
}

// recordWrite is a record to be written, and its offset once it is written.
type recordWrite struct {
	item   *item
	record record
	at     int64
}

// allowance is the room that a transaction still has for all its partitions. Kafka
// aborts a transaction that takes longer than ten seconds.
type allowance struct{ records, bytes int }

func newAllowance() *allowance { return &allowance{records: 5000, bytes: 4 << 20} }

func (a *allowance) spent() bool { return a.records <= 0 || a.bytes <= 0 }

// maxSettled bounds the number of ended items in one event.
const maxSettled = 20_000

// endedItem is an item that has ended and still has a record on the parked log.
type endedItem struct {
	trigger *triggerState
	ref     recordRef
}

// queueEndNote queues the note that a parked item has ended.
func (p *partition) queueEndNote(i *item) {
	p.settled = append(p.settled, endedItem{i.queue.trigger, i.ref})
}

// cutAt returns how many batches at the window's front must be parked: the shortest
// prefix that contains all that must be, unless a transaction takes less.
func (p *partition) cutAt(now millis, force bool) int {
	end := 0
	crowded := p.crowded()
	for at, s := range p.cuttable() {
		if p.ripe(s, now) || force || crowded && at <= len(p.window)/2 {
			end = at + 1
		}
	}
	return end
}

// cuttable returns the batches that a cut may park. No cut passes an item that cannot be parked and has not ended.
func (p *partition) cuttable() []*sourceBatch {
	for n, s := range p.window {
		if s.unfit > 0 {
			return p.window[:n]
		}
	}
	return p.window
}

// ripe reports whether a batch has to be parked now. An item that must be parked waits
// a little, because most other items of its batch end meanwhile.
func (p *partition) ripe(s *sourceBatch, now millis) bool {
	return s.open > 0 && (s.born.add(p.bounds.patience) <= now || s.must > 0 && s.since.add(p.bounds.linger) <= now)
}

// plan returns what the next transaction writes for the partition; nil is nothing. The
// plan stays valid until commit or until the partition is closed.
func (p *partition) plan(room *allowance, now millis, force bool) *partitionWrite {
	if p.writing != nil || p.closed || p.missing || room.spent() {
		return nil
	}
	w := &partitionWrite{}
	p.planRenewals(w, room)
	p.planRewrites(w, room)
	p.planCut(w, p.cutAt(now, force), now, room)
	p.planSettled(w, room)
	p.planReplay(w, now, room)
	p.planBegun(w, now)
	if len(w.batches) == 0 && len(w.parks) == 0 && len(w.settled) == 0 && w.begun == nil {
		return nil
	}
	if n := len(w.batches); n > 0 {
		w.next = w.batches[n-1].next
	}
	w.mark = p.needed.Low(p.logEnd)
	p.writing = w
	return w
}

func (p *partition) planRewrites(w *partitionWrite, room *allowance) {
	n := 0
	for _, i := range p.rewrites {
		if room.spent() {
			break
		}
		n++
		p.planPark(w, i, i.due, room)
	}
	p.rewrites = slices.Delete(p.rewrites, 0, n)
	if len(p.rewrites) == 0 {
		p.rewrites = nil
	}
}

// planCut parks every item of the first batches that has not ended, whatever its stage.
// An attempt under way then ends a parked item.
func (p *partition) planCut(w *partitionWrite, slabs int, now millis, room *allowance) {
	for _, s := range p.window[:slabs] {
		if s.open > 0 {
			if len(w.batches) > 0 && (room.records < len(s.items) || room.bytes < s.bytes) {
				break
			}
			p.freeze(w, s, now, room)
		}
		w.batches = append(w.batches, s)
	}
}

func (p *partition) freeze(w *partitionWrite, s *sourceBatch, now millis, room *allowance) {
	s.frozen = true
	for _, i := range s.items {
		if i.stage == over {
			continue
		}
		if i.ref.first == 0 {
			i.ref.first, i.first = uint32(now/1000), now
		}
		due := now
		if i.stage == parking || i.stage == resting {
			due = i.due
		}
		p.planPark(w, i, due, room)
	}
}

func (p *partition) planPark(w *partitionWrite, i *item, due millis, room *allowance) {
	i.written = i.tries
	if i.recorded() {
		p.needed.Remove(i.ref.at)
	}
	past := i.past
	if parked.Size(&i.event.view) > p.bounds.event {
		past = nil // it fits without its history: the size limit has fallen since it was parked
	}
	w.parks = append(w.parks, recordWrite{item: i, at: none, record: record{
		trigger: i.queue.trigger.name, source: i.ref.source, first: i.first, due: due, tries: i.tries, past: past,
		replay: p.replays.name(i.ref.replay), letter: i.letter}})
	room.records--
	room.bytes -= parked.Size(&i.event.view)
}

func (p *partition) planSettled(w *partitionWrite, room *allowance) {
	n := min(len(p.settled), maxSettled)
	w.settled = slices.Clone(p.settled[:n])
	p.settled = slices.Delete(p.settled, 0, n)
	if len(p.settled) == 0 {
		p.settled = nil
	}
	for _, e := range w.settled {
		p.needed.Remove(e.ref.at)
	}
	slices.SortFunc(w.settled, func(a, b endedItem) int {
		return cmp.Or(cmp.Compare(a.trigger.name, b.trigger.name), cmp.Compare(a.ref.replay, b.ref.replay), cmp.Compare(a.ref.source, b.ref.source))
	})
}

// commit reports that a transaction has been committed, and the offsets of its records.
func (p *partition) commit(w *partitionWrite, begunAt, end int64, now millis) {
	if p.closed || p.writing != w {
		return
	}
	p.writing, p.tidy, p.mark = nil, now, w.mark
	p.logEnd = max(p.logEnd, end)
	if w.begun != nil {
		p.begin(w.begun, begunAt, now)
	}
	for range w.batches {
		p.shift()
	}
	p.trim()
	cut := len(w.parks) - w.replays
	for n := range w.renewed {
		p.settleRenewal(&w.parks[n])
		p.stirred = true // the loader checks for further renewals
	}
	for n := w.renewed; n < cut; n++ {
		p.settleCut(&w.parks[n], now)
	}
	if w.replayed != nil {
		p.settleReplay(w, w.parks[cut:], now)
	}
	p.release(now)
}

// settleCut updates an item whose record has been written.
func (p *partition) settleCut(k *recordWrite, now millis) {
	i := k.item
	rewritten := i.recorded()
	if rewritten {
		i.queue.refs[0].at = k.at
	}
	i.ref.at = k.at
	p.needed.Add(k.at)
	i.event.slab = nil
	i.must = false
	if i.queue == &i.queue.trigger.spillway {
		p.settleSpilled(i)
		return
	}
	if !rewritten && i.stage != over {
		i.queue.add(i.ref)
	}
	c := i.queue
	switch i.stage {
	case over: // it ended while its record was being written
		p.queueEndNote(i)
	case parking:
		c.putAway(i, now)
	case flying, ready, resting, waiting:
		if i.until <= now || c.mustReload() || c.trigger.holdsBack() {
			p.drop(i, now)
		} else {
			p.kept = append(p.kept, i)
		}
	}
}

// evictThrough forgets live items up to one. The items before it are parked, because an
// item is never parked later than those that were read after it.
func (c *keyQueue) evictThrough(i *item) {
	for i.stage == waiting {
		c.evict()
	}
}

// An item that a cut parks because of others stays in memory until its own patience is
// over: its turn may come at any moment, and reading it back costs more. It does not
// stay longer, because a subscriber that hangs would then fill the memory, cut by cut.

// mustWait reports whether an item is not to be sent now. An item that only needs a dead letter
// does not wait for the end of a pause, because the log would have lost it by then.
func (i *item) mustWait() bool {
	return i.queue.trigger.holds(i) && i.queue.trigger.trigger != nil && !i.doomed
}

// obsolete reports whether sending an item has no use: only its record is left, or the
// partition has another owner by now.
func (i *item) obsolete() bool {
	return i.gone.Load() || i.part.home != nil && i.part.home.ctx.Err() != nil
}

// forget keeps only the record of an item. Its sender may still have the item in a
// queue, but without its event.
func (i *item) forget() {
	i.stage, i.event = evicted, nil
	i.gone.Store(true)
}

// dropKept drops kept items that have run out of patience.
func (p *partition) dropKept(now millis) {
	n := 0
	for n < len(p.kept) && p.kept[n].until <= now {
		p.drop(p.kept[n], now)
		p.kept[n] = nil
		n++
	}
	if p.kept = p.kept[n:]; len(p.kept) == 0 {
		p.kept = nil
	}
}

// drop keeps only the record of a parked item, unless it is being sent.
func (p *partition) drop(i *item, now millis) {
	switch c := i.queue; i.stage {
	case ready, resting:
		if i.stage == ready {
			i.due = now
		}
		i.stage = parking
		c.putAway(i, now)
		c.parkAll(now)
	case waiting:
		c.evictThrough(i)
	}
}

// putAway keeps only the record of a parked head if the record has all its attempts.
// Otherwise the record is written again first.
func (c *keyQueue) putAway(i *item, now millis) {
	if i.written == i.tries {
		c.leave(i.due, now)
		return
	}
	c.trigger.part.rewrites = append(c.trigger.part.rewrites, i)
}

// renewAtOnce is how many records are read for a renewal at once.
const renewAtOnce = 256

// renew returns parked records that should be read and written again. They keep the mark
// from moving, while many later records come and go. The records of a paused trigger are
// an example. Without a renewal each rebuild would read all those records.
//
// A renewal changes no order, because items are sent in the order of the source. A scan covers the
// first eighth of the log, so only a few scans of the index move the mark to the end.
func (p *partition) renew(n int) []load {
	if p.closed || p.leaving || p.missing || len(p.renewals) > 0 {
		return nil
	}
	if len(p.pinned) == 0 {
		p.findPinned()
	}
	n = min(n, len(p.pinned))
	some := p.pinned[:n]
	if p.pinned = p.pinned[n:]; len(p.pinned) == 0 {
		p.pinned = nil
	}
	return some
}

// findPinned lists the records at the beginning of the log, if a renewal is due. Only
// queues that wait for their first record count: the others make progress by themselves.
func (p *partition) findPinned() {
	low := p.needed.Low(p.logEnd)
	length := int(p.logEnd - low)
	if length < p.scanned { // the mark has moved
		p.scanned = 0
	}
	if !p.bounds.renewal.Due(length, p.needed.Len(), p.scanned) {
		return
	}
	p.scanned = length
	end := low + max(int64(length/8), 1)
	for _, l := range p.states {
		for _, c := range l.heap {
			for _, r := range c.refs {
				if r.at < end {
					p.pinned = append(p.pinned, load{queue: c, ref: r})
				}
			}
		}
	}
	slices.SortFunc(p.pinned, func(a, b load) int { return cmp.Compare(a.ref.at, b.ref.at) })
}

// renewed accepts a record that was read to be written again.
func (p *partition) renewed(d load, r *record, v *broker.View) {
	if p.closed || p.renewing > parked.RenewBytes || !d.queue.pins(d.ref) {
		return
	}
	p.renewing += parked.Size(v)
	p.renewals = append(p.renewals, &item{part: p, queue: d.queue, ref: d.ref, event: &sourceEvent{view: *v}, stage: evicted,
		first: r.first, due: r.due, tries: r.tries, past: r.past, letter: r.letter})
}

// planRenewals writes the renewed records, unless their items have moved on.
func (p *partition) planRenewals(w *partitionWrite, room *allowance) {
	n := 0
	for _, i := range p.renewals {
		if room.spent() {
			break
		}
		n++
		p.renewing -= parked.Size(&i.event.view)
		if p.needed.Has(i.ref.at) && i.queue.pins(i.ref) { // it may have been read twice
			p.planPark(w, i, i.due, room)
		}
	}
	w.renewed = len(w.parks)
	if p.renewals = slices.Delete(p.renewals, 0, n); len(p.renewals) == 0 {
		p.renewals, p.renewing = nil, 0
	}
}

// settleRenewal moves the index to the new record. Its item may have become the queue's
// head while the transaction was under way, or it may have ended.
func (p *partition) settleRenewal(k *recordWrite) {
	c, old := k.item.queue, k.item.ref
	p.needed.Add(k.at)
	if n := c.find(old); n >= 0 {
		c.refs[n].at = k.at
		if c.head != nil && c.head.ref == old {
			c.head.ref.at = k.at
		}
		return
	}
	for n := range p.settled {
		if e := &p.settled[n]; e.trigger == c.trigger && e.ref == old {
			e.ref.at = k.at
			return
		}
	}
	p.needed.Remove(k.at)
}

// find returns the index of a record in the queue; -1 if the queue does not have it.
// The first record may be out of order, because an item on its way is not overtaken.
func (c *keyQueue) find(r recordRef) int {
	if len(c.refs) == 0 {
		return -1
	}
	if c.refs[0] == r {
		return 0
	}
	n, found := slices.BinarySearchFunc(c.refs[1:], r, func(a, b recordRef) int {
		return cmp.Or(cmp.Compare(a.source, b.source), cmp.Compare(a.replay, b.replay))
	})
	if !found || c.refs[n+1] != r {
		return -1
	}
	return n + 1
}

// pins reports whether only a record is left of its item. An item in memory knows the
// offset of its record, and its end settles that record.
func (c *keyQueue) pins(r recordRef) bool {
	if c.head != nil && c.head.ref.same(r) || c.find(r) < 0 {
		return false
	}
	return !slices.ContainsFunc(c.live, func(i *item) bool { return i.ref.same(r) })
}
