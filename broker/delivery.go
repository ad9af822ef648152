package broker

import (
	"sync"
	"sync/atomic"
	"time"

	"tidemill.dev/broker/internal/wire"
)

// Delivery is some consecutive events of one partition. Their strings and data point into fetched
// bytes and are valid until the last of these events is Done.
type Delivery struct {
	Stream    string
	Partition int32
	Events    []Incoming

	c         *Consumer
	part      *inPartition
	epoch     uint64
	series    uint64
	first     uint64 // number of its first event
	afterLast uint64 // number after its last event
	next      int64  // offset after the last record that was read for the delivery
	size      int64  // bytes that were fetched for it
	wakes     bool   // whether its handing out allows more fetches
	leaders   int32  // number of the leadership of the last batch
	buffer    *fetchBuffer
	open      int // number of its open events; guarded by the partition's lock
	*contents
}

// Leadership returns the number of the leadership in which the last batch of the delivery was
// written. Each new leader of a partition has a larger one.
func (d *Delivery) Leadership() int32 { return d.leaders }

// contents is the memory of a delivery. The memory is reused after the last event is Done. The
// Delivery itself is not reused. So a second or concurrent Done cannot end the events of another
// delivery.
type contents struct {
	events   []Incoming
	ended    []bool       // one for each event; guarded by the partition's lock while an event is open
	unpack   [][]byte     // one buffer for each compressed batch
	batches  int          // number of buffers in unpack that are in use
	unpacked int          // bytes in these buffers
	held     int64        // share of the bytes in flight
	letters  []deadLetter // records that could not be decoded, and gaps
	record   wire.Record
}

// Incoming is one event as it was read.
type Incoming struct {
	View
	Offset int64
	Time   time.Time // time at which the event reached the log
	// Err is the reason why the record is not an event, for a consumer without a group. Then View
	// holds only the record's Key, Data and Foreign headers.
	Err error

	d      *Delivery
	at     int    // index in the delivery
	number uint64 // number in the partition's watermark
}

// Position returns the event's place in its stream.
func (e *Incoming) Position() Position {
	return Position{Stream: e.d.Stream, Partition: e.d.Partition, Offset: e.Offset}
}

// Done ends the event, after all work for this event is done. Events may end in any order and from
// any goroutine; the group's offset moves past them in order.
func (e *Incoming) Done() { e.d.endEvents(e.at, 1) }

// Done ends all events of the delivery that are still open.
func (d *Delivery) Done() {
	d.endEvents(0, len(d.Events))
}

// handOut is the result of handing out a delivery to Poll.
type handOut int8

const (
	passedOn handOut = iota // Poll returns its events
	filtered                // its records count as read, but it has no events
	outdated                // its partition has been given up, or is being read again
)

// numberEvents numbers the delivery's events. The caller holds the consumer's lock, so that
// concurrent calls of Poll number the deliveries of a partition in order.
func (d *Delivery) numberEvents() handOut {
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

// endEvents ends n events from index from, each once. This also holds if the partition belongs to
// another consumer by now, because the memory must be released. The end of the last event releases
// the memory, so nothing may use the delivery's contents afterwards.
func (d *Delivery) endEvents(from, n int) {
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
			p.mark.endEvent(d.Events[i].number)
		}
	}
	last := news > 0 && d.open == 0
	drained := news > 0 && p.epoch == d.epoch && p.draining && p.mark.openCount() == 0
	p.mu.Unlock()
	c.counts.done.Add(uint64(news))
	if last {
		d.release()
	}
	if drained && c.member != nil {
		c.member.nudge()
	}
}

// Current reports whether the delivery's events still count. They do not count after the partition
// has been given up or is read again, because the events will be handed out again.
func (d *Delivery) Current() bool { return d.part.isCurrent(d.epoch) }

// Next returns the offset after the last record that was read for the delivery. That record may be
// an event, or a marker or a gap after the last event.
func (d *Delivery) Next() int64 { return d.next }

// release gives the delivery's memory back. The Delivery itself keeps its partition and records
// that no event is open.
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

// addInFlight adds the unpacked bytes to the bytes in flight, because a small compressed batch may
// unpack to a large one.
func (d *Delivery) addInFlight() {
	for _, b := range d.unpack[:d.batches] {
		d.held += int64(cap(b))
	}
	d.c.room.take(d.held)
}

// fetchBuffer holds the answer of one fetch until all deliveries that point into it are released.
type fetchBuffer struct {
	c      *Consumer
	bytes  []byte
	pooled bool // whether the memory is worth keeping
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

// bytesInFlight limits the bytes of fetched events that have not ended.
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
	life      life // life of the stream that is read now
	leader    int32
	position  int64  // next offset to fetch; see life
	end       int64  // end of the log in the last answer, as far as transactions have ended
	epoch     uint64 // number of restarts; an event handed out before the last one no longer moves the watermark
	series    uint64 // number of refetches; records fetched before the last one are not handed out
	mark      watermark
	committed int64
	metadata  string // metadata that is committed with the offset
	note      string // note of the caller, part of the metadata
	ended     []span // spans beyond the committed offset that former readers ended; never handed out
	reserved  bool   // whether a transaction has reserved it: only the transaction commits, and the partition stays until drainBy
	unwritten int    // number of dead letters that are being written
	queued    int    // number of deliveries that wait for Poll
	paused    bool
	draining  bool // whether it was taken away, so that nothing new is handed out
	parting   leavingState
	gone      bool
	surplus   bool // whether the stream has no such partition any more, so that its offset cannot be committed
	drainBy   time.Time
	notBefore time.Time // end of the pause after an error
	newest    time.Time // time of the newest event that was handed out
	heard     time.Time // time of the last answer that had it
	doubted   bool      // whether the stream may have been created again, because no answer had it for long
	asked     fetchAsk  // its part of the fetcher's last request that had it
	retries   backoff
}

