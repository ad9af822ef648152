package deliver

import (
	"maps"
	"slices"
)

// begun is a partition's state that is not about single items. It stands on the
// parked log, so that whoever has the partition next knows it.
type begun struct {
	// From is where each trigger that reads the stream begins.
	From map[string]int64 `json:"from"`
	// Acts is how far the partition knows what people asked for, and Letters
	// how many dead letters it has taken in of acts that ask for more.
	Acts    int64         `json:"acts"`
	Letters map[int64]int `json:"letters,omitempty"`
	// Next is an offset of the source that its readers had come to.
	Next int64 `json:"next"`
}

// apply gives the partition the terms that hold from now on.
func (p *partition) apply(t *terms, now moment) {
	p.terms = t
	for name, l := range p.lines {
		l.change(t.triggers[name], t.paused(name), now)
	}
	p.reckon()
	p.release(now)
}

// reckon compares the triggers that read the stream with those that have begun.
func (p *partition) reckon() {
	p.wanted = nil
	news := p.begun.next(p.terms.plan.triggers, max(p.next, p.latest))
	news.Next = p.base
	if !maps.Equal(news.From, p.begun.From) || p.begunAt == none {
		p.wanted = &news
	}
	p.reads = p.reads[:0]
	for _, name := range p.terms.plan.triggers {
		p.reads = append(p.reads, planned{p.line(name), news.From[name]})
	}
}

// next is the state with just the given triggers; new ones begin at an offset.
func (b *begun) next(triggers []string, at int64) begun {
	news := begun{From: make(map[string]int64, len(triggers))}
	for _, name := range triggers {
		from, known := b.From[name]
		if !known {
			from = at
		}
		news.From[name] = from
	}
	return news
}

// skewing tells whether another config than ours may be the newer one: triggers
// have begun here that ours does not have.
func (p *partition) skewing(now moment) bool {
	if now >= p.skewed {
		return false
	}
	for name := range p.begun.From {
		if !slices.Contains(p.terms.plan.triggers, name) {
			return true
		}
	}
	return false
}

// holding tells whether what is read must wait. It waits for triggers that go
// as for those that come: one that comes back before it was written down that
// it had gone would miss what was read without it.
func (p *partition) holding(now moment) bool {
	return !p.opened || p.missing || p.skewing(now) || p.wanted != nil || p.writing != nil && p.writing.begins
}

// manyActs is how many acts with something for us are looked through again at
// most by who takes over.
const manyActs = 64

// longLog is how many records may lie behind begun before it is written anew,
// lest it alone make rebuilds long.
const longLog = 50_000

func (p *partition) planBegun(w *write, now moment) {
	switch {
	case p.skewing(now):
	case p.wanted != nil:
		w.begun, p.wanted, w.begins = p.wanted, nil, true
	case p.stale(now), w.intake != nil:
		again := p.begun // written once more
		again.From, again.Next = maps.Clone(p.begun.From), p.base
		w.begun = &again
	}
	if w.begun == nil {
		return
	}
	w.begun.Acts, w.begun.Letters = p.heard.written(w.intake)
	if p.begunAt != none {
		p.ledger.remove(p.begunAt)
	}
}

// stale tells whether begun should be written anew: it nears its retention, or
// it is all that keeps the log from being passed over.
func (p *partition) stale(now moment) bool {
	if p.begunAt == none {
		return false
	}
	old := p.bounds.retention > 0 && p.begunOn.after(p.bounds.retention/4) <= now
	return old || p.heard.unsaved > manyActs || p.logEnd-p.begunAt > longLog && p.ledger.low(p.logEnd) <= p.begunAt
}

// begin goes on from a state that has been written.
func (p *partition) begin(b *begun, at int64, now moment) {
	p.ledger.add(at)
	p.begun, p.begunAt, p.begunOn = *b, at, now
	p.heard.unsaved = 0
	p.reckon()
}
