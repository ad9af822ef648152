package follow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"tidemill.dev/broker"
)

// ReaderOptions say what is read.
type ReaderOptions struct {
	Stream string
	Start  broker.Start
	Resume Place // instead of Start, if it is not nil
	ToEnd  bool  // end where the stream ends now
	// Newest leaves out, of what Start has, all but about so many of the newest
	// records; 0 leaves out none. It says nothing to Resume.
	Newest int

	// MaxBytes bounds what is fetched and not yet handed on, about; 64 MiB.
	MaxBytes int
}

// Event is a record with memory of its own: an event, or why it is none.
type Event struct {
	broker.View
	Stream    string
	Partition int32
	Offset    int64
	Received  time.Time // when it reached the log
	// Err is why the record is no event; then View holds only its Key, Data and
	// Foreign headers. It also tells of offsets that are gone.
	Err error

	Next int64 // the offset to read on from, behind it

	at time.Time // what it is sorted by
}

// Reader reads one stream. One goroutine uses it.
type Reader struct {
	stream   string
	consumer *broker.Consumer
	ends     map[int32]int64 // by partition, as they were when the reader was opened
	toEnd    bool
	caughtUp bool // has come to the ends
	most     int  // bytes in a batch

	gaps []Event // what Resume found gone; the first batch
	from Place   // where the gaps begin
}

