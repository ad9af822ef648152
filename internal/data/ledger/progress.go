package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"tidemill.dev/broker"
)

// progress is the progress of the fold in Redis, as far as this process knows.
type progress struct {
	mu      sync.Mutex
	applied map[int32]int64 // next offset of each partition
	fill    string          // id of the filling of Redis that applied belongs to
	sum     int64           // sum of these offsets; a Redis with a lower sum has forgotten facts
	ends    map[int32]int64 // ends of the log when the session began
	folded  map[int32]int64 // next offsets of the facts that are folded and may be unwritten
	began   time.Time       // time at which the session began
	first   int64           // number of facts that it had to catch up with
	caught  bool
	closed  bool
	err     error
	changed chan struct{}
	waiting map[int32][]*waiter
	fresh   map[int32]map[place][]byte // states that the last batch of a partition wrote
}

// waiter waits until its fact has been applied.
type waiter struct {
	offset int64
	of     place
	state  []byte // state after the fact's batch; nil if another process folded the fact
	err    error
	done   chan struct{}
}

func newProgress() *progress {
	return &progress{applied: map[int32]int64{}, folded: map[int32]int64{}, ends: map[int32]int64{}, changed: make(chan struct{}),
		waiting: map[int32][]*waiter{}, fresh: map[int32]map[place][]byte{}}
}

// step is an advance of one partition: its next offset, and the states that were written, if
// this process wrote them.
type step struct {
	partition int32
	next      int64
	states    map[place][]byte
}

// advance records that facts have been applied, and releases the waiters for them.
func (p *progress) advance(steps ...step) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range steps {
		p.sum += s.next - p.applied[s.partition]
		p.applied[s.partition], p.fresh[s.partition] = s.next, s.states
		p.release(s)
	}
	p.err = nil
	p.announce()
}

func (p *progress) release(s step) {
	kept := p.waiting[s.partition][:0]
	for _, w := range p.waiting[s.partition] {
		if w.offset >= s.next {
			kept = append(kept, w)
			continue
		}
		w.state = s.states[w.of]
		close(w.done)
	}
	p.waiting[s.partition] = kept
}

func (p *progress) announce() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// restart sets the offsets of Redis. They may be lower than before.
func (p *progress) restart(fill string, applied, ends map[int32]int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fill, p.applied, p.ends, p.sum, p.caught = fill, applied, ends, 0, false
	clear(p.fresh)
	for partition, next := range applied {
		p.sum += next
		p.release(step{partition: partition, next: next})
	}
	p.folded = maps.Clone(applied)
	p.began, p.first = time.Now(), p.left()
	p.announce()
}

// fold records that facts have been folded. Redis may not have them yet.
func (p *progress) fold(partition int32, next int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.folded[partition] = next
}

// left returns the number of facts to catch up with that are not folded. The caller holds the lock.
func (p *progress) left() (n int64) {
	for partition, end := range p.ends {
		n += max(0, end-max(p.applied[partition], p.folded[partition]))
	}
	return n
}

func (p *progress) reached(partition int32) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.applied[partition]
}

// reachedOf returns the partition of a record key, the offset up to which its facts are applied, and
// the filling that has them.
func (p *progress) reachedOf(key []byte) (fill string, partition int32, next int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ends) == 0 {
		return "", -1, 0
	}
	partition = broker.PartitionOf(key, len(p.ends))
	return p.fill, partition, p.applied[partition]
}

// distance returns the number of facts to catch up with, and the ends of the log.
func (p *progress) distance() (behind int64, ends map[int32]int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for partition, end := range p.ends {
		behind += max(0, end-p.applied[partition])
	}
	return behind, p.ends // the map is replaced, never changed
}

// known is the least that Redis must have.
type known struct {
	fill string
	sum  int64
}

