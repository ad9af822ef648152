package deliver

// deadline is when the partition has to be looked at next, if nothing happens
// before; a moment that has passed means now. What waits to be loaded is not
// counted, for that depends on its sender.
func (p *partition) deadline(now moment) moment {
	next := never
	if len(p.resting) > 0 {
		next = p.resting[0].due
	}
	if p.writing != nil || p.closed || p.missing {
		return next
	}
	if len(p.settled) > 0 || len(p.rewrites) > 0 {
		next = min(next, p.tidy.after(p.bounds.linger))
	}
	for _, s := range p.window {
		if s.open > 0 {
			next = min(next, s.born.after(p.bounds.patience))
		}
		if s.must > 0 {
			next = min(next, s.since.after(p.bounds.linger))
		}
	}
	switch {
	case p.skewing(now):
		next = min(next, p.skewed)
	case p.wanted != nil, p.intake != nil, p.stale(now), p.crowded():
		next = now
	}
	return next
}

// crowded tells whether more is read and not over than the window shall hold.
func (p *partition) crowded() bool { return p.events > p.bounds.window || p.held > p.bounds.bytes }
