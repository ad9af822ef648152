package deliver

import (
	"slices"
	"sync/atomic"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/broker/parked"
	"tidemill.dev/config"
)

// stage is the state of an item in memory.
type stage uint8

const (
	waiting stage = iota // waits for its predecessor to end
	ready                // to be sent
	flying               // an attempt is under way
	resting              // waits for its next attempt, which is soon
	parking              // waits to be parked, or for its record to be written again, because the next attempt is far off
	evicted              // only its record is left
	over                 // delivered, or its dead letter is written
)

// sourceEvent is an event in memory. The items made of it share it.
type sourceEvent struct {
	view  broker.View  // own copy
	slab  *sourceBatch // nil once the event is parked, or if it was read from the parked log
	at    int          // index in the batch
	open  int          // number of its items that have not ended
	unfit string       // reason why it cannot be parked; empty if it can

	logged millis // time when it reached the log, or was first parked if it is a parked event
}

// item is an event on its way to one trigger.
type item struct {
	part  *partition
	queue *keyQueue
	event *sourceEvent
	ref   recordRef
	stage stage

	until millis // time until which it may wait in memory
	due   millis // time of the next attempt
	first millis // time when it was first parked; 0 if it was not
	must  bool   // whether it must be parked; its batch counts it

	past    []Attempt   // attempts so far; the slice is replaced and never changed
	tries   int         // attempts made, which may be more than past lists
	written int         // attempts that its record knows of
	parked  bool        // whether it was read from the parked log
	probe   bool        // whether it is tried although its trigger's circuit is open
	replay  string      // command that asked for the replay of a dead letter
	letter  string      // dead letter that is replayed
	expired bool        // whether it was parked for too long
	lost    string      // reason why its record cannot be read; then there is no event to send
	doomed  bool        // whether it only needs a dead letter: its event is unfit, has expired or is lost
	gone    atomic.Bool // whether only its record is left; the sender may learn that late
}

// recordRef refers to an item's record on the parked log. There may be millions.
type recordRef struct {
	source int64
	at     int64  // offset on the parked log; none until it is written
	first  uint32 // time when it was first parked, in seconds
	replay uint32 // number of its replay; 0 is none
}

const none int64 = -1

// isBefore orders the items of a queue.
func (r recordRef) isBefore(o recordRef) bool { return compareRefs(r, o) < 0 }

func (r recordRef) same(o recordRef) bool { return r.source == o.source && r.replay == o.replay }

func (i *item) recorded() bool { return i.ref.at != none }

// sourceBatch is a delivery of the source, until all its items have ended. Batches leave the window
// in order, because all their items have ended or because they were parked.
type sourceBatch struct {
	events []broker.Incoming
	next   int64     // offset after the batch
	end    func(int) // reports that an event has ended
	// stale reports whether the partition was read again after this batch was read;
	// discard then gives the batch away. Both may be nil.
	stale    func() bool
	discard  func()
	delivery *broker.Delivery // delivery that a transaction ends; nil in tests
	bytes    int

	born   millis
	items  []*item
	open   int    // events that have not ended
	must   int    // items that must be parked
	unfit  int    // items that cannot be parked and have not ended
	since  millis // time since when the first of these must be parked
	frozen bool   // whether a transaction is parking it; only that transaction may end its events
}

// keepInHistory bounds the list of attempts at its beginning and at its end, because
// many attempts in between say little.
const keepInHistory = 10

// remember adds an attempt.
func (i *item) remember(a Attempt) {
	i.tries++
	grown := make([]Attempt, 0, len(i.past)+1)
	grown = append(grown, i.past...)
	if len(grown) == 2*keepInHistory {
		grown = append(grown[:keepInHistory], grown[keepInHistory+1:]...)
	}
	i.past = append(grown, a)
}

// keyQueue has the items of one key for one trigger, in the order of the source. Only
// the first of them, the head, is sent. Its parts are
//
//	refs: all items that are parked, the head among them if it is
//	head: the first item of the queue, if it is in memory
//	live: items in memory after the head, parked or not
//
// Without a head the queue waits for its first record to be read: it is in the heap of
// its trigger state, or the record is being loaded. Parked items that are no longer in
// memory come between the head and live.
type keyQueue struct {
	trigger *triggerState
	key     uint64
	due     millis
	head    *item
	live    []*item
	refs    []recordRef
	at      int32 // index in the heap, or one of the values below
	cut     int32 // records removed from the front of the memory of refs
}

const (
	idle    int32 = -1 // the queue has a head
	loading int32 = -2
	lonely  int32 = -3 // new; the queue has nothing at all
)

// mustReload reports whether the first item is not in memory, or soon will not be. Then
// the items after it had better be parked too.
func (c *keyQueue) mustReload() bool {
	return c.head == nil && len(c.refs) > 0 || c.head != nil && c.head.stage == parking
}