// register numbers a delivery's events. Dead letters are numbered among them, so that the offset
// does not pass a dead letter before it is written.
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
		if at := d.Events[n-1].Time; at.After(p.newest) {
			p.newest = at
		}
		d.first, d.afterLast = d.Events[0].number, d.Events[n-1].number+1
	}
	p.mark.skipTo(d.next)
	d.ended = append(d.ended[:0], make([]bool, len(d.Events))...)
	d.open = len(d.Events)
}

// rewind reads again from an offset, which the hook may have moved away from the group's offset.
// Events that any reader has ended are not handed out again; all other events are.
func (p *inPartition) rewind(offset int64, known origin) {
	p.mu.Lock()
	known = p.life.place(known) // a life may have begun since the hook was called
	offset = max(offset, p.life.base)
	ended := p.endedFrom(known.offset)
	p.restart(offset)
	p.committed, p.metadata, p.ended = known.offset, known.metadata, ended
	p.note, _ = decodeMetadata(known.offset, known.metadata)
	if offset != known.offset { // moved by the hook, which may want events that have ended
		p.ended, p.metadata = nil, encodeMetadata(offset, p.note, nil)+p.life.encode()
	}
	p.mu.Unlock()
	p.c.wakeFetcher(p)
}

// restart drops the open events and continues to read from an offset. The caller holds the lock.
func (p *inPartition) restart(offset int64) {
	p.epoch++
	p.series++
	p.unwritten = 0
	p.mark.begin(offset)
	p.position = offset
}

// drain stops handing out events, because the partition is taken away. The caller holds the lock.
func (p *inPartition) drain(by time.Time) {
	if !p.draining {
		p.draining, p.drainBy = true, by
	}
}

// undoDrain undoes drain, because the partition is given back. Records that were dropped meanwhile
// are fetched again. The caller holds the lock.
func (p *inPartition) undoDrain() {
	if p.draining {
		p.draining = false
		p.refetch()
	}
}

// refetch drops the records that were fetched and not handed out. The caller holds the lock.
func (p *inPartition) refetch() {
	p.series++
	p.position = max(p.mark.read, p.life.base) // the delivery that begins a life may be one of the dropped
}

// watermark computes the offset to commit while a partition's events end in any order. This offset
// is that of the first event that has not ended. A watermark does no I/O, and the partition's lock
// guards it.
type watermark struct {
	after []int64 // ring of the offsets after each event from number first to the newest
	ended []bool
	head  int // index in the ring of event number first
	n     int
	first uint64
	next  int64 // offset to commit: every event below it has ended
	read  int64 // offset after the last record read; larger than next if records were filtered out
}

// begin starts at the offset from which the partition is read.
func (w *watermark) begin(offset int64) {
	w.first += uint64(w.n) // numbers never repeat, so the end of an old event is ignored
	w.head, w.n = 0, 0
	w.next, w.read = offset, offset
}

// add hands out an event and returns its number.
func (w *watermark) add(offset int64) uint64 {
	if w.n == len(w.after) {
		w.grow()
	}
	at := w.ringIndex(w.n)
	w.after[at], w.ended[at] = offset+1, false
	w.n++
	w.read = max(w.read, offset+1)
	return w.first + uint64(w.n) - 1
}

// ringIndex returns the index in the ring of the i-th event. The size of the ring is a power of
// two.
func (w *watermark) ringIndex(i int) int { return (w.head + i) & (len(w.after) - 1) }

func (w *watermark) grow() {
	size := max(64, 2*len(w.after))
	after, ended := make([]int64, size), make([]bool, size)
	for i := range w.n {
		at := w.ringIndex(i)
		after[i], ended[i] = w.after[at], w.ended[at]
	}
	w.after, w.ended, w.head = after, ended, 0
}

// skipTo records that the log was read up to an offset, and that all events below it were handed
// out.
func (w *watermark) skipTo(offset int64) {
	w.read = max(w.read, offset)
	if w.n == 0 {
		w.next = w.read
	}
}

// endEvent marks an event as ended, and reports whether it was open. A number that was given out
// before begin is ignored, because the partition was given up meanwhile.
func (w *watermark) endEvent(number uint64) bool {
	i := int(number - w.first)
	if number < w.first || i >= w.n {
		return false
	}
	at := w.ringIndex(i)
	if w.ended[at] {
		return false
	}
	w.ended[at] = true
	for w.n > 0 && w.ended[w.head] {
		w.next = w.after[w.head]
		w.head = w.ringIndex(1)
		w.n--
		w.first++
	}
	if w.n == 0 {
		w.next = w.read
	}
	return true
}

// allEnded reports whether every event in [from, to) has ended.
func (w *watermark) allEnded(from, to uint64) bool {
	for number := max(from, w.first); number < to; number++ {
		if i := int(number - w.first); i >= w.n || !w.ended[w.ringIndex(i)] {
			return false
		}
	}
	return true
}

// openCount returns the number of events handed out at or beyond the watermark.
func (w *watermark) openCount() int { return w.n }

// overwrite fills returned memory with nonsense in programs with the race detector. A handler that
// keeps a view of an event too long then reads nonsense in every test, and not only when another
// fetch reuses the memory.
func overwrite(b []byte) {
	if !wire.RaceDetector || len(b) == 0 {
		return
	}
	b[0] = 0xdb
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// clearViews overwrites the views that a delivery has handed out.
func clearViews(events []Incoming) {
	if !wire.RaceDetector {
		return
	}
	for i := range events {
		events[i].View = View{}
	}
}
