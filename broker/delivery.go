package broker

import (
	"sync"
	"sync/atomic"
	"time"

	"tidemill.dev/broker/internal/wire"
)

// Delivery is some consecutive events of one partition. Their strings and data
// point into fetched bytes and are valid until the last of them is Done.
type Delivery struct {
	Stream    string
	Partition int32
	Events    []Incoming

	c      *Consumer
	part   *inPartition
	epoch  uint64
	series uint64
	first  uint64 // number of its first event
	behind uint64 // number behind its last
	next   int64  // the offset behind what was read for it
	buffer *fetchBuffer
	open   int // of its events; guarded by the partition's lock
	*contents
}

// contents is the memory that a delivery is made of. It is used again when the
// last of the events is Done, the delivery itself is not: who ends it once more,
// or while another goroutine ends its last event, must not end the events of
// another delivery.
type contents struct {
	events   []Incoming
	ended    []bool   // by place in events; guarded by the partition's lock while any is open
	unpack   [][]byte // one a compressed batch
	batches  int      // how many of unpack are in use
	unpacked int      // bytes in them
	held     int64    // of the bytes in flight
	letters  []letter // what could not be decoded, and gaps
	record   wire.Record
}

// Incoming is one event as it was read.
type Incoming struct {
	View
	Offset int64
	Time   time.Time // when it reached the log
	// Err is why the record is no event, for a consumer without a group;
	// then View holds only the record's Key, Data and Foreign headers.
	Err error

	d      *Delivery
	at     int    // in the delivery
	number uint64 // in the partition's watermark
}

// Position is where the event stands.
func (e *Incoming) Position() Position {
	return Position{Stream: e.d.Stream, Partition: e.d.Partition, Offset: e.Offset}
}

// Done says that the event has been dealt with for good. Events may end in any
// order and from any goroutine; the group's offset moves past them in order.
func (e *Incoming) Done() { e.d.end(e.at, 1) }

// Done ends all events of the delivery that have not ended yet.
func (d *Delivery) Done() {
	d.end(0, len(d.Events))
}

// handed is what became of a delivery when Poll came to it.
type handed int8

const (
	passedOn handed = iota // its events are Poll's caller's
	filtered               // it counts, but holds no events
	outdated               // its partition has been given up or read anew
)

// hand numbers the delivery's events. Called with the consumer's lock held, so
// that two callers of Poll cannot number one partition's deliveries out of
// order.
func (d *Delivery) hand() handed {
	p := d.part
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queued--
	if p.gone || p.draining || p.series != d.series {
		return outdated
	}
	p.register(d)
	if len(d.Events) == 0 {
		return filtered
	}
	d.c.counts.events.Add(uint64(len(d.Events)))
	return passedOn
}

// end ends n events from one on, each once, whether their partition is still
// ours or not: the memory of what was taken away is given back too. The last
// of a delivery's events gives it away, so it is touched no more after that.
func (d *Delivery) end(from, n int) {
	p, c := d.part, d.c
	news := 0
	p.mu.Lock()
	for i := from; i < from+n && d.open > 0; i++ {
		if d.ended[i] {
			continue
		}
		d.ended[i] = true
		d.open--
		news++
		if p.epoch == d.epoch {
			p.mark.end(d.Events[i].number)
		}
	}
	last := news > 0 && d.open == 0
	drained := news > 0 && p.epoch == d.epoch && p.draining && p.mark.open() == 0
	p.mu.Unlock()
	c.counts.done.Add(uint64(news))
	if last {
		d.release()
	}
	if drained && c.member != nil {
		c.member.nudge()
	}
}

// Current tells whether the delivery's partition has been neither given up nor
// read anew since it was handed out. Once it has, the events come again.
func (d *Delivery) Current() bool { return d.part.stands(d.epoch) }

// Next is the offset behind what was read for the delivery: behind its last
// event, and behind the markers and the gap that may follow it.
func (d *Delivery) Next() int64 { return d.next }

