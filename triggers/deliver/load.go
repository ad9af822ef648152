package deliver

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/broker/parked"
	"tidemill.dev/config"
)

// loadLoop reads parked records that are due, as far as senders have room for them.
func (pl *pipeline) loadLoop() {
	t := time.NewTimer(0)
	defer t.Stop()
	kept := parked.NewCache[recordPlace, *parkedRecord](shelfBytes)
	for pl.life.Err() == nil {
		next := pl.loadDue(kept)
		t.Reset(next.untilDue(pl.d.clock.now(), rest))
		select {
		case <-t.C:
		case <-pl.due:
		case <-pl.life.Done():
		}
	}
}

// loadDue loads the records that are due and returns when the next one is.
func (pl *pipeline) loadDue(kept *recordCache) millis {
	next := never
	for _, s := range pl.assignmentsNow() {
		if loads := pl.gather(s, &next); len(loads) > 0 {
			pl.loadAll(s, loads, kept)
			next = 0 // more may be due by now
		}
		pl.renew(s, kept)
		pl.refill(s, kept, &next)
	}
	return next
}

// refill reads spilled records back.
func (pl *pipeline) refill(s *assignment, kept *recordCache, next *millis) {
	var all []loadRequest
	s.apply(func(p *partition, now millis) {
		for _, ts := range p.states {
			for _, d := range p.refill(ts, now) {
				all = append(all, loadRequest{load: d})
			}
			if ts.refill.notBefore > now {
				*next = min(*next, ts.refill.notBefore)
			}
		}
	})
	if len(all) == 0 {
		return
	}
	*next = 0
	slices.SortFunc(all, func(a, b loadRequest) int { return cmp.Compare(a.ref.at, b.ref.at) })
	pl.loadAll(s, all, kept)
}

// renew reads the records that need to be written again.
func (pl *pipeline) renew(s *assignment, kept *recordCache) {
	var all []loadRequest
	s.apply(func(p *partition, _ millis) {
		for _, d := range p.renew(renewAtOnce) {
			all = append(all, loadRequest{load: d})
		}
	})
	pl.loadAll(s, all, kept)
}

// loadRequest is a record to be read, and the sender that has reserved room for it.
type loadRequest struct {
	load
	to *sender // nil for a renewal and for a spilled record
}

// free gives the sender's room back after the record was handed over or put off. If the record was to
// be the probe and made no item, another probe may be sent after a pause.
func (w loadRequest) free(made bool, pause time.Duration) {
	if w.to == nil {
		return
	}
	w.to.unreserve(1)
	if w.probe && !made {
		w.to.skipProbe(pause)
	}
}

// made reports whether the queue has an item of the record that was read. The caller holds the lock of the
// partition.
func (d load) made() bool { return d.queue != nil && d.queue.head != nil }

// gather takes the records of a partition that are due.
func (pl *pipeline) gather(s *assignment, next *millis) []loadRequest {
	var all []loadRequest
	s.apply(func(p *partition, now millis) {
		if p.closed {
			return
		}
		for _, line := range p.states {
			due := line.nextLoad()
			if due > now {
				*next = min(*next, due)
				continue
			}
			to := pl.d.senderOf(line.name)
			for _, one := range pl.gatherOf(p, line, to, now) {
				all = append(all, loadRequest{one, to})
			}
			if due := line.nextLoad(); due > now {
				*next = min(*next, due)
			}
		}
	})
	slices.SortFunc(all, func(a, b loadRequest) int { return cmp.Compare(a.ref.at, b.ref.at) })
	return all
}

// gatherOf takes records of one trigger, and reserves room for each with its sender.
func (pl *pipeline) gatherOf(p *partition, line *triggerState, to *sender, now millis) []load {
	if !line.open {
		n := to.reserve(pl)
		loads := p.load(line, n, now)
		to.unreserve(n - len(loads))
		return loads
	}
	if p.leaving {
		return nil // the next owner sends the probe
	}
	loads := p.loadExpired(line, expiredAtOnce, now)
	to.unreserve(-len(loads))
	if len(loads) > 0 || line.paused || !p.hasProbe(line, now) || !to.reserveProbe(pl) {
		return loads
	}
	return []load{p.loadProbe(line)}
}

// expiredAtOnce is how many expired records are read at once while a circuit is open.
const expiredAtOnce = 64

const (
	loadBytes = 1 << 20 // bytes of one read of the parked log
	loadAgain = time.Second
)

