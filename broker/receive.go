package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker/internal/wire"
)

// newDelivery returns an empty delivery for a partition, with memory from the pool.
func (c *Consumer) newDelivery(a fetchAsk, buffer *fetchBuffer, next int64) *Delivery {
	d := &Delivery{Stream: a.p.stream, Partition: a.p.tp.Partition, c: c, part: a.p, epoch: a.epoch, series: a.series, next: next, buffer: buffer,
		contents: c.memory.Get().(*contents)}
	d.Events, d.batches, d.unpacked = d.events[:0], 0, 0
	if buffer != nil {
		buffer.users.Add(1)
	}
	return d
}

// receive decodes one partition of an answer and queues it for Poll.
func (c *Consumer) receive(a fetchAsk, part *wire.Fetched, buffer *fetchBuffer) {
	if len(part.Records) == 0 {
		return
	}
	d := c.newDelivery(a, buffer, a.position)
	d.size = int64(len(part.Records))
	err := d.decode(a, part)
	if err == nil && d.next == a.position { // a broker always sends the whole first batch, of any size
		err = fmt.Errorf("no batch after offset %d in %d bytes: its length must be corrupt", a.position, len(part.Records))
	}
	d.addInFlight()
	fits := d.next > a.position && c.offer(d, a)
	if err != nil {
		c.failReading(fmt.Errorf("read stream %s, partition %d: %w", a.p.stream, a.p.tp.Partition, err))
		a.p.mu.Lock()
		a.p.notBefore = time.Now().Add(errorPause)
		a.p.mu.Unlock()
	}
	if !fits {
		d.release()
	}
}

// A delivery ends at the batch that reaches one of these limits, and the rest is fetched again.
// Batches may unpack to far more bytes than were fetched, and records may be tiny.
const (
	fullBytes  = 64 << 20
	fullEvents = 1 << 16
)

// decode reads the batches of a fetched record set. It leaves out batches of aborted transactions
// and markers. It also leaves out records before the position, because brokers send only whole
// batches.
func (d *Delivery) decode(a fetchAsk, part *wire.Fetched) error {
	set, base := part.Records, LifeOf(a.position)
	aborted := abortedProducers{list: part.Aborted}
	for d.unpacked < fullBytes && len(d.Events) < fullEvents {
		b, rest, ok, err := wire.NextBatch(set)
		if err == nil && !ok {
			return nil
		}
		b.BaseOffset, b.LastOffset = b.BaseOffset+base, b.LastOffset+base
		if err == nil {
			err = d.decodeBatch(&b, &aborted, a)
		} else {
			err = d.skipCorrupt(err, part, base)
		}
		if err != nil {
			return err
		}
		set = rest
	}
	return nil
}

// decodeBatch reads one batch. If the batch proves corrupt half way, its unread offsets become a
// dead letter.
func (d *Delivery) decodeBatch(b *wire.Batch, aborted *abortedProducers, a fetchAsk) error {
	skip, err := aborted.skip(b)
	if err != nil {
		return err
	}
	if !skip && b.LastOffset >= a.position {
		if err := d.decodeRecords(*b, a); err != nil {
			d.recordMissing(d.firstUnread(b, a.position), b.LastOffset, err)
		}
	}
	d.next, d.leaders = max(d.next, b.LastOffset+1), b.Leadership
	return nil
}

func (d *Delivery) decodeRecords(b wire.Batch, a fetchAsk) error {
	var records wire.Records
	if err := d.openBatch(&records, b); err != nil {
		return err
	}
	for records.Next(&d.record) {
		if d.record.Offset >= a.position && !isCovered(a.ended, d.record.Offset) {
			d.add(&d.record)
		}
	}
	return records.Err()
}

// openBatch starts to read a batch. A compressed batch is unpacked into a separate buffer, which
// lives as long as the delivery.
func (d *Delivery) openBatch(records *wire.Records, b wire.Batch) error {
	if b.Codec == wire.None {
		_, err := records.Open(b, nil)
		return err
	}
	if d.batches == len(d.unpack) {
		d.unpack = append(d.unpack, nil)
	}
	plain, err := records.Open(b, d.unpack[d.batches])
	d.unpack[d.batches] = plain
	d.batches++
	d.unpacked += len(plain)
	return err
}

// skipCorrupt skips a batch with a known end and unreadable content, as one dead letter. If the end
// is not known either, reading stops. An end beyond the end of the log is reduced to the end of the
// log. Otherwise one flipped bit would skip records that are not written yet.
func (d *Delivery) skipCorrupt(err error, part *wire.Fetched, base int64) error {
	var c *wire.CorruptError
	if !errors.As(err, &c) || c.LastOffset < 0 {
		return err
	}
	last := min(c.LastOffset+base, part.HighMark-1)
	if last < d.next {
		return err
	}
	d.recordMissing(max(c.BaseOffset+base, d.next), last, err)
	d.next = last + 1
	return nil
}

