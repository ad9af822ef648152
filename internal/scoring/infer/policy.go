package infer

import (
	"sync"
	"sync/atomic"
)

// policy decides which models are kept (W-TinyLFU: Einziger, Friedman, Manes 2017). A loaded model
// first enters a small FIFO window. When it leaves the window, it is kept only if it was used more
// often recently than the models that would have to leave the main part for it. So a sweep that
// uses every model once passes through the window and does not touch the rest.
//
// The main part is a ring with a hand (second chance): the hand skips an entry that was used since
// its last visit. An exact order of use would need one lock at each use; this needs one bit.
//
// Lock order: the policy's lock, then a shard's. No goroutine holds the locks of two shards.
type policy struct {
	sketch *sketch
	budget int64

	lock    sync.Mutex
	window  ring
	main    ring
	count   int
	evicted uint64 // entries pushed out of the main part
	refused uint64 // entries not admitted to it
	closed  bool
}

// place is an entry's position in the policy, guarded by its lock.
type place struct {
	in         *ring
	next, prev *entry
	weight     uint64 // popularity
	chosen     bool   // picked as a victim by the current search
}

// ring is a circle of entries. In the window, the hand is the oldest entry. In the main
// part, the hand is where the search for a victim continues.
type ring struct {
	hand  *entry
	bytes int64
}

func (r *ring) add(e *entry) { // the hand reaches it last
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

// windowPart is the share of the budget for the models that were loaded last.
const windowPart = 32

func (p *policy) windowBytes() int64 { return p.budget / windowPart }
func (p *policy) mainBytes() int64   { return p.budget - p.windowBytes() }

// admit adds a new entry and evicts the entries that no longer fit, which may include
// the new one. It returns false if the new one does not fit at all.
func (p *policy) admit(e *entry) bool {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.closed || e.bytes > p.mainBytes() {
		p.refused++
		return p.closed // the entry lives until it is released
	}
	e.setKept(true)
	p.count++
	if e.bytes > p.windowBytes() { // it would evict the whole window, and itself
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

// contest keeps an entry in the main part if it is worth more than all entries together
// that would have to leave for it. So a large model has no advantage over the small
// ones that fit into its memory.
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
	e.setKept(false)
}

// victims returns entries to evict so that some bytes become free; false if they are
// worth more than the new entry, or if all are in use.
func (p *policy) victims(need int64, worth int) (victims []*entry, ok bool) {
	if need <= 0 {
		return nil, true
	}
	at := p.main.hand
	for steps := 2 * p.count; need > 0 && worth > 0 && steps > 0 && at != nil; steps-- {
		e := at
		at = e.next
		if e.chosen || e.touched.Swap(false) || e.used() { // evicting an entry in use frees no memory
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

// leave evicts an entry, whatever its worth.
func (p *policy) leave(e *entry) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if e.in != nil {
		e.in.remove(e)
		p.drop(e)
	}
}

// evictAll evicts all entries.
func (p *policy) evictAll() {
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

// sketch estimates how often a hash was counted recently, in a fixed amount of memory. Each hash
// has four counters of four bits, and the smallest of them is the least wrong. A bit in front of
// them absorbs the first use, so that a model that is used once takes no counter. After enough
// uses, all counters are halved, so that old uses fade.
//
// The counters of a hash are in one cache line and are incremented without a lock. Concurrent
// increments are not lost. An increment during a halving may be lost, which an estimate can bear.
type sketch struct {
	counters []atomic.Uint64 // sixteen in each word; eight words are a cache line
	door     []atomic.Uint64
	added    atomic.Int64
	sample   atomic.Int64 // number of uses between two halvings
}

const (
	sketchLines = 4096 // 256 KiB; accurate enough for about 50,000 models
	lineWords   = 8
	rows        = 4
	doorWords   = 4096 // 32 KiB
	most        = 15

	// perModel is the number of uses that are remembered for each model in memory. With fewer, rare
	// uses are forgotten. With more, it takes long to notice that a model is no longer used.
	perModel   = 10
	leastModel = 512
)

func newSketch() *sketch {
	s := &sketch{counters: make([]atomic.Uint64, sketchLines*lineWords), door: make([]atomic.Uint64, doorWords)}
	s.hold(0)
	return s
}

// hold sets the number of models in memory.
func (s *sketch) hold(models int) { s.sample.Store(int64(max(models, leastModel)) * perModel) }

// counter returns the position of a hash's counter in a row: its word and the shift
// within it. A row has two words of a line.
func counter(h uint64, row int) (word int, shift uint) {
	line := int(h % sketchLines)
	bits := uint(h>>(32+row*8)) & 0xff
	return line*lineWords + row*2 + int(bits>>4&1), bits & 15 * 4
}

// bitAt returns the position of a hash's bit in the filter before the counters.
func bitAt(h uint64) (word int, bit uint64) {
	h = mix(h)
	return int(h % doorWords), 1 << (h >> 58)
}

// add counts a use.
func (s *sketch) add(h uint64) {
	word, bit := bitAt(h)
	if s.door[word].Load()&bit == 0 {
		s.door[word].Or(bit)
		s.counted()
		return
	}
	grown := false
	for row := range rows {
		word, shift := counter(h, row)
		grown = increment(&s.counters[word], shift) || grown
	}
	if grown { // a full counter learns nothing, and must not age the others
		s.counted()
	}
}

func increment(w *atomic.Uint64, shift uint) bool {
	for {
		was := w.Load()
		if was>>shift&most == most {
			return false
		}
		if w.CompareAndSwap(was, was+1<<shift) {
			return true
		}
	}
}

// uses estimates the number of recent uses, at most 16.
func (s *sketch) uses(h uint64) int {
	least := most
	for row := range rows {
		word, shift := counter(h, row)
		least = min(least, int(s.counters[word].Load()>>shift&most))
	}
	if word, bit := bitAt(h); s.door[word].Load()&bit != 0 {
		least++
	}
	return least
}

func (s *sketch) counted() {
	// The winner of the exchange halves the counters. Others go on counting.
	if n, full := s.added.Add(1), s.sample.Load(); n >= full && s.added.CompareAndSwap(n, full/2) {
		s.age()
	}
}

// age halves all counters.
func (s *sketch) age() {
	const others = 0x7777777777777777
	for i := range s.counters {
		w := &s.counters[i]
		for was := w.Load(); was != 0 && !w.CompareAndSwap(was, was>>1&others); was = w.Load() {
		}
	}
	for i := range s.door {
		s.door[i].Store(0)
	}
}