// loadAll reads records, in the order of the log.
func (pl *pipeline) loadAll(s *assignment, all []loadRequest, kept *recordCache) {
	for len(all) > 0 {
		if r, ok := kept.Take(recordPlace{s.p.number, all[0].ref.at}); ok {
			pl.hand(s, all[0], r)
			all = all[1:]
			continue
		}
		done, err := pl.loadSome(s, all, kept)
		all = all[done:]
		if err != nil {
			if pl.life.Err() == nil && s.ctx.Err() == nil {
				pl.d.o.Logger.Warn("dispatcher: reading parked events failed; retrying", "stream", pl.stream.Name, "partition", s.p.number, "reason", err)
			}
			pl.putOff(s, all)
			return
		}
	}
}

// putOff tries to read records again in a moment.
func (pl *pipeline) putOff(s *assignment, all []loadRequest) {
	s.apply(func(p *partition, now millis) {
		for _, one := range all {
			switch {
			case one.back != nil:
				p.notRefilled(one.load, now)
			case one.to != nil:
				p.unloaded(one.load, now.add(loadAgain), now)
			}
		}
	})
	for _, one := range all {
		one.free(false, loadAgain)
	}
}

// loadSome reads the log from the first record on, and delivers at least that record.
// It also delivers or caches other records that are still needed.
func (pl *pipeline) loadSome(s *assignment, all []loadRequest, kept *recordCache) (done int, err error) {
	from := broker.Position{Stream: pl.parked(), Partition: s.p.number, Offset: all[0].ref.at}
	ctx, cancel := context.WithTimeout(s.ctx, transactionTime)
	defer cancel()
	next, err := pl.d.o.Broker.Read(ctx, from, loadBytes, func(in *broker.Incoming) bool {
		for done < len(all) && all[done].ref.at < in.Offset {
			pl.missing(s, all[done])
			done++
		}
		switch {
		case done < len(all) && all[done].ref.at == in.Offset:
			pl.hand(s, all[done], readRecord(in))
			done++
		case s.needs(in.Offset) && recordOf(&in.View) != nil:
			r := readRecord(in)
			kept.Put(recordPlace{s.p.number, in.Offset}, r, r.bytes)
		}
		return true
	})
	switch {
	case err != nil || done > 0:
		return done, err
	case next > all[0].ref.at:
		pl.missing(s, all[0])
		return 1, nil
	}
	return 0, fmt.Errorf("read %s/%d at offset %d: the log ends earlier", from.Stream, from.Partition, from.Offset)
}

// needs reports whether an offset of the parked log is still needed.
func (as *assignment) needs(offset int64) bool {
	as.mu.Lock()
	defer as.mu.Unlock()
	return as.p.needed.Has(offset)
}

// hand gives a record to the queue that it was read for.
func (pl *pipeline) hand(s *assignment, one loadRequest, r *parkedRecord) {
	made := false
	s.apply(func(p *partition, now millis) {
		switch {
		case one.back != nil && r.err == nil:
			p.refilled(one.load, &r.record, &r.view, now)
		case one.back != nil:
			p.refilled(one.load, nil, nil, now)
		case one.to == nil && r.err == nil:
			p.renewed(one.load, &r.record, &r.view)
		case one.to == nil: // when it is due, the item becomes a dead letter
		case r.err != nil:
			p.giveDeadLetter(one.load, r.err.Error(), now)
		default:
			p.loaded(one.load, &r.record, &r.view, now)
		}
		made = one.made()
	})
	one.free(made, 0)
}

func (pl *pipeline) missing(s *assignment, one loadRequest) {
	if one.back != nil { // its dead letter is written when it is loaded
		s.apply(func(p *partition, now millis) { p.refilled(one.load, nil, nil, now) })
		return
	}
	if one.to == nil {
		return
	}
	made := false
	s.apply(func(p *partition, now millis) {
		p.giveDeadLetter(one.load, fmt.Sprintf("the event parked at offset %d of %s/%d no longer exists", one.ref.at, pl.parked(), p.number), now)
		made = one.made()
	})
	one.free(made, 0)
}

// load is a parked item whose record must be read.
type load struct {
	queue *keyQueue
	ref   recordRef
	probe bool          // whether it is read to be the probe of an open circuit
	back  *triggerState // trigger of a spilled record, which has no queue; else nil
}

// load takes at most n queues of a trigger that are due.
func (p *partition) load(l *triggerState, n int, now millis) []load {
	var all []load
	if p.closed || p.leaving || l.trigger == nil && p.skewing(now) {
		return nil
	}
	for len(all) < n && len(l.heap) > 0 && l.heap[0].due <= now {
		c := l.heap.pop()
		if l.paused && l.trigger != nil && p.expiry(c.refs[0]) > now {
			c.due = p.expiry(c.refs[0])
			l.heap.push(c)
			continue
		}
		all = append(all, load{queue: c, ref: c.refs[0]})
	}
	return all
}

