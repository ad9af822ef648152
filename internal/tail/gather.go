package tail

import (
	"context"
	"errors"
	"slices"
	"time"

	"tidemill.dev/broker"
)

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
