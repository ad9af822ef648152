package deliver

import (
	"cmp"
	"slices"

	"tidemill.dev/broker"
	"tidemill.dev/broker/parked"
)

// The index of parked records is bounded. The oldest records of a trigger are in its queues; the
// others are spilled: only their places are known, in a [parked.List]. When half of the
// index is empty again, the oldest spilled records are read from the parked log, and join their queues.
//
// A spilled record has no key, so any key may have one. Until nothing is spilled, new events of an
// ordered trigger therefore join no queue: they wait in the spillway until they are parked, and are
// spilled then. The order of a key holds, because spilled records come back in the order of the source.

// indexed returns the number of the trigger's records that are in queues.
func (ts *triggerState) indexed() int { return ts.parked - ts.spilled.Len() - len(ts.refill.refs) }

// full reports whether the index has no room for another record.
func (ts *triggerState) full() bool { return ts.indexed() >= ts.part.bounds.index }

// spills reports whether a record of a key may be spilled, so that later events of its key have to
// follow it there.
func (ts *triggerState) spills() bool {
	return ts.spilled.Len() > 0 || ts.refill.left > 0 || len(ts.spillway.live) > 0 || ts.full()
}

// spill moves a record that has just been parked, or whose queue has nothing else, out of the index.
func (ts *triggerState) spill(r recordRef) {
	ts.spilled.Add(r.packed())
	ts.part.stirred = ts.part.stirred || ts.mayRefill()
}

// mayRefill reports whether spilled records should be read back.
func (ts *triggerState) mayRefill() bool {
	return ts.spilled.Len() > 0 && ts.refill.left == 0 && ts.indexed() <= ts.part.bounds.index/2
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
	all := make([]load, min(refillAtOnce, max(p.bounds.index/2, 1), ts.spilled.Len()))
	refs := make([]recordRef, len(all))
	for n := range all {
		r, _ := ts.spilled.Pop()
		refs[n] = recordRefOf(r)
		all[n] = load{ref: refs[n], back: ts}
	}
	ts.refill = refill{refs: refs, left: len(refs)}
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
			ts.spilled.Add(r.packed())
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

// packed returns the record as a list of spilled records has it.
func (r recordRef) packed() parked.Ref {
	return parked.Ref{Order: r.source, Other: r.at, Copy: r.replay, Extra: r.first}
}

func recordRefOf(r parked.Ref) recordRef {
	return recordRef{source: r.Order, at: r.Other, replay: r.Copy, first: r.Extra}
}

// compareRefs orders records as the items of a queue are.
func compareRefs(a, b recordRef) int { return a.packed().Compare(b.packed()) }