// push adds an item that has been read from the source.
func (c *keyQueue) push(i *item, now millis) {
	p := c.trigger.part
	switch {
	case c == &c.trigger.spillway:
		i.stage = waiting
		c.live = append(c.live, i)
		p.mustPark(i, now)
	case c.head == nil && len(c.refs) == 0 && len(c.live) == 0:
		c.raise(i, now)
	default:
		i.stage = waiting
		c.live = append(c.live, i)
		if c.mustReload() || c.trigger.holdsBack() {
			p.mustPark(i, now)
		}
	}
}

// raise makes an item the head.
func (c *keyQueue) raise(i *item, now millis) {
	c.head, c.at = i, idle
	if i.mustWait() {
		i.due = now
		c.park(i, now)
		return
	}
	i.stage = ready
	i.part.needNotPark(i)
	i.part.out = append(i.part.out, i)
}

// park parks the head until it is due, and the items after it. An item of a frozen batch
// is already being parked: see partition.settleCut.
func (c *keyQueue) park(i *item, now millis) {
	p := c.trigger.part
	i.stage = parking
	switch {
	case !i.recorded():
		p.mustPark(i, now)
	case i.written == i.tries:
		c.leave(i.due, now)
	default:
		p.rewrites = append(p.rewrites, i)
	}
	c.parkAll(now)
}

// parkAll parks the live items, because the first item will not be sent soon.
func (c *keyQueue) parkAll(now millis) {
	for len(c.live) > 0 && c.live[0].recorded() {
		c.evict()
	}
	for _, i := range c.live {
		c.trigger.part.mustPark(i, now)
	}
}

// evict forgets the first live item, which has a record.
func (c *keyQueue) evict() {
	c.live[0].forget()
	c.live[0] = nil
	c.live = c.live[1:]
	if len(c.live) == 0 {
		c.live = nil
	}
}

// leave drops the head's copy in memory. Its record is read again when it is due.
func (c *keyQueue) leave(due, now millis) {
	c.head.forget()
	c.head = nil
	if !c.leaveIndex() {
		c.waitUntil(due, now)
	}
}

// waitUntil puts the queue into the heap until its first record is due or expires.
func (c *keyQueue) waitUntil(due, now millis) {
	p := c.trigger.part
	c.due = min(due, p.expiry(c.refs[0]))
	if c.trigger.trigger == nil {
		c.due = now
	}
	c.trigger.heap.push(c)
	p.stirred = p.stirred || c.at == 0 // the loader may sleep until a later time
}

// add adds a record that has just been parked.
func (c *keyQueue) add(r recordRef) {
	c.insert(r)
	c.trigger.tally(r, 1)
}

// insert inserts a record in its place, which is nearly always the end.
func (c *keyQueue) insert(r recordRef) {
	at := len(c.refs)
	for at > 0 && r.isBefore(c.refs[at-1]) {
		at--
	}
	switch first := c.head != nil && c.head.recorded(); {
	case first && c.head.ref.same(r):
		at = 0 // a replay of an earlier item may have come meanwhile
	case at == 0 && len(c.refs) > 0 && (first || c.at == loading):
		at = 1 // an item on its way is not overtaken
	}
	c.refs = slices.Insert(c.refs, at, r)
}

// drop removes the first record, whose item has ended. From time to time it frees the
// memory of the removed records.
func (c *keyQueue) drop() {
	c.trigger.tally(c.refs[0], -1)
	c.refs = c.refs[1:]
	c.cut++
	if len(c.refs) == 0 {
		c.refs, c.cut = nil, 0
	} else if int(c.cut) > len(c.refs) {
		c.refs, c.cut = slices.Clone(c.refs), 0
	}
	if ts := c.trigger; ts.mayRefill() {
		ts.part.stirred = true
	}
}

// advance makes the next item the head after the head has ended.
func (c *keyQueue) advance(now millis) {
	c.head = nil
	switch {
	case len(c.refs) > 0 && (len(c.live) == 0 || !c.live[0].ref.same(c.refs[0])):
		c.parkAll(now)
		c.waitUntil(now, now)
	case len(c.live) > 0:
		i := c.live[0]
		c.live[0] = nil
		if c.live = c.live[1:]; len(c.live) == 0 {
			c.live = nil
		}
		c.raise(i, now)
	default:
		c.trigger.forget(c)
	}
}

// triggerState is the state of one trigger in one partition.
type triggerState struct {
	part    *partition
	name    string
	trigger *config.Trigger // nil if the config no longer has the trigger
	paused  bool
	open    bool // whether its circuit is open: see circuit.go

	byKey    map[uint64]*keyQueue // queues of ordered items, by the hash of their key
	heap     queueHeap            // queues that wait for their first record
	count    int                  // number of all queues, also those without a key
	parked   int                  // number of records
	spilled  parked.List          // records that are in no queue: see spill.go
	spillway keyQueue             // new items that will be spilled
	refill   refill               // spilled records that are being read
	parkedAt map[uint32]minute    // records that were first parked in each minute
	// look is when queues whose first record has expired are looked for while the circuit
	// is open, and sorted is whether that has made the heap forget when queues are due.
	look   millis
	sorted bool
}

// holdsBack reports whether no item is sent for now and all items are parked instead.
func (ts *triggerState) holdsBack() bool {
	return ts.part.past == 0 && (ts.paused || ts.open || ts.part.leaving)
}

