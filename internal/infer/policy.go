package infer

import "sync"

// policy decides what is kept (W-TinyLFU: Einziger, Friedman, Manes 2017). What
// has just been loaded goes through a small window, first in, first out. At its
// end it is kept only if it has been asked for more often, lately, than what would
// have to leave the main part for it: so a sweep over all models, which asks for
// each once, passes through the window and leaves the rest alone.
//
// The main part is a ring with a hand that gives what was used since it came by a
// second chance. Exact order of use would have to be noted under one lock at each
// use; this is one bit.
//
// Lock order: the policy's, then a shard's. Nobody holds two shards'.
type policy struct {
	sketch *sketch
	budget int64

	lock    sync.Mutex
	window  ring
	main    ring
	count   int
	evicted uint64 // pushed out of the main part
	refused uint64 // not let in
	closed  bool
}

// place is where an entry is: the policy's, under its lock.
type place struct {
	in         *ring
	next, prev *entry
	weight     uint64 // popularity
	chosen     bool   // as a victim, by the search that is going on
}

// ring is a circle of entries; hand is the oldest in the window, and where the
// search for a victim goes on in the main part.
type ring struct {
	hand  *entry
	bytes int64
}

func (r *ring) add(e *entry) { // behind all others, as the hand sees it
	e.in = r
	r.bytes += e.bytes
	if r.hand == nil {
		r.hand, e.next, e.prev = e, e, e
		return
	}
	e.next, e.prev = r.hand, r.hand.prev
	e.prev.next, e.next.prev = e, e
}

func (r *ring) remove(e *entry) {
	r.bytes -= e.bytes
	if e.next == e {
		r.hand = nil
	} else {
		e.prev.next, e.next.prev = e.next, e.prev
		if r.hand == e {
			r.hand = e.next
		}
	}
	e.place = place{weight: e.weight}
}

// windowPart of the budget is what was loaded last.
const windowPart = 32

func (p *policy) windowBytes() int64 { return p.budget / windowPart }
func (p *policy) mainBytes() int64   { return p.budget - p.windowBytes() }

// admit takes a new entry in, and pushes out what has no place any more, perhaps
// the same; false if it has none at all.
func (p *policy) admit(e *entry) bool {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.closed || e.bytes > p.mainBytes() {
		p.refused++
		return p.closed // it lives until it is released
	}
	e.keep(true)
	p.count++
	if e.bytes > p.windowBytes() { // it would push all others out of the window, and itself
		p.contest(e)
	} else {
		p.window.add(e)
	}
	for p.window.bytes > p.windowBytes() {
		oldest := p.window.hand
		p.window.remove(oldest)
		p.contest(oldest)
	}
	p.sketch.hold(p.count)
	return true
}

// contest keeps an entry in the main part if it is worth more than those that
// would have to leave for it, all together: so a large model is no better off than
// the small ones that its memory would hold.
func (p *policy) contest(e *entry) {
	victims, ok := p.victims(e.bytes-(p.mainBytes()-p.main.bytes), p.sketch.uses(e.weight))
	if !ok {
		p.refused++
		p.drop(e)
		return
	}
	for _, v := range victims {
		p.evicted++
		p.main.remove(v)
		p.drop(v)
	}
	p.main.add(e)
}

func (p *policy) drop(e *entry) {
	p.count--
	e.keep(false)
}

// victims are those that leave so that there is room for some bytes; false if that
// is not worth it, or if all are in use.
func (p *policy) victims(need int64, worth int) (victims []*entry, ok bool) {
	if need <= 0 {
		return nil, true
	}
	at := p.main.hand
	for steps := 2 * p.count; need > 0 && worth > 0 && steps > 0 && at != nil; steps-- {
		e := at
		at = e.next
		if e.chosen || e.touched.Swap(false) || e.used() { // to push out what is used frees no memory
			continue
		}
		e.chosen = true
		victims, need, worth = append(victims, e), need-e.bytes, worth-p.sketch.uses(e.weight)
	}
	p.main.hand = at
	for _, v := range victims {
		v.chosen = false
	}
	return victims, need <= 0 && worth > 0
}

// leave pushes an entry out whatever it is worth.
func (p *policy) leave(e *entry) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if e.in != nil {
		e.in.remove(e)
		p.drop(e)
	}
}

// end pushes all out.
func (p *policy) end() {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.closed = true
	for _, r := range []*ring{&p.window, &p.main} {
		for r.hand != nil {
			e := r.hand
			r.remove(e)
			p.drop(e)
		}
	}
}
