package deliver

// What a cut parks in passing stays in memory for as long as its patience lasts:
// its turn may come at any moment, and reading it back costs more. Beyond that a
// subscriber that hangs would fill the memory, cut by cut.

// waits tells whether an item is not to be sent now. What nobody sends any more,
// because only a dead letter is left to be written, waits for no pause: it would
// wait until the log has lost it.
func (i *item) waits() bool {
	return i.chain.line.held() && i.chain.line.trigger != nil && !i.expired && i.lost == "" && i.event.unfit == ""
}

// vain tells whether it would be in vain to send an item: it has been let go of,
// or its partition is another's by now.
func (i *item) vain() bool {
	return i.gone.Load() || i.part.home != nil && i.part.home.ctx.Err() != nil
}

// forget leaves only the record of an item. Its sender may still have it in a
// queue, but not its event.
func (i *item) forget() {
	i.stage, i.event = evicted, nil
	i.gone.Store(true)
}

// letGoOfKept lets go of what was kept and has run out of patience.
func (p *partition) letGoOfKept(now moment) {
	n := 0
	for n < len(p.kept) && p.kept[n].until <= now {
		p.letGo(p.kept[n], now)
		p.kept[n] = nil
		n++
	}
	if p.kept = p.kept[n:]; len(p.kept) == 0 {
		p.kept = nil
	}
}

// letGo leaves only the record of a parked item, unless it is being sent.
func (p *partition) letGo(i *item, now moment) {
	switch c := i.chain; i.stage {
	case ready, resting:
		if i.stage == ready {
			i.due = now
		}
		i.stage = parking
		c.putAway(i, now)
		c.demandAll(now)
	case waiting:
		c.evictThrough(i)
	}
}

// putAway leaves only the record of a parked head, if the record tells of all
// its attempts. Else it is written anew first.
func (c *chain) putAway(i *item, now moment) {
	if i.written == i.tries {
		c.leave(i.due, now)
		return
	}
	c.line.part.rewrites = append(c.line.part.rewrites, i)
}