// holds reports whether an item is not sent for now, although it could be.
func (ts *triggerState) holds(i *item) bool {
	if i.probe {
		return ts.paused || ts.part.leaving
	}
	return ts.holdsBack()
}

// queueOf returns the queue of a key and creates it if there is none. Each event without
// a key gets a new queue.
func (ts *triggerState) queueOf(key uint64, keyed bool) *keyQueue {
	if keyed {
		if c := ts.byKey[key]; c != nil {
			return c
		}
	}
	c := &keyQueue{trigger: ts, key: key, at: lonely}
	ts.count++
	if keyed {
		ts.byKey[key] = c
	}
	return c
}

// forget drops a queue that has no items left.
func (ts *triggerState) forget(c *keyQueue) {
	ts.count--
	if ts.byKey[c.key] == c {
		delete(ts.byKey, c.key)
		if len(ts.byKey) == 0 {
			ts.byKey = map[uint64]*keyQueue{} // a map keeps the memory of its largest size
		}
	}
}

// tally counts records in and out.
func (ts *triggerState) tally(r recordRef, n int) {
	ts.parked += n
	at := r.first / 60
	m, known := ts.parkedAt[at]
	if m.n += int32(n); m.n <= 0 {
		delete(ts.parkedAt, at)
		return
	}
	if !known || r.first < m.first {
		m.first = r.first
	}
	ts.parkedAt[at] = m
}

// minute counts the records that were first parked in one minute.
type minute struct {
	n     int32
	first uint32 // time of the oldest of them, in seconds; it may be gone already
}

// oldest returns when the oldest parked item was first parked, or up to a minute before.
func (ts *triggerState) oldest() millis {
	first := never
	for _, m := range ts.parkedAt {
		first = min(first, millis(m.first)*1000)
	}
	return first
}

// isEmpty reports whether nothing is left.
func (ts *triggerState) isEmpty() bool {
	return ts.count == 0 && ts.spilled.Len() == 0 && ts.refill.left == 0 && len(ts.spillway.live) == 0
}

// retain sets the retention of the stream. Waiting items must expire before it ends.
func (p *partition) retain(d time.Duration) {
	if d == p.bounds.retention {
		return
	}
	p.bounds.retention = d
	for _, l := range p.states {
		for _, c := range l.heap {
			c.due = min(c.due, p.expiry(c.refs[0]))
		}
		l.heap.order()
		p.stirred = true
	}
}

// change applies the trigger's config, pause and circuit.
func (ts *triggerState) change(s *triggerSettings, now millis) {
	t, paused, open := s.stateOf(ts.name)
	freed := ts.paused && !paused || ts.trigger != nil && t == nil
	closed := ts.open && !open
	ts.trigger, ts.paused, ts.open = t, paused, open
	if freed || closed && ts.sorted {
		ts.heap.makeAllDue(now)
		ts.sorted = false
	}
	if freed || closed {
		ts.part.stirred = true
	}
}

// queueHeap orders queues by the time when they are due. A queue knows its index, so that it can be
// moved. container/heap would need a second indirection, which is costly for a million queues.
type queueHeap []*keyQueue

func (h *queueHeap) push(c *keyQueue) {
	*h = append(*h, c)
	h.up(len(*h) - 1)
}

func (h *queueHeap) pop() *keyQueue {
	old := *h
	c := old[0]
	last := len(old) - 1
	old[0] = old[last]
	old[last] = nil
	*h = old[:last]
	if last > 0 {
		h.down(0)
	}
	c.at = loading
	if cap(*h) > 1024 && last < cap(*h)/4 {
		*h = append(make(queueHeap, 0, cap(*h)/2), *h...)
	}
	return c
}

// makeAllDue makes every queue due at once.
func (h queueHeap) makeAllDue(due millis) {
	for _, c := range h {
		c.due = due
	}
}

// order restores the order of the heap.
func (h queueHeap) order() {
	for i := len(h)/2 - 1; i >= 0; i-- {
		h.down(i)
	}
}

func (h queueHeap) up(i int) {
	c := h[i]
	for i > 0 && c.due < h[(i-1)/2].due {
		h.set(i, h[(i-1)/2])
		i = (i - 1) / 2
	}
	h.set(i, c)
}

func (h queueHeap) down(i int) {
	c := h[i]
	for {
		child := 2*i + 1
		if child+1 < len(h) && h[child+1].due < h[child].due {
			child++
		}
		if child >= len(h) || c.due <= h[child].due {
			h.set(i, c)
			return
		}
		h.set(i, h[child])
		i = child
	}
}

func (h queueHeap) set(i int, c *keyQueue) {
	h[i] = c
	c.at = int32(i)
}

// itemHeap orders waiting items by the time when they are due.
type itemHeap []*item

func (h itemHeap) Len() int           { return len(h) }
func (h itemHeap) Less(i, j int) bool { return h[i].due < h[j].due }
func (h itemHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *itemHeap) Push(x any)        { *h = append(*h, x.(*item)) }
func (h *itemHeap) Pop() any {
	old := *h
	i := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return i
}
