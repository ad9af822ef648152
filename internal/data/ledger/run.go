package ledger

import (
	"context"
	"errors"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/retry"
)

const (
	// batchFacts and batchBytes bound what is taken off the log at once, and with
	// it the memory; scriptFacts what is folded at once, and with it how long one
	// script keeps Redis busy.
	batchFacts  = 16 << 10
	batchBytes  = 24 << 20
	scriptFacts = 4096

	// lookEvery is how often it is looked whether all has been caught up with,
	// and checkEvery whether Redis still has what it had.
	lookEvery  = 20 * time.Millisecond
	checkEvery = time.Second

	// restFor is how long facts may gather before they are read. Every process
	// follows them; the one that waits for its own folds that itself.
	restFor = 20 * time.Millisecond

	firstPause, longestPause = 50 * time.Millisecond, 5 * time.Second
)

// errForgotten says that Redis has less than it had: it was flushed, or an older
// copy of it was put in its place.
var errForgotten = errors.New("redis has forgotten facts")

// doubt ends a wait for facts early, because somebody has found that Redis is
// not as it should be.
type doubt struct {
	mu     sync.Mutex
	raised bool
	wake   context.CancelFunc
}

func (d *doubt) raise() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.raised = true
	if d.wake != nil {
		d.wake()
	}
}

// nudge ends a wait for facts although nothing is wrong.
func (d *doubt) nudge() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.wake != nil {
		d.wake()
	}
}

// within bounds a wait by time and by doubt.
func (d *doubt) within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wake = cancel
	if d.raised {
		cancel()
	}
	return ctx, cancel
}

func (d *doubt) take() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	raised := d.raised
	d.raised = false
	return raised
}

// run goes on until it is stopped. What Redis has forgotten is filled in again at
// once; what fails is tried again.
func (l *Ledger) run(ctx context.Context) {
	backoff := retry.Backoff{First: firstPause, Cap: longestPause}
	for {
		began := time.Now()
		err := l.session(ctx)
		if ctx.Err() != nil {
			return
		}
		l.clear()
		if errors.Is(err, errAhead) {
			continue // behind what they have applied
		}
		if errors.Is(err, errForgotten) {
			l.log.Warn("redis has forgotten facts and is filled in again")
			l.metrics.refills.Inc()
			l.progress.setCaught(false)
			continue
		}
		if time.Since(began) > longestPause {
			backoff.Reset()
		}
		pause := backoff.Next()
		if l.progress.fail(err) {
			l.log.Warn("the ledger does not come on", "stream", tidemill.StreamFacts, "reason", err, "after", pause)
		}
		if retry.Sleep(ctx, pause) != nil {
			return
		}
	}
}

func (l *Ledger) clear() {
	for _, s := range l.shelves {
		s.clear()
	}
	l.register.stale.Store(true)
}

// session reads on from where Redis is, until something is wrong.
func (l *Ledger) session(ctx context.Context) error {
	l.own.take() // they are read with all others
	if err := l.begin(ctx); err != nil {
		return err
	}
	c, err := l.o.Broker.Consumer(ctx, broker.ConsumerOptions{Streams: []string{tidemill.StreamFacts}, Start: broker.Earliest(), Assigned: l.assigned, Rest: restFor})
	if err != nil {
		return err
	}
	err = l.follow(ctx, c)
	return errors.Join(err, c.Close(context.WithoutCancel(ctx))) // it has no group to tell
}

// begin learns how far Redis is and how far there is to go, in this order: what
// others append and apply between the two questions makes Redis look behind, and
// never ahead of the log as if that were another one.
func (l *Ledger) begin(ctx context.Context) error {
	applied, err := l.applied(ctx)
	if err != nil {
		return err
	}
	ends, err := l.ends(ctx)
	if err != nil {
		return err
	}
	if beyond(applied, ends) {
		l.log.Warn("ledger: the stream of facts was created again; filling Redis again", "stream", tidemill.StreamFacts)
		if err := l.forget(ctx, ends); err != nil {
			return err
		}
		applied = map[int32]int64{}
	}
	l.progress.restart(applied, ends)
	return nil
}

// beyond reports whether Redis has facts that the log does not: those of a
// stream that was taken away.
func beyond(applied, ends map[int32]int64) bool {
	for partition, next := range applied {
		if next > ends[partition] {
			return true
		}
	}
	return false
}

func (l *Ledger) ends(ctx context.Context) (map[int32]int64, error) {
	ends, err := l.o.Broker.Ends(ctx, tidemill.StreamFacts)
	if err != nil {
		return nil, err
	}
	all := make(map[int32]int64, len(ends))
	for _, e := range ends {
		all[e.Partition] = e.Offset
	}
	return all, nil
}

// assigned moves what is read behind what Redis has.
func (l *Ledger) assigned(_ context.Context, at []broker.Position) ([]broker.Position, error) {
	for i := range at {
		next := l.progress.reached(at[i].Partition)
		if at[i].Offset > next {
			l.log.Error("ledger: facts were deleted from the log before they were read; their content is lost", "stream", at[i].Stream,
				"partition", at[i].Partition, "from", next, "to", at[i].Offset)
		}
		at[i].Offset = max(at[i].Offset, next)
	}
	return at, nil
}

// follow folds what comes, and looks now and then whether all is as it should be.
func (l *Ledger) follow(ctx context.Context, c *broker.Consumer) error {
	ready, looked := false, time.Now()
	convoy := l.convoy(c)
	for {
		every := lookEvery
		if ready {
			every = checkEvery
		}
		b, err := l.gather(ctx, c, every)
		if err == nil && len(b.parts) > 0 {
			err = l.apply(ctx, b)
		}
		b.done()
		idle := len(b.deliveries) == 0 && b.facts == 0
		for _, partition := range convoy.relieve(l.progress.reached, idle) {
			l.shelf(partition).clear()
		}
		if err == nil && (l.doubt.take() || idle || time.Since(looked) > every) {
			looked = time.Now()
			ready, err = l.look(ctx, c, ready)
		}
		if err != nil {
			return err
		}
	}
}

// look tells whether all has been caught up with, which stays so unless Redis
// forgets.
func (l *Ledger) look(ctx context.Context, c *broker.Consumer, ready bool) (bool, error) {
	var err error
	if ready {
		err = l.check(ctx)
	} else {
		ready, err = l.catchUp(ctx, c)
	}
	if err == nil && ready {
		l.kept, l.far = keptNear, nil
		l.progress.setCaught(true)
	}
	return ready, err
}
