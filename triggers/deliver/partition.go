package deliver

import (
	"container/heap"
	"fmt"
	"hash/maphash"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/broker/parked"
	"tidemill.dev/config"
)

// plan lists the triggers that read a stream. It is read-only.
type plan struct {
	triggers []string
	// match appends the indexes in triggers of those that want the event, each once.
	match func(v *broker.View, dst []int) []int
}

// triggerSettings are the config and the pauses of the triggers. They are read-only.
type triggerSettings struct {
	plan     *plan
	triggers map[string]*config.Trigger // all triggers, whatever they read
	since    map[string]time.Time       // time since which this process knows each trigger
	paused   func(trigger string) bool
	open     func(trigger string) bool // whether the trigger's circuit is open; nil if no circuit is
}

// knownSince returns the time since which this process knows all triggers of the stream that have not begun yet; the
// zero time if all have begun.
func (t *triggerSettings) knownSince(begun map[string]int64) (since time.Time) {
	for _, name := range t.plan.triggers {
		if _, has := begun[name]; !has && (since.IsZero() || t.since[name].Before(since)) {
			since = t.since[name]
		}
	}
	return since
}

// stateOf returns the settings of one trigger.
func (t *triggerSettings) stateOf(name string) (to *config.Trigger, paused, open bool) {
	return t.triggers[name], t.paused(name), t.open != nil && t.open(name)
}

// bounds of a partition.
type bounds struct {
	patience  time.Duration // longest wait of an item in memory
	linger    time.Duration // shortest wait of an item to be parked, because other items of its batch end meanwhile
	collect   time.Duration // longest wait for a transaction, which takes what has waited for linger in all partitions
	window    int           // events that are read, have not ended and are not parked
	bytes     int           // bytes of these events
	event     int           // largest size of an event to be parked, in bytes
	retention time.Duration // retention of the stream; 0 is for ever
	skew      time.Duration // largest delay between the configs of two dispatchers
	index     int           // records of a trigger in queues, beyond which records are spilled: see spill.go
	renewal   parked.Renewal
}

// defaultBounds has a renewal that lets one waiting record cause some reads, but not a second of them.
func defaultBounds() bounds {
	return bounds{patience: 250 * time.Millisecond, linger: 50 * time.Millisecond, collect: 200 * time.Millisecond, window: 8192, bytes: 16 << 20, event: maxParked - parkedRoom, index: 16 << 10,
		renewal: parked.Renewal{Least: 4 << 10, Share: 4}}
}

// partition is the dispatcher's state of one partition of a stream: the events that have
// not ended, the parked events, and the offset from which each trigger gets events. It
// only decides; it does no I/O and has no lock: see assignment for that. Its results are
//
//	out       items to be handed to their senders
//	plan()    the partition's part of the next transaction
//	load()    records to be read, as far as senders have room for them
//
// A rebuild creates a new partition. Results that come back for the old one find it
// closed and change nothing.
type partition struct {
	home     *assignment // assignment whose lock guards it; nil in tests
	stream   string
	number   int32
	bounds   bounds
	settings *triggerSettings

	states map[string]*triggerState
	reads  []planned // triggers in the order of the plan
	next   int64     // source offset after the last batch taken

	window  []*sourceBatch
	events  int // events in the window that have not ended
	held    int // about how many bytes these events take
	backlog []*sourceBatch

	resting  itemHeap
	kept     []*item // items that a cut has parked and that are still in memory
	rewrites []*item
	pinned   []load  // records that keep the mark where it is, in the order of the log
	renewals []*item // records of these that were read to be written again
	renewing int     // bytes of the renewals
	scanned  int     // length of the log when pinned was last filled
	settled  []endedItem
	writing  *partitionWrite
	flying   int

	base     int64 // source offset at which it began
	latest   int64 // lowest offset at which a new trigger begins
	begun    triggerStarts
	begunAt  int64          // offset of begun on the parked log; none before the first
	begunOn  millis         // time when begun was written
	tidy     millis         // time of the last commit
	wanted   *triggerStarts // starts to be written
	progress commandProgress
	replayed *replayBatch // replayed dead letters to be written
	skewed   millis       // time until which the config may be older than begun

	needed  parked.Offsets // offsets of the parked log; the lowest is the mark
	logEnd  int64          // offset after the newest record that we know of
	mark    int64          // committed mark
	trimmed int64          // offset below which we have deleted the records
	replays replays
	past    uint32 // number of the range replay that it belongs to; 0 is none, see rangeReplay
	keys    maphash.Seed
	out     []*item
	matched []int
	opened  bool
	paused  bool // whether nothing is read for now
	missing bool // whether its parked partition is missing, so that it waits: see pipeline.awaitParkedPartition
	stirred bool // whether a queue is due earlier than all queues were before
	leaving bool
	closed  bool
}

