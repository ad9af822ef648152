package deliver

import (
	"maps"
	"strings"

	"tidemill.dev/broker"
)

// Dead letters that are to be replayed are taken in as if their events had been
// parked. An act names letters, and each partition has its own of them, in the
// act's order. It takes some in at a time, in one transaction with begun, where
// it stands how far it has come with which act: so each is taken in once,
// whoever has the partition, and whatever becomes of him.

// hearing is how far a partition has come with what people ask to be replayed.
type hearing struct {
	next    int64         // acts that lie before it are known
	open    map[int64]int // of those, by offset: how many letters were taken in, where that is not all
	unsaved int           // acts that had something for us and are known to nobody else yet
}

// recalled is a dead letter's event.
type recalled struct {
	trigger string
	replay  string // see replayName
	letter  string // see letterRef
	source  int64
	view    broker.View // its own copy
}

// intake is what a transaction is to take in of an act.
type intake struct {
	act  int64
	upTo int  // so many of the act's letters are done then
	last bool // these are all
	all  []recalled
}

// replayName names a replay among a partition's items. One act may replay
// several letters of one event, where each came from a replay of its own; they
// are told apart by that.
func replayName(act, former string) string {
	if former == "" {
		return act
	}
	return act + "/" + former
}

// actOf is the act of a replay.
func actOf(name string) string {
	act, _, _ := strings.Cut(name, "/")
	return act
}

// hears tells whether the partition may take letters in now.
func (p *partition) hears(now moment) bool {
	return p.opened && !p.closed && !p.leaving && p.begunAt != none && p.intake == nil && p.writing == nil && !p.skewing(now)
}

// hear notes acts that lie before an offset; those given have letters here.
func (p *partition) hear(next int64, acts ...int64) {
	if p.closed {
		return
	}
	for _, act := range acts {
		if _, known := p.heard.open[act]; !known && act >= p.heard.next {
			p.heard.open[act] = 0
			p.heard.unsaved++
		}
	}
	p.heard.next = max(p.heard.next, next)
}

// takeIn has the next transaction take in the letters of an act, in the order of
// the act. Where there are none, because they are resolved already, it is noted
// at once.
func (p *partition) takeIn(in *intake, now moment) bool {
	if done, open := p.heard.open[in.act]; !p.hears(now) || !open || done > in.upTo {
		return false
	}
	if len(in.all) == 0 {
		p.heard.advance(in)
		return true
	}
	p.intake = in
	return true
}

func (h *hearing) advance(in *intake) {
	h.open[in.act] = in.upTo
	if in.last {
		delete(h.open, in.act)
	}
}

// written is how far the partition will have come once a transaction is
// committed.
func (h *hearing) written(in *intake) (acts int64, letters map[int64]int) {
	after := hearing{open: maps.Clone(h.open)}
	if in != nil {
		after.advance(in)
	}
	return h.next, after.open
}

// planIntake parks the letters' events. They join their chains once they are.
func (p *partition) planIntake(w *write, now moment, room *allowance) {
	if p.intake == nil || p.skewing(now) || room.spent() {
		return
	}
	w.intake = p.intake
	for n := range w.intake.all {
		one := &w.intake.all[n]
		l := p.line(one.trigger)
		i := &item{part: p, chain: &chain{line: l, at: lonely}, event: &arrival{view: one.view}, letter: one.letter, first: now,
			rec: rec{source: one.source, at: none, first: uint32(now / 1000), replay: p.replays.number(one.replay)}}
		p.planPark(w, i, now, room)
	}
	w.recalled = len(w.intake.all)
}

// settleIntake lets what was taken in wait for its turn.
func (p *partition) settleIntake(w *write, parks []parked, now moment) {
	p.intake = nil
	p.heard.advance(w.intake)
	for n := range parks {
		i := parks[n].item
		i.rec.at = parks[n].at
		p.ledger.add(i.rec.at)
		l, key := i.chain.line, i.event.view.Key
		keyed := key != nil && (l.trigger == nil || l.trigger.Delivery.Ordered)
		c := l.of(p.hash(key), keyed)
		c.recall(i.rec, now)
	}
}

// recall adds a record that is due now. It does not overtake what is on its way.
func (c *chain) recall(r rec, now moment) {
	c.add(r)
	switch {
	case c.at == lonely:
		c.wait(now, now)
	case c.at >= 0 && c.recs[0].same(r) && c.due > now:
		c.due = now
		c.line.queue.up(int(c.at))
		c.line.part.stirred = true
	}
}
