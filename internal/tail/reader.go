// Package tail reads a stream as people want to see it: from some place to its
// end or for ever, in the order of time, without a group and so without moving
// anybody's offsets. What has been read can be told as a Place, from which
// another reader goes on.
package tail

import (
	"context"
	"io"
	"time"

	"tidemill.dev/broker"
)

// Options say what is read.
type Options struct {
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

// Open begins to read. Close it.
func Open(ctx context.Context, b *broker.Broker, o Options) (*Reader, error) {
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
