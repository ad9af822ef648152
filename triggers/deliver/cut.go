package deliver

import (
	"cmp"
	"slices"
)

// write is what one transaction does for a partition.
type write struct {
	slabs   []*slab // of the window's front; their deliveries become part of the transaction
	parks   []parked
	settled []ending
	begun   *begun
	begins  bool // triggers begin or end with it
	intake  *intake
	// of the parks the last so many are letters that are taken in
	recalled int
	next     int64 // the source offset that it commits up to
	mark     int64 // what lies below on the parked log is needed no more
}

// parked is a record to be written, and then where it lies.
type parked struct {
	item   *item
	record record
	at     int64
}

// allowance is what a transaction may still hold, of all its partitions. Kafka
// ends one that takes longer than ten seconds.
type allowance struct{ records, bytes int }

func newAllowance() *allowance { return &allowance{records: 5000, bytes: 4 << 20} }

func (a *allowance) spent() bool { return a.records <= 0 || a.bytes <= 0 }

// maxSettled keeps what is said to be over in one event of a fair size.
const maxSettled = 20_000

// ending is an item that is over and still stands on the parked log.
type ending struct {
	line *line
	rec  rec
}

// settle remembers to write down that a parked item is over.
func (p *partition) settle(i *item) {
	p.settled = append(p.settled, ending{i.chain.line, i.rec})
}

// cutAt is how many slabs of the window's front are to be parked: the shortest
// prefix with all that must be, unless that is more than a transaction takes.
func (p *partition) cutAt(now moment, force bool) int {
	end := 0
	crowded := p.crowded()
	for at, s := range p.window {
		if p.ripe(s, now) || force || crowded && at <= len(p.window)/2 {
			end = at + 1
		}
	}
	return end
}

// ripe tells whether a slab has to be parked now. What must be parked waits a
// little for company: most of what is beside it ends meanwhile.
func (p *partition) ripe(s *slab, now moment) bool {
	return s.open > 0 && (s.born.after(p.bounds.patience) <= now || s.must > 0 && s.since.after(p.bounds.linger) <= now)
}

// plan is what the next transaction shall write for the partition; nil is
// nothing. Until commit, or until the partition is closed, what it holds is not
// touched by anyone else.
func (p *partition) plan(room *allowance, now moment, force bool) *write {
	if p.writing != nil || p.closed || p.missing || room.spent() {
		return nil
	}
	w := &write{}
	p.planRewrites(w, room)
	p.planCut(w, p.cutAt(now, force), now, room)
	p.planSettled(w, room)
	p.planIntake(w, now, room)
	p.planBegun(w, now)
	if len(w.slabs) == 0 && len(w.parks) == 0 && len(w.settled) == 0 && w.begun == nil {
		return nil
	}
	if n := len(w.slabs); n > 0 {
		w.next = w.slabs[n-1].next
	}
	w.mark = p.ledger.low(p.logEnd)
	p.writing = w
	return w
}

func (p *partition) planRewrites(w *write, room *allowance) {
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

// planCut parks everything that is not over in the first slabs, whatever it is
// doing: an attempt that is under way then ends what was parked.
func (p *partition) planCut(w *write, slabs int, now moment, room *allowance) {
	for _, s := range p.window[:slabs] {
		if s.unfit > 0 {
			break
		}
		if s.open > 0 {
			if len(w.slabs) > 0 && (room.records < len(s.items) || room.bytes < s.bytes) {
				break
			}
			p.freeze(w, s, now, room)
		}
		w.slabs = append(w.slabs, s)
	}
}

func (p *partition) freeze(w *write, s *slab, now moment, room *allowance) {
	s.frozen = true
	for _, i := range s.items {
		if i.stage == over {
			continue
		}
		if i.rec.first == 0 {
			i.rec.first, i.first = uint32(now/1000), now
		}
		due := now
		if i.stage == parking || i.stage == resting {
			due = i.due
		}
		p.planPark(w, i, due, room)
	}
}

func (p *partition) planPark(w *write, i *item, due moment, room *allowance) {
	i.written = i.tries
	if i.recorded() {
		p.ledger.remove(i.rec.at)
	}
	past := i.past
	if viewSize(&i.event.view) > p.bounds.event {
		past = nil // it was parked when more could be; without its history it still can
	}
	w.parks = append(w.parks, parked{item: i, at: none, record: record{
		trigger: i.chain.line.name, source: i.rec.source, first: i.first, due: due, tries: i.tries, past: past,
		replay: p.replays.name(i.rec.replay), letter: i.letter}})
	room.records--
	room.bytes -= viewSize(&i.event.view)
}

func (p *partition) planSettled(w *write, room *allowance) {
	n := min(len(p.settled), maxSettled)
	w.settled = slices.Clone(p.settled[:n])
	p.settled = slices.Delete(p.settled, 0, n)
	if len(p.settled) == 0 {
		p.settled = nil
	}
	for _, e := range w.settled {
		p.ledger.remove(e.rec.at)
	}
	slices.SortFunc(w.settled, func(a, b ending) int {
		return cmp.Or(cmp.Compare(a.line.name, b.line.name), cmp.Compare(a.rec.replay, b.rec.replay), cmp.Compare(a.rec.source, b.rec.source))
	})
}

// commit says that a transaction has been committed, and where its records lie.
func (p *partition) commit(w *write, begunAt, end int64, now moment) {
	if p.closed || p.writing != w {
		return
	}
	p.writing, p.tidy = nil, now
	p.logEnd = max(p.logEnd, end)
	if w.begun != nil {
		p.begin(w.begun, begunAt, now)
	}
	for range w.slabs {
		p.shift()
	}
	p.trim()
	cut := len(w.parks) - w.recalled
	for n := range cut {
		p.settleCut(&w.parks[n], now)
	}
	if w.intake != nil {
		p.settleIntake(w, w.parks[cut:], now)
	}
	p.release(now)
}

// settleCut goes on with an item whose record has been written.
func (p *partition) settleCut(k *parked, now moment) {
	i := k.item
	anew := i.recorded()
	if anew {
		i.chain.recs[0].at = k.at
	}
	i.rec.at = k.at
	p.ledger.add(k.at)
	i.event.slab = nil
	i.must = false
	if !anew && i.stage != over {
		i.chain.add(i.rec)
	}
	c := i.chain
	switch i.stage {
	case over: // while it was being written
		p.settle(i)
	case parking:
		c.putAway(i, now)
	case flying, ready, resting, waiting:
		if i.until <= now || c.cold() || c.line.held() {
			p.letGo(i, now)
		} else {
			p.kept = append(p.kept, i)
		}
	}
}

// evictThrough forgets live items up to one. What lies before it is parked,
// because whatever is read before an item is parked with it or before.
func (c *chain) evictThrough(i *item) {
	for i.stage == waiting {
		c.evict()
	}
}