// release gives the delivery's memory back. What is left of it knows its
// partition and that nothing is open.
func (d *Delivery) release() {
	s, buffer, c := d.contents, d.buffer, d.c
	clear(s.letters)
	clearViews(d.Events)
	for _, b := range s.unpack[:s.batches] {
		overwrite(b)
	}
	s.events, s.letters = d.Events[:0], s.letters[:0]
	d.contents, d.buffer = nil, nil
	held := s.held
	s.held = 0
	c.memory.Put(s)
	if held > 0 {
		c.room.give(held)
		c.nudgeAll()
	}
	if buffer != nil {
		buffer.drop()
	}
}

// hold counts what was unpacked for the delivery among the bytes in flight: a
// small fetched batch may have become a large one.
func (d *Delivery) hold() {
	for _, b := range d.unpack[:d.batches] {
		d.held += int64(cap(b))
	}
	d.c.room.take(d.held)
}

// fetchBuffer holds the answer to one fetch until all deliveries that point
// into it have been released.
type fetchBuffer struct {
	c      *Consumer
	bytes  []byte
	pooled bool // the memory is worth keeping
	users  atomic.Int32
}

func (f *fetchBuffer) size() int64 { return int64(cap(f.bytes)) }

func (f *fetchBuffer) drop() {
	if f.users.Add(-1) > 0 {
		return
	}
	f.c.room.give(f.size())
	overwrite(f.bytes)
	if f.pooled {
		f.c.buffers.Put(f)
	}
	f.c.nudgeAll()
}

// bytesInFlight bounds how much is fetched and not yet dealt with.
type bytesInFlight struct {
	limit int64
	used  atomic.Int64
}

func (r *bytesInFlight) full() bool   { return r.used.Load() >= r.limit }
func (r *bytesInFlight) take(n int64) { r.used.Add(n) }
func (r *bytesInFlight) give(n int64) { r.used.Add(-n) }

// inPartition is one partition that is being read.
type inPartition struct {
	c      *Consumer
	tp     wire.TopicPartition
	stream string

	mu        sync.Mutex
	leader    int32
	position  int64  // the next offset to fetch
	epoch     uint64 // of mark: what was handed out before it moved ends in vain
	series    uint64 // of fetches: what was fetched before it moved is not handed out
	mark      watermark
	committed int64
	metadata  string // the metadata committed beside it
	note      string // the caller's, to be committed in it
	ended     []span // under former readers, beyond what they committed; never handed out
	reserved  bool   // by a transaction, which alone commits; not given up before its drainBy
	unwritten int    // dead letters that are on their way
	queued    int    // deliveries that wait for Poll
	paused    bool
	draining  bool // taken away: nothing new is handed out
	parting   parting
	gone      bool
	drainBy   time.Time
	notBefore time.Time // after an error
	retries   backoff
}

// register numbers a delivery's events. Letters are numbered among them, so
// that the offset does not pass a dead letter before it is written.
func (p *inPartition) register(d *Delivery) {
	l := 0
	for i := range d.Events {
		e := &d.Events[i]
		for ; l < len(d.letters) && d.letters[l].mark < e.Offset; l++ {
			d.letters[l].bind(p, d.epoch)
		}
		e.d, e.at, e.number = d, i, p.mark.add(e.Offset)
	}
	for ; l < len(d.letters); l++ {
		d.letters[l].bind(p, d.epoch)
	}
	if n := len(d.Events); n > 0 {
		d.first, d.behind = d.Events[0].number, d.Events[n-1].number+1
	}
	p.mark.skip(d.next)
	d.ended = append(d.ended[:0], make([]bool, len(d.Events))...)
	d.open = len(d.Events)
}

// rewind reads again from an offset, the group being at another perhaps. What
// has ended is not handed out again, whoever read it; what has not is.
func (p *inPartition) rewind(offset int64, known origin) {
	p.mu.Lock()
	ended := p.endedFrom(known.offset)
	p.restart(offset)
	p.committed, p.metadata, p.ended = known.offset, known.metadata, ended
	p.note, _ = decodeBeside(known.offset, known.metadata)
	if offset != known.offset { // moved on purpose: what has ended may be wanted again
		p.ended, p.metadata = nil, encodeBeside(offset, p.note, nil)
	}
	p.mu.Unlock()
	p.c.nudge(p)
}

