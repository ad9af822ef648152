package deliver

import "slices"

// chain is one key's items for one trigger, in the source's order. Only the
// first of them, the head, is ever sent. It consists of
//
//	recs: all that are parked, the head among them if it is
//	head: the item in memory that is the chain's first, if it is in memory
//	live: items in memory behind the head, parked or not
//
// If there is no head the chain waits for its first record to be read: it
// stands in its line's heap, or is being loaded. Parked items whose copies in
// memory are gone lie between the head and live.
type chain struct {
	line *line
	key  uint64
	due  moment
	head *item
	live []*item
	recs []rec
	at   int32 // in the line's heap, or one of the below
	cut  int32 // records taken from the front of recs' memory
}

const (
	idle    int32 = -1 // it has a head
	loading int32 = -2
	lonely  int32 = -3 // new: nothing at all
)

// cold tells whether the first item is not in memory, or will not be for long:
// what follows is better parked than held.
func (c *chain) cold() bool {
	return c.head == nil && len(c.recs) > 0 || c.head != nil && c.head.stage == parking
}

// push adds an item that has been read from the source.
func (c *chain) push(i *item, now moment) {
	p := c.line.part
	switch {
	case c.head == nil && len(c.recs) == 0 && len(c.live) == 0:
		c.raise(i, now)
	default:
		i.stage = waiting
		c.live = append(c.live, i)
		if c.cold() || c.line.held() {
			p.demand(i, now)
		}
	}
}

// raise makes an item the head.
func (c *chain) raise(i *item, now moment) {
	c.head, c.at = i, idle
	if i.waits() {
		i.due = now
		c.park(i, now)
		return
	}
	i.stage = ready
	i.part.relieve(i)
	i.part.out = append(i.part.out, i)
}

// park puts the head away until it is due, and all that follows with it. One
// that is frozen is being parked already: see partition.settleCut.
func (c *chain) park(i *item, now moment) {
	p := c.line.part
	i.stage = parking
	switch {
	case !i.recorded():
		p.demand(i, now)
	case i.written == i.tries:
		c.leave(i.due, now)
	default:
		p.rewrites = append(p.rewrites, i)
	}
	c.demandAll(now)
}

// demandAll parks what is live: the first item will not be sent soon.
func (c *chain) demandAll(now moment) {
	for len(c.live) > 0 && c.live[0].recorded() {
		c.evict()
	}
	for _, i := range c.live {
		c.line.part.demand(i, now)
	}
}

// evict forgets the first live item, which has a record.
func (c *chain) evict() {
	c.live[0].forget()
	c.live[0] = nil
	c.live = c.live[1:]
	if len(c.live) == 0 {
		c.live = nil
	}
}

// leave lets go of the head's copy in memory, and tries its record again when
// it is due.
func (c *chain) leave(due, now moment) {
	c.head.forget()
	c.head = nil
	c.wait(due, now)
}

// wait puts the chain into the heap, until its first record is due or expires.
func (c *chain) wait(due, now moment) {
	p := c.line.part
	c.due = min(due, p.expiry(c.recs[0]))
	if c.line.trigger == nil {
		c.due = now
	}
	c.line.queue.push(c)
	p.stirred = p.stirred || c.at == 0 // the loader may sleep for longer
}

// add puts a record in its place. Nearly always that is the last.
func (c *chain) add(r rec) {
	at := len(c.recs)
	for at > 0 && r.before(c.recs[at-1]) {
		at--
	}
	switch first := c.head != nil && c.head.recorded(); {
	case first && c.head.rec.same(r):
		at = 0 // a replay of what lies before it may have come meanwhile
	case at == 0 && len(c.recs) > 0 && (first || c.at == loading):
		at = 1 // what is on its way is not overtaken
	}
	c.recs = slices.Insert(c.recs, at, r)
	c.line.tally(r, 1)
}

// drop takes the first record away, which is over. Memory that has been passed
// is given back in time.
func (c *chain) drop() {
	c.line.tally(c.recs[0], -1)
	c.recs = c.recs[1:]
	c.cut++
	if len(c.recs) == 0 {
		c.recs, c.cut = nil, 0
	} else if int(c.cut) > len(c.recs) {
		c.recs, c.cut = slices.Clone(c.recs), 0
	}
}

// advance goes on behind the head, which is over.
func (c *chain) advance(now moment) {
	c.head = nil
	switch {
	case len(c.recs) > 0 && (len(c.live) == 0 || !c.live[0].rec.same(c.recs[0])):
		c.demandAll(now)
		c.wait(now, now)
	case len(c.live) > 0:
		i := c.live[0]
		c.live[0] = nil
		if c.live = c.live[1:]; len(c.live) == 0 {
			c.live = nil
		}
		c.raise(i, now)
	default:
		c.line.forget(c)
	}
}
