package deliver

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"tidemill.dev/broker"
)

// load reads what is parked and due, as far as its senders have room.
func (l *lane) load() {
	t := time.NewTimer(0)
	defer t.Stop()
	kept := newShelf()
	for l.life.Err() == nil {
		next := l.loadDue(kept)
		t.Reset(next.in(l.d.clock.now(), rest))
		select {
		case <-t.C:
		case <-l.due:
		case <-l.life.Done():
		}
	}
}

// loadDue loads what is due, and tells when the next is.
func (l *lane) loadDue(kept *shelf) moment {
	next := never
	for _, s := range l.all() {
		if loads := l.gather(s, &next); len(loads) > 0 {
			l.loadAll(s, loads, kept)
			next = 0 // more may have become due
		}
	}
	return next
}

// wanted is a load and the sender whose room it has.
type wanted struct {
	load
	to *sender
}

// gather takes what is due of a partition.
func (l *lane) gather(s *shard, next *moment) []wanted {
	var all []wanted
	s.do(func(p *partition, now moment) {
		if p.closed {
			return
		}
		for _, line := range p.lines {
			due := line.nextLoad()
			if due > now {
				*next = min(*next, due)
				continue
			}
			to := l.d.senderOf(line.name)
			n := to.reserve(l)
			loads := p.load(line, n, now)
			to.unreserve(n - len(loads))
			for _, one := range loads {
				all = append(all, wanted{one, to})
			}
			if due := line.nextLoad(); due > now {
				*next = min(*next, due)
			}
		}
	})
	slices.SortFunc(all, func(a, b wanted) int { return cmp.Compare(a.rec.at, b.rec.at) })
	return all
}

const (
	loadBytes = 1 << 20 // what is read of the parked log at once
	loadAgain = time.Second
)

// loadAll gets the records of some loads, which are in the order of the log.
func (l *lane) loadAll(s *shard, all []wanted, kept *shelf) {
	for len(all) > 0 {
		if r := kept.take(spot{s.p.number, all[0].rec.at}); r != nil {
			l.hand(s, all[0], r)
			all = all[1:]
			continue
		}
		done, err := l.loadSome(s, all, kept)
		all = all[done:]
		if err != nil {
			if l.life.Err() == nil && s.ctx.Err() == nil {
				l.d.o.Logger.Warn("what is parked cannot be read yet", "stream", l.stream.Name, "partition", s.p.number, "reason", err)
			}
			l.putOff(s, all)
			return
		}
	}
}

// putOff tries loads again in a moment.
func (l *lane) putOff(s *shard, all []wanted) {
	s.do(func(p *partition, now moment) {
		for _, one := range all {
			p.unloaded(one.load, now.after(loadAgain), now)
		}
	})
	for _, one := range all {
		one.to.unreserve(1)
	}
}

// loadSome reads on from the first load, which is handed on at least. What else
// is still needed of what it reads is handed on too, or kept.
func (l *lane) loadSome(s *shard, all []wanted, kept *shelf) (done int, err error) {
	from := broker.Position{Stream: l.parked(), Partition: s.p.number, Offset: all[0].rec.at}
	ctx, cancel := context.WithTimeout(s.ctx, transactionTime)
	defer cancel()
	next, err := l.d.o.Broker.Read(ctx, from, loadBytes, func(in *broker.Incoming) bool {
		for done < len(all) && all[done].rec.at < in.Offset {
			l.missing(s, all[done])
			done++
		}
		switch {
		case done < len(all) && all[done].rec.at == in.Offset:
			l.hand(s, all[done], readRecord(in))
			done++
		case s.needs(in.Offset) && recordOf(&in.View) != nil:
			kept.put(spot{s.p.number, in.Offset}, readRecord(in))
		}
		return true
	})
	switch {
	case err != nil || done > 0:
		return done, err
	case next > all[0].rec.at:
		l.missing(s, all[0])
		return 1, nil
	}
	return 0, fmt.Errorf("read %s/%d at offset %d: the log ends before it", from.Stream, from.Partition, from.Offset)
}

// needs tells whether anything on the parked log is still needed there.
func (s *shard) needs(offset int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.p.ledger.has(offset)
}

// hand gives a record to whom it was read for.
func (l *lane) hand(s *shard, one wanted, r *parkedRecord) {
	s.do(func(p *partition, now moment) {
		if r.err != nil {
			p.lost(one.load, r.err.Error(), now)
			return
		}
		p.loaded(one.load, &r.record, &r.view, now)
	})
	one.to.unreserve(1)
}

func (l *lane) missing(s *shard, one wanted) {
	s.do(func(p *partition, now moment) {
		p.lost(one.load, fmt.Sprintf("what was parked at offset %d of %s/%d is not there any more", one.rec.at, l.parked(), p.number), now)
	})
	one.to.unreserve(1)
}
