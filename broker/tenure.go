package broker

import (
	"context"
	"slices"

	"tidemill.dev/broker/internal/wire"
)

// parting says how far a partition that is taken away has been told of.
type parting int8

const (
	remaining parting = iota
	leaving           // Leaving has been called and has not returned
	left              // it has; nothing remains to be done but what is open
)

// remains tells whether a partition is ours and not about to go.
func (p *inPartition) remains() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.gone && p.parting == remaining
}

// farewell lets the hook finish with partitions that have begun to drain. It
// has a goroutine of its own: what the hook waits for, a transaction perhaps,
// must not hold up heartbeats, commits or other partitions. Its time ends with
// the tenure too, since a member that is forgotten has nothing left to finish.
func (m *member) farewell(ctx context.Context, parts []*inPartition) {
	if len(parts) == 0 {
		return
	}
	tenure := m.tenure
	m.c.running.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, m.c.opt.DrainTimeout)
		defer cancel()
		defer context.AfterFunc(tenure, cancel)()
		m.c.hooks.Lock() // an Assigned that is being asked comes first
		at := firsts(parts)
		m.c.hooks.Unlock()
		m.c.opt.Leaving(ctx, at)
		for _, p := range parts {
			p.mu.Lock()
			p.parting = left
			p.mu.Unlock()
		}
		m.nudge()
	})
}

// firsts are the places of the first events that have not ended, in order.
func firsts(parts []*inPartition) []Position {
	all := make([]Position, 0, len(parts))
	for _, p := range parts {
		p.mu.Lock()
		all = append(all, Position{Stream: p.stream, Partition: p.tp.Partition, Offset: p.mark.next})
		p.mu.Unlock()
	}
	slices.SortFunc(all, comparePositions)
	return all
}

// part begins to drain a partition, and tells whether Leaving is to be called
// for it. Called with the lock held.
func (p *inPartition) part() bool {
	if p.gone || p.c.opt.Leaving == nil || p.parting != remaining {
		return false
	}
	p.parting = leaving
	return true
}

// giveUp gives up partitions at once, from whatever goroutine. The member's lets
// go of them, and then they can be taken again.
func (c *Consumer) giveUp(parts map[wire.TopicPartition]*inPartition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range parts {
		p.mu.Lock()
		p.forsake()
		p.mu.Unlock()
	}
	c.announce() // Poll clears what is queued of them
}

// forsake makes a partition nobody's: what is still open of it no longer counts.
// Called with the lock held.
func (p *inPartition) forsake() {
	if !p.gone {
		p.gone = true
		p.epoch++
		p.series++
	}
}

// drop lets go of partitions, and of those that have been given up. Only the
// member's goroutine drops and takes, so that Gone comes before Assigned. No
// which leaves it at those that have been given up.
func (c *Consumer) drop(which func(*inPartition) bool) {
	var gone []*inPartition
	c.mu.Lock()
	for tp, p := range c.parts {
		p.mu.Lock()
		if p.gone || which != nil && which(p) {
			p.forsake()
			delete(c.parts, tp)
			gone = append(gone, p)
		}
		p.mu.Unlock()
	}
	c.announce() // Poll clears what is queued of them
	c.mu.Unlock()
	if len(gone) == 0 || c.opt.Gone == nil {
		return
	}
	c.hooks.Lock()
	defer c.hooks.Unlock()
	c.opt.Gone(firsts(gone))
}
