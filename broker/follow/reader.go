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

// ReaderOptions say what to read.
type ReaderOptions struct {
	Stream string
	Start  broker.Start
	Resume Place // replaces Start if not nil
	ToEnd  bool  // whether to stop at the current end of the stream
	// Newest skips all but about this many of the newest records after Start; 0 skips
	// none. It does not apply to Resume.
	Newest int

	// MaxBytes is an approximate limit of fetched bytes not yet returned; the default is 64 MiB.
	MaxBytes int
}

// Event is a record with its own memory. It is an event, or has an error in Err.
type Event struct {
	broker.View
	Stream    string
	Partition int32
	Offset    int64
	Received  time.Time // time when the record reached the log
	// Err says why the record is not an event; then View has only its Key, Data and
	// Foreign headers. It also reports deleted offsets.
	Err error

	Next int64 // offset after this record, to resume from

	at time.Time // time by which a batch is sorted
}

// Reader reads one stream. One goroutine uses it.
type Reader struct {
	stream   string
	consumer *broker.Consumer
	ends     map[int32]int64 // end of each partition when the reader was opened
	toEnd    bool
	caughtUp bool // true after the reader has reached ends
	most     int  // limit of bytes in a batch

	gaps []Event // gaps that Resume found; the first batch returns them
	from Place   // place before the gaps
}

// OpenReader begins to read. Close the reader when done.
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
		options.Assigned = r.newestHook(int64(max(1, o.Newest/max(1, len(ends)))))
	}
	if o.Resume != nil {
		options.Start, options.Assigned = broker.Earliest(), r.resumeHook(o.Resume)
	}
	r.consumer, err = b.Consumer(ctx, options)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Next returns the records that have arrived. The batch is empty if none arrives for a second, for
// example because Kafka is away. If the reader stops at the end, Next returns io.EOF there.
func (r *Reader) Next(ctx context.Context) ([]Event, error) {
	if gaps := r.gaps; len(gaps) > 0 {
		r.gaps, r.from = nil, nil
		return gaps, nil
	}
	if !r.caughtUp {
		r.caughtUp = r.hasReachedEnd()
	}
	if r.caughtUp && r.toEnd {
		return nil, io.EOF
	}
	return r.gatherRecords(ctx)
}

// Place returns the position after all records that Next has returned. The position may move over
// records that readers do not see, even if Next returns no record.
func (r *Reader) Place() Place {
	p := Place{}
	for _, at := range r.consumer.Positions() {
		p.Set(at.Partition, r.limitToEnd(at.Partition, at.Offset))
	}
	for _, gap := range r.gaps { // Next has not returned these gaps yet; a reader that resumes here finds them again
		p.Set(gap.Partition, r.from[gap.Partition])
	}
	return p
}

// limitToEnd limits an offset to the end at which the reader stops.
func (r *Reader) limitToEnd(partition int32, offset int64) int64 {
	if !r.toEnd {
		return offset
	}
	end, known := r.ends[partition]
	if !known {
		return Beginning
	}
	return min(offset, end)
}

// hasReachedEnd reports whether all records have been read that existed when the reader was
// opened. A partition added since then counts as read.
func (r *Reader) hasReachedEnd() bool {
	for _, at := range r.consumer.Positions() {
		if at.Offset < r.ends[at.Partition] {
			return false
		}
	}
	return true
}

// Close ends reading. A concurrent Next returns broker.ErrClosed.
func (r *Reader) Close(ctx context.Context) error { return r.consumer.Close(ctx) }

const (
	gatherEvents = 4096
	gatherBytes  = 16 << 20

	idle      = time.Second            // longest wait of Next for a record
	lookAtEnd = 100 * time.Millisecond // time between checks for the end

	// Kafka returns old records one partition after another, and people read them in the order of
	// time. So a batch waits for more records as long as they follow each other quickly.
	pauseBehind, gatherBehind = 20 * time.Millisecond, 500 * time.Millisecond
	// New records are returned at once; only those of one answer are put into one batch.
	gatherLive = time.Millisecond
)