// planned is a trigger of the plan with its state.
type planned struct {
	line *triggerState
	from int64
}

// newPartition returns a partition without items.
func newPartition(stream string, number int32, b bounds, position int64) *partition {
	return &partition{stream: stream, number: number, bounds: b, base: position, next: position, states: map[string]*triggerState{},
		begun: triggerStarts{From: map[string]int64{}}, progress: commandProgress{open: map[int64]int{}}, begunAt: none, keys: maphash.MakeSeed(), replays: newReplays()}
}

func (p *partition) triggerState(name string) *triggerState {
	l := p.states[name]
	if l == nil {
		l = &triggerState{part: p, name: name, byKey: map[uint64]*keyQueue{}, parkedAt: map[uint32]minute{}}
		l.spillway = keyQueue{trigger: l, at: lonely}
		if p.settings != nil {
			l.trigger, l.paused, l.open = p.settings.stateOf(name)
		}
		p.states[name] = l
	}
	return l
}

// expiry returns when an item has been parked for so long that its record could soon be cut.
func (p *partition) expiry(r recordRef) millis {
	if p.bounds.retention == config.Forever {
		return never
	}
	return millis(r.first)*1000 + millis(p.bounds.retention.Milliseconds()/2)
}

// hash distinguishes keys. Two keys of the same hash only wait for each other.
func (p *partition) hash(key []byte) uint64 { return maphash.Bytes(p.keys, key) }

// busy reports whether anything is left to be done for events that were read.
func (p *partition) busy() bool {
	return len(p.window) > 0 || len(p.backlog) > 0 || len(p.settled) > 0 || len(p.rewrites) > 0 || len(p.renewals) > 0 || p.replayed != nil || len(p.resting) > 0 || p.writing != nil || p.flying > 0
}

// markClosed makes all results that are still under way obsolete.
func (p *partition) markClosed() { p.closed = true }

// acceptBatch accepts the next batch of the source. While a trigger's first offset is being
// recorded, the batch waits in the backlog. An event sent before that would be
// forgotten in a crash, because the trigger would begin after it.
func (p *partition) acceptBatch(s *sourceBatch, now millis) {
	p.backlog = append(p.backlog, s)
	p.release(now)
}