// recordMissing records offsets that could not be read: as a dead letter or, for a consumer without
// a group, as an event with its Err set.
func (d *Delivery) recordMissing(first, last int64, reason error) {
	if d.c.letters != nil {
		d.letters = append(d.letters, d.copyUndecodable(first, last, nil, reason))
		return
	}
	*d.nextEvent() = Incoming{Offset: first, Err: reason}
}

// firstUnread returns the first unread offset of a batch that proved corrupt. The dead letter
// begins at this offset, because it must not pass earlier events. If only bytes after the last
// record are unread, the dead letter shares that record's offset.
func (d *Delivery) firstUnread(b *wire.Batch, position int64) int64 {
	first := max(b.BaseOffset, position)
	if n := len(d.Events); n > 0 {
		first = max(first, d.Events[n-1].Offset+1)
	}
	if n := len(d.letters); n > 0 {
		first = max(first, d.letters[n-1].last+1)
	}
	return min(first, b.LastOffset)
}

// add decodes a record into the delivery's next event, whose slices are reused.
func (d *Delivery) add(r *wire.Record) {
	n := len(d.Events)
	e := d.nextEvent()
	e.Offset, e.Time, e.Err = r.Offset, time.UnixMilli(r.Time), nil
	err := decodeRecord(r, &e.View)
	if err == nil {
		return
	}
	if d.c.letters != nil {
		d.Events = d.Events[:n]
		d.letters = append(d.letters, d.copyUndecodable(r.Offset, r.Offset, r, err))
		return
	}
	e.View = View{Key: r.Key, Data: r.Value, Foreign: append(e.Foreign[:0], r.Headers...)}
	e.Err = err
}

// nextEvent returns the delivery's next event with its former content, for reuse.
func (d *Delivery) nextEvent() *Incoming {
	n := len(d.Events)
	if n < cap(d.Events) {
		d.Events = d.Events[:n+1]
	} else {
		d.Events = append(d.Events, Incoming{})
	}
	return &d.Events[n]
}

// abortedProducers filters out the records of aborted transactions. The broker lists these
// transactions by their first offset; each ends at its abort marker.
type abortedProducers struct {
	list   []wire.Aborted
	sorted bool
}

func (a *abortedProducers) skip(b *wire.Batch) (bool, error) {
	if b.Control {
		committed, err := b.Committed()
		if err == nil && !committed {
			a.ended(b)
		}
		return true, err
	}
	if !b.Transactional || len(a.list) == 0 {
		return false, nil
	}
	i := a.index(b)
	return i >= 0, nil
}

// index returns the producer's earliest aborted transaction that began at or before b.
func (a *abortedProducers) index(b *wire.Batch) int {
	if !a.sorted {
		slices.SortFunc(a.list, func(x, y wire.Aborted) int { return int(x.First - y.First) })
		a.sorted = true
	}
	return slices.IndexFunc(a.list, func(x wire.Aborted) bool {
		return x.Producer == b.Producer && x.First <= b.BaseOffset
	})
}

func (a *abortedProducers) ended(b *wire.Batch) {
	if i := a.index(b); i >= 0 {
		a.list = slices.Delete(a.list, i, i+1)
	}
}

// deadLetter is a dead letter to write, for a record or offsets that could not be read as an event.
type deadLetter struct {
	stream    string
	partition int32
	offset    int64
	last      int64 // last of its offsets
	mark      int64 // last of its offsets that was read
	reason    error
	gap       bool // whether the records themselves were deleted
	key       []byte
	value     []byte
	headers   []Header

	part   *inPartition
	epoch  uint64
	number uint64
}

// copyUndecodable copies a record, because a dead letter outlives the fetched bytes.
func (d *Delivery) copyUndecodable(first, last int64, r *wire.Record, reason error) deadLetter {
	l := deadLetter{stream: d.Stream, partition: d.Partition, offset: first, last: last, mark: last, reason: reason}
	if r == nil {
		return l
	}
	l.key, l.value = slices.Clone(r.Key), slices.Clone(r.Value)
	for _, h := range r.Headers {
		l.headers = append(l.headers, Header{Key: string([]byte(h.Key)), Value: slices.Clone(h.Value)})
	}
	return l
}

// bind counts the dead letter among the events of its partition. The caller holds the partition's
// lock.
func (l *deadLetter) bind(p *inPartition, epoch uint64) {
	l.part, l.epoch = p, epoch
	l.number = p.mark.add(l.mark)
	p.unwritten++
}

// markWritten lets the partition's offset move past the dead letter.
func (l *deadLetter) markWritten() {
	p := l.part
	p.mu.Lock()
	if p.epoch == l.epoch {
		p.mark.endEvent(l.number)
		p.unwritten--
	}
	drained := p.draining && p.mark.openCount() == 0
	p.mu.Unlock()
	if drained && p.c.member != nil {
		p.c.member.nudge()
	}
}