// gatherRecords returns the records that have arrived, in the order of time.
func (r *Reader) gatherRecords(ctx context.Context) ([]Event, error) {
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
		d, err := r.pollOnce(ctx, wait)
		if err != nil && len(batch) == 0 {
			return nil, err
		}
		if d == nil {
			break // the next call gets the error again
		}
		had := len(batch)
		batch = r.copyRecords(batch, d)
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

// pollOnce returns nil if no delivery comes in time.
func (r *Reader) pollOnce(ctx context.Context, within time.Duration) (*broker.Delivery, error) {
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	d, err := r.consumer.Poll(limited)
	if err != nil && ctx.Err() == nil && limited.Err() != nil && !errors.Is(err, broker.ErrClosed) {
		return nil, nil
	}
	return d, err
}

// copyRecords copies the records of a delivery up to the reader's end.
func (r *Reader) copyRecords(batch []Event, d *broker.Delivery) []Event {
	for i := range d.Events {
		in := &d.Events[i]
		if r.toEnd && in.Offset >= r.ends[d.Partition] {
			break
		}
		e := Event{View: in.View.Clone(), Stream: d.Stream, Partition: d.Partition, Offset: max(in.Offset, 0), Received: in.Time, Err: in.Err,
			Next: d.Next(), at: in.Time}
		if i+1 < len(d.Events) {
			e.Next = d.Events[i+1].Offset
		}
		if e.Received.IsZero() { // the time of a deleted record is unknown
			e.Received = time.Now()
		}
		if errors.Is(e.Err, broker.ErrCut) { // the log no longer has the end that it had
			r.ends[d.Partition] = e.Next
		}
		batch = append(batch, e)
	}
	return batch
}

// inOrder sorts a batch by time. Within a partition the log's order stays, even if the publishers'
// clocks differ. A place has one offset per partition, and the events of a key must keep their
// order.
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

// newestHook returns the hook that moves each partition's start forward, so that at most the number
// each of records remains before the partition's end.
func (r *Reader) newestHook(each int64) func(context.Context, []broker.Position) ([]broker.Position, error) {
	return func(_ context.Context, starts []broker.Position) ([]broker.Position, error) {
		for i := range starts {
			p := &starts[i]
			p.Offset = max(p.Offset, r.ends[p.Partition]-each)
		}
		return starts, nil
	}
}

// resumeHook returns the hook that moves partitions from their beginning to the offset where an
// earlier reader stopped. If that offset no longer exists, Next first reports a gap. If the offset
// is below the stream's start, retention has deleted records before they were read. If it is beyond
// the end, another log has replaced the one that was read, so reading continues at the end. The
// same holds if this happens later. The hook is called again for added partitions. Added partitions
// are read from their beginning, even if an earlier stream of this name had offsets in them.
func (r *Reader) resumeHook(from Place) func(context.Context, []broker.Position) ([]broker.Position, error) {
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
				r.gone(p.Partition, at, end, fmt.Errorf("the log ends at %d, before offset %d that was already read: the stream was deleted and created again, or its leader has lost events", end, at))
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

// ReadToEnd reads with an open reader up to the present end of its stream, and calls fn with each event. The reader can
// go on from there later.
func ReadToEnd(ctx context.Context, b *broker.Broker, stream string, r *Reader, fn func(*Event)) error {
	ends, err := b.Ends(ctx, stream)
	if err != nil {
		return err
	}
	for !covers(r.Place(), ends) {
		events, err := r.Next(ctx)
		if err != nil {
			return err
		}
		for i := range events {
			if events[i].Err == nil {
				fn(&events[i])
			} else if errors.Is(events[i].Err, broker.ErrCut) {
				if ends, err = b.Ends(ctx, stream); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// covers reports whether a place is at or after the ends of a stream.
func covers(at Place, ends []broker.Position) bool {
	for _, end := range ends {
		if end.Offset > 0 && (int(end.Partition) >= len(at) || at[end.Partition] < end.Offset) {
			return false
		}
	}
	return true
}
