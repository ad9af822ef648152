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
	// batchFacts and batchBytes limit how much is read from the log at once, and so the
	// memory. scriptFacts limits how many facts are folded at once, and so how long one
	// script blocks Redis.
	batchFacts  = 16 << 10
	batchBytes  = 24 << 20
	scriptFacts = 4096

	// lookEvery is the time between checks for the end of the catch-up. checkEvery is the
	// time between checks that Redis has lost no facts.
	lookEvery  = 20 * time.Millisecond
	checkEvery = time.Second

	// restFor is how long facts may collect before they are read. Every process reads all
	// facts; a process that waits for its own fact folds it without reading it.
	restFor = 20 * time.Millisecond

	firstPause, longestPause = 50 * time.Millisecond, 5 * time.Second
)

// errForgotten says that Redis has lost facts: it was flushed, or replaced by an older copy
// of itself.
var errForgotten = errors.New("redis has forgotten facts")

// recheck is a request to check Redis at once, because a reader has found that it may have
// lost facts. The request ends a wait for new facts.
type recheck struct {
	mu        sync.Mutex
	requested bool
	wake      context.CancelFunc
}

func (r *recheck) request() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requested = true
	if r.wake != nil {
		r.wake()
	}
}

// wakeUp ends a wait for facts without a request to check Redis.
func (r *recheck) wakeUp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wake != nil {
		r.wake()
	}
}

// withTimeout returns a context that ends after a time, or when a check is requested.
func (r *recheck) withTimeout(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wake = cancel
	if r.requested {
		cancel()
	}
	return ctx, cancel
}

func (r *recheck) take() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	requested := r.requested
	r.requested = false
	return requested
}

// run runs sessions until it is stopped. If Redis has forgotten facts, the next session
// begins at once and fills it again; after other errors it begins after a pause.
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
			continue // after the facts that the other process has applied
		}
		l.guarded, l.checked = time.Time{}, time.Time{} // it may have evicted keys, and the log may be another one
		if errors.Is(err, errForgotten) || errors.Is(err, ErrCut) {
			l.log.Warn("ledger: Redis and the log differ; filling Redis again", "stream", tidemill.StreamFacts, "reason", err)
			l.metrics.refills.Inc()
			l.progress.setCaught(false)
			continue
		}
		if time.Since(began) > longestPause {
			backoff.Reset()
		}
		pause := backoff.Next()
		switch news := l.progress.fail(err); {
		case news && isStopped(err):
			l.log.Error("ledger: stopped; nothing is decided until a person has acted", "stream", tidemill.StreamFacts, "reason", err)
		case news:
			l.log.Warn("ledger: catch-up failed; retrying", "stream", tidemill.StreamFacts, "reason", err, "after", pause)
		}
		if retry.Sleep(ctx, pause) != nil {
			return
		}
	}
}

func (l *Ledger) clear() {
	for _, s := range l.caches {
		s.clear()
	}
	l.register.stale.Store(true)
	l.keyRegister.stale.Store(true)
}

// session follows the facts from the offsets in Redis on, until an error.
func (l *Ledger) session(ctx context.Context) error {
	l.ownFacts.take() // own facts are read like all others
	l.memory = newMemory()
	if err := l.begin(ctx); err != nil {
		return err
	}
	c, err := l.o.Broker.Consumer(ctx, broker.ConsumerOptions{Streams: []string{tidemill.StreamFacts}, Start: broker.Earliest(), Assigned: l.startOffsets, Rest: restFor})
	if err != nil {
		return err
	}
	err = l.followFacts(ctx, c)
	return errors.Join(err, c.Close(context.WithoutCancel(ctx))) // quick, because it has no group to leave
}

// begin reads the state of Redis first, and then the ends of the log. Other processes may
// append and apply facts between the two reads. In this order Redis then seems to lag the
// log. In the other order it would seem to be ahead, as if the stream were a new one.
//
// If Redis has no filling, or one that does not belong to the log, begin starts another filling. If
// another process does so first, begin uses the filling of that process.
func (l *Ledger) begin(ctx context.Context) error {
	if err := l.guard(ctx); err != nil {
		return err
	}
	for {
		f, err := l.readFilling(ctx)
		if err != nil {
			return err
		}
		ends, err := l.ends(ctx)
		if err != nil {
			return err
		}
		wrong := f.isWrong(ends)
		if wrong == nil && time.Since(l.checked) >= guardEvery {
			if wrong = l.CheckLog(ctx, f.last); wrong == nil {
				l.checked = time.Now()
			} else if !errors.Is(wrong, ErrCut) {
				return wrong
			}
		}
		switch {
		case wrong != nil:
			l.log.Warn("ledger: Redis is wrong; filling it again", "stream", tidemill.StreamFacts, "reason", wrong)
			fallthrough
		case f.id == "":
			if err := l.startFilling(ctx, f.id, len(ends)); err != nil {
				return err
			}
			continue
		case f.partitions != len(ends):
			return partitionsError(f.partitions, len(ends))
		}
		l.partitions = f.partitions
		l.progress.restart(f.id, f.applied, ends)
		return nil
	}
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

// startOffsets lets the consumer begin at the offsets of Redis. It refuses partitions that were
// added to the stream.
func (l *Ledger) startOffsets(_ context.Context, at []broker.Position) ([]broker.Position, error) {
	for i := range at {
		if int(at[i].Partition) >= l.partitions {
			return nil, partitionsError(l.partitions, int(at[len(at)-1].Partition)+1)
		}
		next := l.progress.reached(at[i].Partition)
		if at[i].Offset > next {
			return nil, deletedError(at[i].Partition, next, at[i].Offset)
		}
		at[i].Offset = next
	}
	return at, nil
}

// followFacts folds new facts, and checks Redis from time to time.
func (l *Ledger) followFacts(ctx context.Context, c *broker.Consumer) error {
	ready, looked := false, time.Now()
	limit := l.limitPartitions(c)
	for {
		every := lookEvery
		if ready {
			every = checkEvery
		}
		b, err := l.gather(ctx, c, every)
		if err == nil {
			err = l.checkLeaders(ctx)
		}
		if err == nil && len(b.parts) > 0 {
			err = l.apply(ctx, b)
		}
		b.release()
		idle := len(b.deliveries) == 0 && b.facts == 0
		for _, partition := range limit.resume(l.progress.reached, idle) {
			l.cache(partition).clear()
		}
		if err == nil && (l.recheck.take() || idle || time.Since(looked) > every) {
			looked = time.Now()
			ready, err = l.checkCaughtUp(ctx, c, ready)
		}
		if err != nil {
			return err
		}
	}
}

// checkCaughtUp reports whether the ledger has caught up. Once it has, look only checks that Redis
// has lost no facts.
func (l *Ledger) checkCaughtUp(ctx context.Context, c *broker.Consumer, ready bool) (bool, error) {
	err := l.guard(ctx)
	if err != nil {
		return ready, err
	}
	if l.suspected.Swap(false) || time.Since(l.checked) >= guardEvery {
		if err = l.checkFilling(ctx); err != nil {
			return ready, err
		}
	}
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