// DeadLetter is the data of tidemill.event.dead-lettered for records that could not be read as an
// event.
type DeadLetter struct {
	Stream    string      `json:"stream"`
	Partition int32       `json:"partition"`
	Offset    int64       `json:"offset"`
	Last      int64       `json:"lastOffset"` // last offset that the dead letter covers
	Group     string      `json:"group"`
	Reason    string      `json:"reason"`
	Record    *DeadRecord `json:"record,omitempty"` // absent if the record is lost
}

// DeadRecord is a record as on the log; its bytes are base64 in JSON.
type DeadRecord struct {
	Key     []byte   `json:"key"`
	Value   []byte   `json:"value"`
	Headers []Header `json:"headers,omitempty"`
}

// deadLetters writes dead letters. A partition's offset does not pass a dead letter before it is
// written, so the writer retries until it succeeds or the consumer ends.
type deadLetters struct {
	c *Consumer
	p *Producer
}

// A dead letter holds its record in base64, so it may be larger than any event.
const maxLetter = 8 << 20

func newDeadLetters(c *Consumer) (*deadLetters, error) {
	p, err := c.b.Producer(ProducerOptions{MaxEvent: maxLetter, Compression: Zstd})
	return &deadLetters{c: c, p: p}, err
}

func (d *deadLetters) send(l deadLetter) {
	v, err := d.event(l)
	if err != nil {
		d.c.failReading(fmt.Errorf("write a dead letter for stream %s, partition %d, offset %d: %w", l.stream, l.partition, l.offset, err))
		return
	}
	d.c.b.log.Warn("consumer: unreadable record; it becomes a dead letter", "stream", l.stream, "partition", l.partition, "offset", l.offset, "reason", l.reason)
	d.p.Send(d.c.ctx, tidemill.StreamDeadLetters, v, func(_ Receipt, err error) {
		switch {
		case err == nil:
			d.c.counts.deadLetters.Add(1)
			l.markWritten()
		case d.c.ctx.Err() != nil || errors.Is(err, ErrClosed):
			// The offset is not committed, so the next owner of the partition writes the dead
			// letter.
		case errors.Is(err, ErrTooLarge) && (l.key != nil || l.value != nil || l.headers != nil):
			l.key, l.value, l.headers = nil, nil, nil
			l.reason = fmt.Errorf("%w; the record is too large for a dead letter: read it from the stream", l.reason)
			d.c.running.Go(func() { d.send(l) })
		case errors.Is(err, ErrInDoubt), isTransient(err):
			d.c.b.log.Warn("consumer: writing a dead letter failed; retrying", "stream", l.stream, "partition", l.partition, "offset", l.offset, "reason", err)
			d.c.running.Go(func() { d.send(l) }) // the id comes from the offset, so a second copy is harmless
		default:
			d.c.failReading(fmt.Errorf("stream %s, partition %d, offset %d cannot be passed without its dead letter: %w", l.stream, l.partition, l.offset, err))
		}
	})
}

func (d *deadLetters) event(l deadLetter) (*View, error) {
	data := DeadLetter{Stream: l.stream, Partition: l.partition, Offset: l.offset, Last: l.last, Group: d.c.opt.Group, Reason: l.reason.Error()}
	if !l.gap && (l.key != nil || l.value != nil || l.headers != nil) {
		data.Record = &DeadRecord{Key: l.key, Value: l.value, Headers: l.headers}
	}
	raw, err := json.Marshal(data)
	if err != nil {
		return nil, err
	}
	names := d.c.b.names
	return &View{
		ID:              tidemill.ID("dead-letter", d.c.opt.Group, l.stream, strconv.Itoa(int(l.partition)), strconv.FormatInt(l.offset, 10)),
		Source:          names.Source("broker"),
		Type:            tidemill.TypeEventDeadLettered,
		Time:            time.Now().UTC().Format(time.RFC3339Nano),
		DataContentType: "application/json",
		DataSchema:      tidemill.Schema(tidemill.TypeEventDeadLettered),
		Key:             l.key,
		Data:            raw,
	}, nil
}

func (d *deadLetters) close(ctx context.Context) error { return d.p.Close(ctx) }

// RecordOf returns the record that an event is published as, for use in a dead letter. It points
// into the view.
func RecordOf(v *View) *DeadRecord {
	var e encoder
	r := &DeadRecord{}
	r.Key, r.Value, r.Headers = e.encode(v, nil)
	return r
}

// View decodes the event in the record. The view points into the record.
func (r *DeadRecord) View() (View, error) {
	var v View
	err := decodeRecord(&wire.Record{Key: r.Key, Value: r.Value, Headers: r.Headers}, &v)
	return v, err
}