// OpenReader begins to read. Close the reader.
func OpenReader(ctx context.Context, b *broker.Broker, o ReaderOptions) (*Reader, error) {
	ends, err := b.Ends(ctx, o.Stream)
	if err != nil {
		return nil, err
	}
	r := &Reader{stream: o.Stream, ends: map[int32]int64{}, toEnd: o.ToEnd, most: gatherBytes}
	for _, end := range ends {
		r.ends[end.Partition] = end.Offset
	}
	if o.MaxBytes > 0 {
		r.most = min(r.most, o.MaxBytes/4)
	}
	options := broker.ConsumerOptions{Streams: []string{o.Stream}, Start: o.Start, MaxBytes: o.MaxBytes}
	if o.Newest > 0 {
		options.Assigned = r.newest(int64(max(1, o.Newest/max(1, len(ends)))))
	}
	if o.Resume != nil {
		options.Start, options.Assigned = broker.Earliest(), r.resume(o.Resume)
	}
	r.consumer, err = b.Consumer(ctx, options)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Next returns what has arrived. It is empty when nothing has come for a while:
// Kafka may be away. At the end, if there is to be one, the error is io.EOF.
func (r *Reader) Next(ctx context.Context) ([]Event, error) {
	if gaps := r.gaps; len(gaps) > 0 {
		r.gaps, r.from = nil, nil
		return gaps, nil
	}
	if !r.caughtUp {
		r.caughtUp = r.reached()
	}
	if r.caughtUp && r.toEnd {
		return nil, io.EOF
	}
	return r.gather(ctx)
}

// Place is behind everything that Next has returned. It may move although Next
// returns nothing, over records that are not for readers.
func (r *Reader) Place() Place {
	p := Place{}
	for _, at := range r.consumer.Positions() {
		p.Set(at.Partition, r.within(at.Partition, at.Offset))
	}
	for _, gap := range r.gaps { // not told yet, so whoever leaves now is told again
		p.Set(gap.Partition, r.from[gap.Partition])
	}
	return p
}

// within is an offset no further than a reader to the end goes.
func (r *Reader) within(partition int32, offset int64) int64 {
	if !r.toEnd {
		return offset
	}
	end, known := r.ends[partition]
	if !known {
		return Beginning
	}
	return min(offset, end)
}

// reached tells whether all that was there when the reader was opened has been
// read. A partition that has been added since ends where it begins.
func (r *Reader) reached() bool {
	for _, at := range r.consumer.Positions() {
		if at.Offset < r.ends[at.Partition] {
			return false
		}
	}
	return true
}

// Close ends reading. Whoever waits in Next gets broker.ErrClosed.
func (r *Reader) Close(ctx context.Context) error { return r.consumer.Close(ctx) }

const (
	gatherEvents = 4096
	gatherBytes  = 16 << 20

	idle      = time.Second            // how long Next waits for something to come
	lookAtEnd = 100 * time.Millisecond // how often a reader to the end looks whether it is there

	// What is old is fetched one partition after the other, and people read by
	// the clock: a batch waits for the next as long as they come one upon the
	// other.
	pauseBehind, gatherBehind = 20 * time.Millisecond, 500 * time.Millisecond
	// What is new is wanted at once; only what one answer brings stays together.
	gatherLive = time.Millisecond
)

// gather returns what has arrived, in the order of time.
func (r *Reader) gather(ctx context.Context) ([]Event, error) {
	wait, pause, most := idle, pauseBehind, gatherBehind
	if r.caughtUp {
		pause, most = gatherLive, gatherLive
	}
	if r.toEnd {
		wait = lookAtEnd
	}
	var (
		batch []Event
		bytes int
		until time.Time
	)
	for wait > 0 && len(batch) < gatherEvents && bytes < r.most {
		d, err := r.poll(ctx, wait)
		if err != nil && len(batch) == 0 {
			return nil, err
		}
		if d == nil {
			break // the next call meets the error again
		}
		had := len(batch)
		batch = r.keep(batch, d)
		for i := had; i < len(batch); i++ {
			bytes += len(batch[i].Data)
		}
		d.Done()
		if until.IsZero() {
			until = time.Now().Add(most)
		}
		wait = min(pause, time.Until(until))
	}
	return inOrder(batch), nil
}

// poll is nil when the time is up.
func (r *Reader) poll(ctx context.Context, within time.Duration) (*broker.Delivery, error) {
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	d, err := r.consumer.Poll(limited)
	if err != nil && ctx.Err() == nil && limited.Err() != nil && !errors.Is(err, broker.ErrClosed) {
		return nil, nil
	}
	return d, err
}

// keep copies a delivery's records, those before the end.
func (r *Reader) keep(batch []Event, d *broker.Delivery) []Event {
	for i := range d.Events {
		in := &d.Events[i]
		if r.toEnd && in.Offset >= r.ends[d.Partition] {
			break
		}
		e := Event{View: in.View.Clone(), Stream: d.Stream, Partition: d.Partition, Offset: in.Offset, Received: in.Time, Err: in.Err,
			Next: d.Next(), at: in.Time}
		if i+1 < len(d.Events) {
			e.Next = d.Events[i+1].Offset
		}
		if e.Received.IsZero() { // of what is gone nobody knows when it came
			e.Received = time.Now()
		}
		batch = append(batch, e)
	}
	return batch
}

// inOrder sorts a batch by time. Within a partition the log's order stays,
// whatever the clocks of its publishers said: a place names one offset a
// partition, and a key's events must not change places.
func inOrder(batch []Event) []Event {
	latest := map[int32]time.Time{}
	for i := range batch {
		e := &batch[i]
		if last := latest[e.Partition]; e.at.Before(last) {
			e.at = last
		}
		latest[e.Partition] = e.at
	}
	byTime := func(a, b Event) int { return a.at.Compare(b.at) }
	if !slices.IsSortedFunc(batch, byTime) {
		slices.SortStableFunc(batch, byTime)
	}
	return batch
}

// newest is the hook that moves partitions forward, to where no more than so
// many records are left before their end.
func (r *Reader) newest(each int64) func(context.Context, []broker.Position) ([]broker.Position, error) {
	return func(_ context.Context, starts []broker.Position) ([]broker.Position, error) {
		for i := range starts {
			p := &starts[i]
			p.Offset = max(p.Offset, r.ends[p.Partition]-each)
		}
		return starts, nil
	}
}

// resume is the hook that moves partitions from their beginning to where an
// earlier reader left off. What lies there no more is told before anything else:
// below the stream's start retention was faster than the reader, and beyond its
// end the log is not the one that was read, so reading goes on at the end, as it
// does when that happens under way. It is called again for partitions that are
// added; those are read from their beginning, whatever an earlier stream of this
// name had there.
func (r *Reader) resume(from Place) func(context.Context, []broker.Position) ([]broker.Position, error) {
	from = from[:min(len(from), len(r.ends))]
	r.from = from
	return func(_ context.Context, starts []broker.Position) ([]broker.Position, error) {
		for i := range starts {
			p := &starts[i]
			if int(p.Partition) >= len(from) || from[p.Partition] == Beginning {
				continue
			}
			at, start, end := from[p.Partition], p.Offset, r.ends[p.Partition]
			switch {
			case at < start:
				r.gone(p.Partition, at, start, fmt.Errorf("offsets %d to %d were deleted before they were read: the stream's retention is shorter than this reader's delay", at, start-1))
			case at > end:
				p.Offset = end
				r.gone(p.Partition, at, end, fmt.Errorf("the log ends at %d, before offset %d that was reached: the stream was made anew, or a server without all events leads it", end, at))
			default:
				p.Offset = at
			}
		}
		return starts, nil
	}
}

func (r *Reader) gone(partition int32, at, next int64, reason error) {
	r.gaps = append(r.gaps, Event{Stream: r.stream, Partition: partition, Offset: at, Next: next, Received: time.Now(), Err: reason})
}
