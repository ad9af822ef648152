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

// Options say what is read and who takes it.
type Options struct {
	Stream string
	Logger *slog.Logger
	// Take gets the deliveries, those of one partition in its order, and must
	// not keep what is in them. It is called by one goroutine at a time.
	Take func(*broker.Delivery)

	Latest   bool // begin behind what the stream has now
	MaxBytes int  // of what is fetched and not yet taken; the broker's default
}

// Follower reads one stream until it is closed.
type Follower struct {
	b *broker.Broker
	o Options

	mu     sync.Mutex
	places map[int32]int64 // the next offset of each partition

	consumer *broker.Consumer
	stop     context.CancelFunc
	running  sync.WaitGroup
}

const (
	// lookEvery is how often a follower that catches up looks whether it has:
	// markers at the end of a log bring no delivery that would tell it.
	lookEvery = 20 * time.Millisecond

	firstPause, longestPause = 100 * time.Millisecond, 10 * time.Second
)

// Open reads a stream up to where it ends now and returns; the follower goes
// on from there. Close it.
func Open(ctx context.Context, b *broker.Broker, o Options) (*Follower, error) {
	f := &Follower{b: b, o: o, places: map[int32]int64{}}
	ends, err := b.Ends(ctx, o.Stream)
	for i := range ends {
		if o.Latest {
			f.places[ends[i].Partition] = ends[i].Offset
		}
	}
	if err == nil {
		err = f.open(ctx)
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
	f.running.Go(func() { f.run(life) })
	return f, nil
}

// open begins to read, behind what has been taken.
func (f *Follower) open(ctx context.Context) (err error) {
	f.consumer, err = f.b.Consumer(ctx, broker.ConsumerOptions{Streams: []string{f.o.Stream}, Start: broker.Earliest(), MaxBytes: f.o.MaxBytes,
		Assigned: func(_ context.Context, at []broker.Position) ([]broker.Position, error) {
			f.mu.Lock() // partitions that are added are asked for by the consumer
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
		err := f.next(wait)
		done()
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

func (f *Follower) next(ctx context.Context) error {
	d, err := f.consumer.Poll(ctx)
	if err != nil {
		return err
	}
	f.o.Take(d)
	f.mu.Lock()
	f.places[d.Partition] = d.Next()
	f.mu.Unlock()
	d.Done()
	return nil
}

// run outlives what ends a consumer's reading: a stream that was taken away and
// made anew, say.
func (f *Follower) run(ctx context.Context) {
	backoff := retry.Backoff{First: firstPause, Cap: longestPause}
	for {
		err := f.next(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			backoff.Reset()
			continue
		}
		pause := backoff.Next()
		f.o.Logger.Warn("stream cannot be followed", "stream", f.o.Stream, "reason", err, "after", pause)
		if retry.Sleep(ctx, pause) != nil {
			return
		}
		f.reopen(ctx)
	}
}

// reopen leaves the closed consumer where no other can be had; its error brings
// run here again.
func (f *Follower) reopen(ctx context.Context) {
	old := f.consumer
	_ = old.Close(ctx) // it reads no more, and has no group to tell
	if err := f.open(ctx); err != nil {
		f.consumer = old
	}
}

// Close stops reading and waits until it has.
func (f *Follower) Close(ctx context.Context) error {
	f.stop()
	f.running.Wait()
	return f.consumer.Close(ctx)
}