// restart forgets what is open and reads on from an offset. Called with the
// lock held.
func (p *inPartition) restart(offset int64) {
	p.epoch++
	p.series++
	p.unwritten = 0
	p.mark.begin(offset)
	p.position = offset
}

// drain stops handing out, because the partition is taken away. Called with
// the lock held.
func (p *inPartition) drain(by time.Time) {
	if !p.draining {
		p.draining, p.drainBy = true, by
	}
}

// keep undoes drain, because the partition is given back. What was fetched and
// thrown away meanwhile is fetched again. Called with the lock held.
func (p *inPartition) keep() {
	if p.draining {
		p.draining = false
		p.refetch()
	}
}

// refetch throws away what was fetched and not handed out. Called with the
// lock held.
func (p *inPartition) refetch() {
	p.series++
	p.position = p.mark.read
}

// watermark finds how far a partition may be committed while its events end in
// any order: up to the first that has not ended. It is pure; its partition's
// lock guards it.
type watermark struct {
	after []int64 // ring: the offset behind each event handed out and not yet passed
	ended []bool
	head  int // in the ring, of event number first
	n     int
	first uint64
	next  int64 // what to commit: everything below has ended
	read  int64 // how far the log has been read; past next by what was filtered out
}

// begin starts at the offset from which the partition is read.
func (w *watermark) begin(offset int64) {
	w.first += uint64(w.n) // numbers never repeat, so a late end is recognised
	w.head, w.n = 0, 0
	w.next, w.read = offset, offset
}

// add hands out an event and returns its number.
func (w *watermark) add(offset int64) uint64 {
	if w.n == len(w.after) {
		w.grow()
	}
	at := w.at(w.n)
	w.after[at], w.ended[at] = offset+1, false
	w.n++
	w.read = max(w.read, offset+1)
	return w.first + uint64(w.n) - 1
}

// at is where the i-th event stands in the ring, whose size is a power of two.
func (w *watermark) at(i int) int { return (w.head + i) & (len(w.after) - 1) }

func (w *watermark) grow() {
	size := max(64, 2*len(w.after))
	after, ended := make([]int64, size), make([]bool, size)
	for i := range w.n {
		at := w.at(i)
		after[i], ended[i] = w.after[at], w.ended[at]
	}
	w.after, w.ended, w.head = after, ended, 0
}

// skip says that the log has been read up to an offset and holds nothing more
// to hand out below it.
func (w *watermark) skip(offset int64) {
	w.read = max(w.read, offset)
	if w.n == 0 {
		w.next = w.read
	}
}

// end says that an event has ended, and tells whether that was news. A number
// from before begin is not: the partition was given up meanwhile.
func (w *watermark) end(number uint64) bool {
	i := int(number - w.first)
	if number < w.first || i >= w.n {
		return false
	}
	at := w.at(i)
	if w.ended[at] {
		return false
	}
	w.ended[at] = true
	for w.n > 0 && w.ended[w.head] {
		w.next = w.after[w.head]
		w.head = w.at(1)
		w.n--
		w.first++
	}
	if w.n == 0 {
		w.next = w.read
	}
	return true
}

// all tells whether every event from one number up to another has ended.
func (w *watermark) all(from, to uint64) bool {
	for number := max(from, w.first); number < to; number++ {
		if i := int(number - w.first); i >= w.n || !w.ended[w.at(i)] {
			return false
		}
	}
	return true
}

// open is how many events have been handed out and lie at or behind the
// watermark.
func (w *watermark) open() int { return w.n }

// overwrite fills memory that is given back with nonsense, in programs with the
// race detector. A handler that keeps a view of an event after its end then reads
// nonsense in every test, instead of only when another fetch reuses the memory.
func overwrite(b []byte) {
	if !wire.RaceDetector || len(b) == 0 {
		return
	}
	b[0] = 0xdb
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// clearViews does the same to the views that a delivery has handed out.
func clearViews(events []Incoming) {
	if !wire.RaceDetector {
		return
	}
	for i := range events {
		events[i].View = View{}
	}
}
