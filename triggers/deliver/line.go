package deliver

import (
	"time"

	"tidemill.dev/config"
)

// line is what one partition holds for one trigger.
type line struct {
	part    *partition
	name    string
	trigger *config.Trigger // nil where the config no longer has it
	paused  bool

	chains map[uint64]*chain // of ordered items, by their key's hash
	queue  chainHeap         // chains that wait for their first record
	chain  int               // all chains, those without a key too
	parked int               // records
	ages   map[uint32]int32  // how many of them were parked first in which minute
}

// held tells that nothing is to be sent now, and what would be is to be parked.
func (l *line) held() bool { return l.part.past == 0 && (l.paused || l.part.leaving) }

// of finds the chain of a key, or makes it. An event without a key follows
// nobody.
func (l *line) of(key uint64, keyed bool) *chain {
	if keyed {
		if c := l.chains[key]; c != nil {
			return c
		}
	}
	c := &chain{line: l, key: key, at: lonely}
	l.chain++
	if keyed {
		l.chains[key] = c
	}
	return c
}

// forget drops a chain that has come to its end.
func (l *line) forget(c *chain) {
	l.chain--
	if l.chains[c.key] == c {
		delete(l.chains, c.key)
		if len(l.chains) == 0 {
			l.chains = map[uint64]*chain{} // a map keeps the memory of its best days
		}
	}
}

// tally counts records in and out.
func (l *line) tally(r rec, n int) {
	l.parked += n
	minute := r.first / 60
	if l.ages[minute] += int32(n); l.ages[minute] <= 0 {
		delete(l.ages, minute)
	}
}

// oldest is about when the oldest parked item was parked first.
func (l *line) oldest() moment {
	first := never
	for minute := range l.ages {
		first = min(first, moment(minute)*60_000)
	}
	return first
}

// empty tells whether nothing is left of a line.
func (l *line) empty() bool { return l.chain == 0 }

// retain makes what waits expire in time for a stream that is kept for as long
// as this from now on.
func (p *partition) retain(d time.Duration) {
	if d == p.bounds.retention {
		return
	}
	p.bounds.retention = d
	for _, l := range p.lines {
		for _, c := range l.queue {
			c.due = min(c.due, p.expiry(c.recs[0]))
		}
		l.queue.order()
		p.stirred = true
	}
}

// change gives the line what the config and people say of its trigger now.
func (l *line) change(t *config.Trigger, paused bool, now moment) {
	freed := l.paused && !paused || l.trigger != nil && t == nil
	l.trigger, l.paused = t, paused
	if freed {
		l.queue.all(now)
		l.part.stirred = true
	}
}
