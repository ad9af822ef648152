package deliver

// take takes in what was read next of the source. While a trigger's first
// offset is being recorded, it is kept aside: what is sent before the record is
// written would be forgotten in a crash, and the trigger begin behind it.
func (p *partition) take(s *slab, now moment) {
	p.backlog = append(p.backlog, s)
	p.release(now)
}

// release takes in what was kept aside, unless it has to wait on.
func (p *partition) release(now moment) {
	if len(p.backlog) == 0 || p.holding(now) {
		return
	}
	waited := p.backlog
	p.backlog = nil
	for _, s := range waited {
		if s.stale != nil && s.stale() {
			s.discard()
			continue
		}
		p.admit(s, now)
	}
}

// open lets a partition that was rebuilt take in what is read.
func (p *partition) open(now moment) {
	p.opened = true
	p.release(now)
}

// admit makes items of a slab's events. An event that nobody wants is over.
func (p *partition) admit(s *slab, now moment) {
	s.born = now
	p.next = max(p.next, s.next)
	var unwanted []int
	for at := range s.events {
		in := &s.events[at]
		p.matched = p.terms.plan.match(&in.View, p.matched[:0])
		var e *arrival
		for _, m := range p.matched {
			if t := p.reads[m]; in.Offset >= t.from {
				if e == nil {
					e = &arrival{view: in.View.Clone(), slab: s, at: at, logged: momentOf(in.Time)}
					if p.past == 0 {
						e.unfit = p.unfit(&e.view)
					} else {
						e.logged = now // how old it is says nothing of how fast we are
					}
					s.open++
					s.bytes += viewSize(&e.view)
				}
				p.receive(t.line, e, in.Offset, now)
			}
		}
		if e == nil {
			unwanted = append(unwanted, at)
		}
	}
	if s.open > 0 {
		p.window = append(p.window, s)
		p.events += s.open
		p.held += s.bytes
	}
	for _, at := range unwanted { // last, for with its last event a delivery's memory is another's
		s.end(at)
	}
	s.events = nil
}

// receive makes an item of an event that matches a trigger.
func (p *partition) receive(l *line, e *arrival, source int64, now moment) {
	ordered := l.trigger != nil && l.trigger.Delivery.Ordered && e.view.Key != nil
	var key uint64
	if ordered {
		key = p.hash(e.view.Key)
	}
	c := l.of(key, ordered && e.unfit == "")
	i := &item{part: p, chain: c, event: e, rec: rec{source: source, at: none, replay: p.past}, replay: p.replays.name(p.past), until: now.after(p.bounds.patience)}
	if e.open++; e.unfit != "" {
		e.slab.unfit++
	}
	e.slab.items = append(e.slab.items, i)
	c.push(i, now)
}

// demand says that an item must be parked. It is, with the next cut.
func (p *partition) demand(i *item, now moment) {
	s := i.event.slab
	if i.must || s == nil || i.recorded() || i.stage == over || i.event.unfit != "" {
		return
	}
	i.must = true
	if s.must++; s.must == 1 {
		s.since = now
	}
}

// relieve takes it back: its turn has come before it was parked.
func (p *partition) relieve(i *item) {
	if s := i.event.slab; i.must && s != nil && !s.frozen {
		i.must = false
		s.must--
	}
}

// finish ends the item's event for its slab, and what of the window is over by
// that.
func (p *partition) finish(i *item) {
	e, s := i.event, i.event.slab
	if e.open--; s == nil {
		return
	}
	if i.must && !s.frozen {
		i.must = false
		s.must--
	}
	if e.unfit != "" {
		s.unfit--
	}
	if e.open > 0 || s.frozen {
		return
	}
	s.end(e.at)
	s.open--
	p.events--
	p.trim()
}

// trim takes slabs out of the window's front that are over.
func (p *partition) trim() {
	for len(p.window) > 0 && p.window[0].open == 0 {
		p.shift()
	}
}

// shift takes the first slab out of the window.
func (p *partition) shift() {
	s := p.window[0]
	p.held -= s.bytes
	p.events -= s.open
	p.window[0] = nil
	if p.window = p.window[1:]; len(p.window) == 0 {
		p.window = nil
	}
}