// loadExpired takes records that have waited for too long while their trigger's circuit is
// open. The others keep their places in the heap until the first has expired, so
// the heap knows when each is due once the circuit closes.
func (p *partition) loadExpired(l *triggerState, n int, now millis) []load {
	if now < l.look || p.closed || l.parked == 0 || p.bounds.retention == config.Forever {
		return nil
	}
	l.look = now.add(time.Minute)
	if p.expiry(recordRef{first: uint32(l.oldest() / 1000)}) > now {
		return nil
	}
	var all []load
	for len(all) < n && len(l.heap) > 0 && l.heap[0].due <= now {
		c := l.heap.pop()
		if expiry := p.expiry(c.refs[0]); expiry > now {
			c.due, l.sorted = expiry, true
			l.heap.push(c)
			continue
		}
		all = append(all, load{queue: c, ref: c.refs[0]})
	}
	if len(all) == n {
		l.look = now
	}
	return all
}

// hasProbe reports whether a record may be the probe. Once the heap is sorted by expiry, a record
// may be tried before it is due.
func (p *partition) hasProbe(l *triggerState, now millis) bool {
	return !p.closed && !p.leaving && len(l.heap) > 0 && (l.sorted || l.heap[0].due <= now)
}

// loadProbe takes the record that has been due for the longest time.
func (p *partition) loadProbe(l *triggerState) load {
	c := l.heap.pop()
	return load{queue: c, ref: c.refs[0], probe: true}
}

// nextLoad returns when the trigger's first queue is due.
func (ts *triggerState) nextLoad() millis {
	if len(ts.heap) == 0 {
		return never
	}
	if ts.open && ts.sorted {
		return 0
	}
	return ts.heap[0].due
}

// holds reports whether a record that was to be read is still wanted. If it has been
// renewed meanwhile, its queue waits for the new record.
func (p *partition) holds(d load, now millis) bool {
	if p.closed || d.queue.at != loading || len(d.queue.refs) == 0 || !d.queue.refs[0].same(d.ref) {
		return false
	}
	if d.queue.refs[0].at != d.ref.at {
		d.queue.waitUntil(now, now)
		return false
	}
	return true
}

// loaded makes an item of a record that has been read. The item keeps the event, so its
// memory must not be reused.
func (p *partition) loaded(d load, r *record, v *broker.View, now millis) {
	if !p.holds(d, now) {
		return
	}
	expired := p.expiry(d.ref) <= now
	if l := d.queue.trigger; l.trigger != nil && !expired && !d.probe && (r.due > now || l.holdsBack()) {
		d.queue.waitUntil(max(r.due, now), now)
		return
	}
	i := p.awaken(d, now)
	i.event = &sourceEvent{view: *v, open: 1, logged: r.first}
	i.first, i.tries, i.written, i.past, i.letter = r.first, r.tries, r.tries, r.past, r.letter
	i.expired, i.doomed = expired, expired
}

// giveDeadLetter gives the queue's first item a dead letter, because its record no longer exists.
func (p *partition) giveDeadLetter(d load, reason string, now millis) {
	if p.holds(d, now) {
		i := p.awaken(d, now)
		i.event, i.lost, i.doomed, i.first = &sourceEvent{open: 1}, reason, true, millis(d.ref.first)*1000
	}
}

// awaken makes the first record of a queue its head.
func (p *partition) awaken(d load, now millis) *item {
	i := &item{part: p, queue: d.queue, ref: d.ref, parked: true, replay: p.replays.name(d.ref.replay), stage: ready, until: now.add(p.bounds.patience)}
	i.probe = d.probe
	d.queue.head, d.queue.at = i, idle
	p.out = append(p.out, i)
	return i
}

// unloaded puts back a record that could not be read for now.
func (p *partition) unloaded(d load, due, now millis) {
	if p.holds(d, now) {
		d.queue.waitUntil(due, now)
	}
}

// recordPlace is the place of a record on the parked stream.
type recordPlace struct {
	partition int32
	offset    int64
}

// parkedRecord is a record with its own memory.
type parkedRecord struct {
	record record
	view   broker.View
	err    error
	bytes  int
}

// shelfBytes bounds the loader's cache of records that are not wanted yet: a read returns
// thousands of records, and senders have room for a few.
const shelfBytes = 8 << 20

// recordCache is the loader's cache of records.
type recordCache = parked.Cache[recordPlace, *parkedRecord]

// readRecord copies a record from the log.
func readRecord(in *broker.Incoming) *parkedRecord {
	r := &parkedRecord{err: in.Err}
	if r.err == nil {
		r.err = r.record.decode(recordOf(&in.View))
	}
	if r.err == nil {
		r.err = r.record.history()
	}
	var err error
	if r.view, err = parked.Unwrap(in.View.Clone(), headerParked); r.err == nil {
		r.err = err
	}
	r.view.Foreign = parked.Strip(r.view.Foreign, headerParked)
	r.bytes = parked.Size(&r.view) + len(r.record.rest)
	return r
}