// release takes the batches out of the backlog, unless they still have to wait.
func (p *partition) release(now millis) {
	if len(p.backlog) == 0 || p.mustHold(now) {
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

// open lets a rebuilt partition accept batches.
func (p *partition) open(now millis) {
	p.opened = true
	p.release(now)
}

// admit makes items of a batch's events. An event that no trigger wants has ended.
func (p *partition) admit(s *sourceBatch, now millis) {
	s.born = now
	p.next = max(p.next, s.next)
	var unwanted []int
	for at := range s.events {
		in := &s.events[at]
		p.matched = p.settings.plan.match(&in.View, p.matched[:0])
		var e *sourceEvent
		for _, m := range p.matched {
			if t := p.reads[m]; in.Offset >= t.from {
				if e == nil {
					e = &sourceEvent{view: in.View.Clone(), slab: s, at: at, logged: millisOf(in.Time)}
					if p.past == 0 {
						e.unfit = p.whyUnfit(&e.view)
					} else {
						e.logged = now // the age of an event of a past range is not our latency
					}
					s.open++
					s.bytes += parked.Size(&e.view)
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
	for _, at := range unwanted { // last, because after its last event a delivery's memory is reused
		s.end(at)
	}
	s.events = nil
}

// receive makes an item of an event that matches a trigger.
func (p *partition) receive(l *triggerState, e *sourceEvent, source int64, now millis) {
	ordered := l.trigger != nil && l.trigger.Delivery.Ordered && e.view.Key != nil
	var key uint64
	if ordered {
		key = p.hash(e.view.Key)
	}
	var c *keyQueue
	if ordered && e.unfit == "" && p.past == 0 && l.spills() {
		c = &l.spillway
	} else {
		c = l.queueOf(key, ordered && e.unfit == "")
	}
	i := &item{part: p, queue: c, event: e, doomed: e.unfit != "", ref: recordRef{source: source, at: none, replay: p.past}, replay: p.replays.name(p.past), until: now.add(p.bounds.patience)}
	if e.open++; e.unfit != "" {
		e.slab.unfit++
	}
	e.slab.items = append(e.slab.items, i)
	c.push(i, now)
}

// mustPark marks an item to be parked with the next cut.
func (p *partition) mustPark(i *item, now millis) {
	s := i.event.slab
	if i.must || s == nil || i.recorded() || i.stage == over || i.event.unfit != "" {
		return
	}
	i.must = true
	if s.must++; s.must == 1 {
		s.since = now
	}
}

// needNotPark undoes mustPark, because the item's turn has come before it was parked.
func (p *partition) needNotPark(i *item) {
	if s := i.event.slab; i.must && s != nil && !s.frozen {
		i.must = false
		s.must--
	}
}

// finish ends the item's event for its batch and removes ended batches from the window.
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

// trim removes ended batches from the front of the window.
func (p *partition) trim() {
	for len(p.window) > 0 && p.window[0].open == 0 {
		p.shift()
	}
}

// shift removes the first batch of the window.
func (p *partition) shift() {
	s := p.window[0]
	p.held -= s.bytes
	p.events -= s.open
	p.window[0] = nil
	if p.window = p.window[1:]; len(p.window) == 0 {
		p.window = nil
	}
}

// start begins to send an item. It reports whether the item is still to be sent.
func (p *partition) start(i *item, now millis) bool {
	if p.closed || i.stage != ready {
		return false
	}
	if i.mustWait() {
		i.due = now
		i.queue.park(i, now)
		return false
	}
	switch {
	case p.past == 0:
	case p.leaving: // the next owner sends it
		return false
	case i.queue.trigger.paused:
		p.out = append(p.out, i) // not sent before the trigger is resumed
		return false
	}
	i.stage = flying
	p.flying++
	return true
}

// reportEnd reports that a started item was delivered or that its dead letter is written.
func (p *partition) reportEnd(i *item, now millis) {
	if p.closed || i.stage != flying {
		return
	}
	p.flying--
	i.stage = over
	if i.recorded() {
		p.queueEndNote(i)
		i.queue.drop()
	}
	p.finish(i)
	i.queue.advance(now)
}

// failed reports that an item's attempt has failed and when the next may come.
func (p *partition) failed(i *item, a Attempt, wait time.Duration, now millis) {
	if p.closed || i.stage != flying {
		return
	}
	i.remember(a)
	p.postponed(i, wait, now)
}

// postponed reports that a started item has not ended and when it may be tried again.
// The item waits in memory if the delay is short or it only needs a dead letter; otherwise it is parked.
func (p *partition) postponed(i *item, wait time.Duration, now millis) {
	if p.closed || i.stage != flying {
		return
	}
	p.flying--
	i.due = now.add(wait)
	if i.doomed || i.due <= i.until && !i.queue.trigger.holdsBack() {
		i.stage = resting
		heap.Push(&p.resting, i)
		return
	}
	i.queue.park(i, now)
}

// wake sends the items whose retry delay is over.
func (p *partition) wake(now millis) {
	for len(p.resting) > 0 && p.resting[0].due <= now {
		i := heap.Pop(&p.resting).(*item)
		if i.stage == resting {
			i.stage = ready
			p.out = append(p.out, i)
		}
	}
	p.dropKept(now)
}

// handOut returns the items to be sent.
func (p *partition) handOut() []*item {
	out := p.out
	p.out = nil
	return out
}

// deadline returns when the partition has to be looked at next if nothing happens before; a past
// time means now. Records to be loaded do not count, because that depends on their sender.
func (p *partition) deadline(now millis) millis {
	next := never
	if len(p.resting) > 0 {
		next = p.resting[0].due
	}
	if p.writing != nil || p.closed || p.missing {
		return next
	}
	if len(p.settled) > 0 || len(p.rewrites) > 0 || len(p.renewals) > 0 {
		next = min(next, p.tidy.add(p.bounds.collect))
	}
	able := p.cuttable() // a transaction would write nothing for the other batches
	for _, s := range able {
		if s.open > 0 {
			next = min(next, s.born.add(p.bounds.patience))
		}
		if s.must > 0 {
			next = min(next, s.since.add(p.bounds.collect))
		}
	}
	switch {
	case p.skewing(now):
		next = min(next, p.skewed)
	case p.wanted != nil, p.replayed != nil, p.needsRewrite(now), p.crowded() && len(able) > 0:
		next = now
	}
	return next
}

// crowded reports whether more events are in memory than the window should hold.
func (p *partition) crowded() bool { return p.events > p.bounds.window || p.held > p.bounds.bytes }

// parkedRoom is the space that a record adds to an event: its header with the history of attempts.
const parkedRoom = 64 << 10

// whyUnfit returns why an event cannot be parked; empty if it can. Every transaction with
// such an event would fail, and the event could not end without one. So it becomes a
// dead letter at once: an event that may not wait cannot be tried again either.
func (p *partition) whyUnfit(v *broker.View) string {
	if size := parked.Size(v); size > p.bounds.event {
		return fmt.Sprintf("the event cannot be parked and so could not be tried again: it has %d KiB, and %d are allowed", size>>10, p.bounds.event>>10)
	}
	return ""
}