// known returns what this process knows of Redis. It fails while the ledger catches up.
func (p *progress) known() (known, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := known{p.fill, p.sum}
	switch {
	case p.caught:
		return k, nil
	case p.err != nil:
		return k, fmt.Errorf("%w: %w", ErrCatchingUp, p.err)
	}
	return k, ErrCatchingUp
}

// setCaught records whether the ledger has caught up. If it has, the last error is over,
// even if no fact has been applied since.
func (p *progress) setCaught(caught bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if caught {
		p.err = nil
	}
	if p.caught != caught {
		p.caught = caught
		p.announce()
	}
}

// fail records an error that stops the progress. After a StoppedError nothing may be decided. It
// reports whether the progress had no error before, or was not stopped before.
func (p *progress) fail(err error) (news bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	stopped := isStopped(err)
	news = p.err == nil || stopped && !isStopped(p.err)
	p.err = err
	if stopped && p.caught {
		p.caught = false
		p.announce()
	}
	return news
}

// stopped returns the reason if the ledger has stopped.
func (p *progress) stopped() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var stopped *StoppedError
	if errors.As(p.err, &stopped) {
		return stopped
	}
	return nil
}

func (p *progress) status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Status{Err: p.err}
	var stopped *StoppedError
	if s.Stopped = errors.As(p.err, &stopped); s.Stopped {
		s.Err = stopped
	}
	for partition, end := range p.ends {
		s.Total += max(end, p.applied[partition])
	}
	s.Behind = p.left()
	switch {
	case p.caught:
		s.Behind = 0
	case s.Behind == 0:
		s.Behind = 1 // the check for further facts has not run yet
	default:
		s.Left = timeLeft(time.Since(p.began), p.first-s.Behind, s.Behind)
	}
	return s
}

// estimateFrom is the number of facts from which on a rate is known.
const estimateFrom = 1000

// timeLeft estimates the time for the facts that are left from the time that some facts have taken.
func timeLeft(took time.Duration, done, left int64) time.Duration {
	if done < estimateFrom {
		return 0
	}
	return time.Duration(float64(took) / float64(done) * float64(left))
}

func (p *progress) changes() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

func (p *progress) caughtUp(ctx context.Context) error {
	for {
		p.mu.Lock()
		caught, closed, changed, err := p.caught, p.closed, p.changed, p.err
		p.mu.Unlock()
		switch {
		case closed:
			return ErrClosed
		case caught:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if err != nil {
				return fmt.Errorf("%w: %w: %w", ErrCatchingUp, context.Cause(ctx), err)
			}
			return fmt.Errorf("%w: %w", ErrCatchingUp, context.Cause(ctx))
		}
	}
}

func (p *progress) awaitFolded(ctx context.Context, partition int32, next int64) error {
	for {
		p.mu.Lock()
		reached, closed, changed := p.applied[partition] >= next, p.closed, p.changed
		p.mu.Unlock()
		switch {
		case reached:
			return nil
		case closed:
			return ErrClosed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// await returns a waiter for a fact. The waiter is nil if the fact has been applied already. For
// such a fact await returns the state after the fact's batch, if this state is still in memory.
func (p *progress) await(partition int32, offset int64, of place) (*waiter, []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if offset < p.applied[partition] {
		return nil, p.fresh[partition][of]
	}
	w := &waiter{offset: offset, of: of, done: make(chan struct{})}
	if p.closed {
		w.err = ErrClosed
		close(w.done)
		return w, nil
	}
	p.waiting[partition] = append(p.waiting[partition], w)
	return w, nil
}

// giveUp ends the wait for a fact.
func (p *progress) giveUp(partition int32, w *waiter) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, other := range p.waiting[partition] {
		if other == w {
			p.waiting[partition] = append(p.waiting[partition][:i], p.waiting[partition][i+1:]...)
		}
	}
	return p.err
}

func (p *progress) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed, p.caught = true, false
	for partition, all := range p.waiting {
		for _, w := range all {
			w.err = ErrClosed
			close(w.done)
		}
		delete(p.waiting, partition)
	}
	p.announce()
}
