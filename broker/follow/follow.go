package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/broker/retry"
)

// Options say which stream to read and how to handle its events.
type Options struct {
	Stream string
	Logger *slog.Logger
	// Take gets the deliveries, those of one partition in order, and must not keep their contents.
	// Only one goroutine at a time calls Take.
	Take func(*broker.Delivery)

	Latest   bool // whether to begin after the events that the stream has now
	MaxBytes int  // limit of fetched bytes not yet taken; 0 is the broker's default
}

// Follower reads one stream until it is closed.
type Follower struct {
	b *broker.Broker
	o Options

	mu     sync.Mutex
	places map[int32]int64 // next offset of each partition

	consumer *broker.Consumer
	stop     context.CancelFunc
	running  sync.WaitGroup
}

const (
	// lookEvery is the time between checks of a follower that catches up. The checks are needed
	// because markers at the end of a log bring no delivery.
	lookEvery = 20 * time.Millisecond

	firstPause, longestPause = 100 * time.Millisecond, 10 * time.Second
)

// Open reads a stream up to its current end and returns; the follower then continues in
// the background. Call Close when done.
func Open(ctx context.Context, b *broker.Broker, o Options) (*Follower, error) {
	f := &Follower{b: b, o: o, places: map[int32]int64{}}
	ends, err := b.Ends(ctx, o.Stream)
	for i := range ends {
		if o.Latest {
			f.places[ends[i].Partition] = ends[i].Offset
		}
	}
	if err == nil {
		err = f.openConsumer(ctx)
	}
	if err == nil {
		err = f.catchUp(ctx, ends)
	}
	if err != nil {
		if f.consumer != nil {
			err = errors.Join(err, f.consumer.Close(ctx))
		}
		return nil, fmt.Errorf("follow stream %s: %w", o.Stream, err)
	}
	life, stop := context.WithCancel(context.Background())
	f.stop = stop
	f.running.Go(func() { f.readAll(life) })
	return f, nil
}

// openConsumer begins to read after the last event taken.
func (f *Follower) openConsumer(ctx context.Context) (err error) {
	f.consumer, err = f.b.Consumer(ctx, broker.ConsumerOptions{Streams: []string{f.o.Stream}, Start: broker.Earliest(), MaxBytes: f.o.MaxBytes,
		Assigned: func(_ context.Context, at []broker.Position) ([]broker.Position, error) {
			f.mu.Lock() // the consumer calls this hook for added partitions too
			defer f.mu.Unlock()
			for i := range at {
				at[i].Offset = max(at[i].Offset, f.places[at[i].Partition])
			}
			return at, nil
		}})
	return err
}

func (f *Follower) catchUp(ctx context.Context, ends []broker.Position) error {
	for !f.reached(ends) {
		wait, done := context.WithTimeout(ctx, lookEvery)
		cut, err := f.next(wait)
		done()
		if cut {
			if ends, err = f.b.Ends(ctx, f.o.Stream); err != nil {
				return err
			}
		}
		if err != nil && (ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded)) {
			return err
		}
	}
	return nil
}

func (f *Follower) reached(ends []broker.Position) bool {
	at := map[int32]int64{}
	for _, p := range f.consumer.Positions() {
		at[p.Partition] = p.Offset
	}
	for _, end := range ends {
		if at[end.Partition] < end.Offset {
			return false
		}
	}
	return true
}

// next takes a delivery. It reports whether offsets go back: the stream was created again, or its log was cut.
func (f *Follower) next(ctx context.Context) (cut bool, err error) {
	d, err := f.consumer.Poll(ctx)
	if err != nil {
		return false, err
	}
	cut = errors.Is(d.Events[0].Err, broker.ErrCut)
	f.o.Take(d)
	f.mu.Lock()
	f.places[d.Partition] = d.Next()
	f.mu.Unlock()
	d.Done()
	return cut, nil
}

// readAll reads until the context ends. It continues after errors that end a consumer, such as a
// stream that was deleted and created again.
func (f *Follower) readAll(ctx context.Context) {
	backoff := retry.Backoff{First: firstPause, Cap: longestPause}
	for {
		_, err := f.next(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			backoff.Reset()
			continue
		}
		pause := backoff.Next()
		f.o.Logger.Warn("follower: reading the stream failed; retrying", "stream", f.o.Stream, "reason", err, "after", pause)
		if retry.Sleep(ctx, pause) != nil {
			return
		}
		if errors.Is(err, broker.ErrNoStream) { // a stream that is there later is another one
			f.mu.Lock()
			clear(f.places)
			f.mu.Unlock()
		}
		f.reopen(ctx)
	}
}

// reopen replaces the closed consumer. If that fails, reopen keeps the old consumer, whose error
// makes readAll try again.
func (f *Follower) reopen(ctx context.Context) {
	old := f.consumer
	_ = old.Close(ctx) // the consumer has ended and has no group to leave
	if err := f.openConsumer(ctx); err != nil {
		f.consumer = old
	}
}

// Close stops reading and waits until it has stopped.
func (f *Follower) Close(ctx context.Context) error {
	f.stop()
	f.running.Wait()
	return f.consumer.Close(ctx)
}
