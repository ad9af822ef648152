package deliver

import "tidemill.dev/broker"

// load is a parked item that is due: its record has to be read.
type load struct {
	chain *chain
	rec   rec
}

// load takes the chains of a trigger that are due, n at most.
func (p *partition) load(l *line, n int, now moment) []load {
	var all []load
	if p.closed || p.leaving || l.trigger == nil && p.skewing(now) {
		return nil
	}
	for len(all) < n && len(l.queue) > 0 && l.queue[0].due <= now {
		c := l.queue.pop()
		if l.paused && l.trigger != nil && p.expiry(c.recs[0]) > now {
			c.due = p.expiry(c.recs[0])
			l.queue.push(c)
			continue
		}
		all = append(all, load{c, c.recs[0]})
	}
	return all
}

// nextLoad is when a line's first chain is due.
func (l *line) nextLoad() moment {
	if len(l.queue) == 0 {
		return never
	}
	return l.queue[0].due
}

// holds tells whether a load is still wanted.
func (p *partition) holds(d load) bool {
	return !p.closed && d.chain.at == loading && len(d.chain.recs) > 0 && d.chain.recs[0] == d.rec
}

// loaded goes on with a record that has been read. Its event must be the
// item's own.
func (p *partition) loaded(d load, r *record, v *broker.View, now moment) {
	if !p.holds(d) {
		return
	}
	expired := p.expiry(d.rec) <= now
	if l := d.chain.line; l.trigger != nil && !expired && (r.due > now || l.held()) {
		d.chain.wait(max(r.due, now), now)
		return
	}
	i := p.awaken(d, now)
	i.event = &arrival{view: *v, open: 1, logged: r.first}
	i.first, i.tries, i.written, i.past, i.letter = r.first, r.tries, r.tries, r.past, r.letter
	if expired {
		i.expired = true
	}
}

// lost goes on without a record that is not there any more.
func (p *partition) lost(d load, reason string, now moment) {
	if p.holds(d) {
		i := p.awaken(d, now)
		i.event, i.lost, i.first = &arrival{open: 1}, reason, moment(d.rec.first)*1000
	}
}

// awaken makes the first record of a chain its head.
func (p *partition) awaken(d load, now moment) *item {
	i := &item{part: p, chain: d.chain, rec: d.rec, parked: true, replay: p.replays.name(d.rec.replay), stage: ready, until: now.after(p.bounds.patience)}
	d.chain.head, d.chain.at = i, idle
	p.out = append(p.out, i)
	return i
}

// unloaded puts a load back that could not be read for now.
func (p *partition) unloaded(d load, due, now moment) {
	if p.holds(d) {
		d.chain.wait(due, now)
	}
}
