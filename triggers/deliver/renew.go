package deliver

import (
	"cmp"
	"slices"

	"tidemill.dev/broker"
	"tidemill.dev/broker/parked"
)

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
