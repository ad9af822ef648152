package deliver

import (
	"container/heap"
	"time"
)

// start takes an item that was handed out to be sent. It tells whether that
// still holds.
func (p *partition) start(i *item, now moment) bool {
	if p.closed || i.stage != ready {
		return false
	}
	if i.waits() {
		i.due = now
		i.chain.park(i, now)
		return false
	}
	switch {
	case p.past == 0:
	case p.leaving: // for who goes on with it
		return false
	case i.chain.line.paused:
		p.out = append(p.out, i) // it is not sent before the trigger is resumed
		return false
	}
	i.stage = flying
	p.flying++
	return true
}

// ended says that an item that was started has been delivered, or that its
// dead letter is written.
func (p *partition) ended(i *item, now moment) {
	if p.closed || i.stage != flying {
		return
	}
	p.flying--
	i.stage = over
	if i.recorded() {
		p.settle(i)
		i.chain.drop()
	}
	p.finish(i)
	i.chain.advance(now)
}

// failed says that an item's attempt has failed and when the next may come.
func (p *partition) failed(i *item, a Attempt, wait time.Duration, now moment) {
	if p.closed || i.stage != flying {
		return
	}
	i.remember(a)
	p.postponed(i, wait, now)
}

// postponed says that an item that was started has not ended, and when it may be
// tried. It rests in memory if that is soon, else it is parked.
func (p *partition) postponed(i *item, wait time.Duration, now moment) {
	if p.closed || i.stage != flying {
		return
	}
	p.flying--
	i.due = now.after(wait)
	if i.due <= i.until && !i.chain.line.held() {
		i.stage = resting
		heap.Push(&p.resting, i)
		return
	}
	i.chain.park(i, now)
}

// wake sends what has rested enough.
func (p *partition) wake(now moment) {
	for len(p.resting) > 0 && p.resting[0].due <= now {
		i := heap.Pop(&p.resting).(*item)
		if i.stage == resting {
			i.stage = ready
			p.out = append(p.out, i)
		}
	}
	p.letGoOfKept(now)
}

// handOut gives what is to be sent to whoever sends it.
func (p *partition) handOut() []*item {
	out := p.out
	p.out = nil
	return out
}
