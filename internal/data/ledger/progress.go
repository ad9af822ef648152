package ledger

import (
	"context"
	"fmt"
	"sync"
)

// progress is how far Redis has come, as far as this process knows.
type progress struct {
	mu      sync.Mutex
	applied map[int32]int64 // the next offset of each partition
	sum     int64           // of them; Redis is never behind it, or has forgotten
	ends    map[int32]int64 // of the log, when it was last asked
	caught  bool
	closed  bool
	err     error
	changed chan struct{}
	waiting map[int32][]*waiter
	fresh   map[int32]map[place][]byte // what the last batch of a partition wrote
}

// waiter waits until its fact has been applied.
type waiter struct {
	offset int64
	of     place
	state  []byte // as the batch with the fact left it; nil if another process folded that
	err    error
	done   chan struct{}
}

func newProgress() *progress {
	return &progress{applied: map[int32]int64{}, ends: map[int32]int64{}, changed: make(chan struct{}),
		waiting: map[int32][]*waiter{}, fresh: map[int32]map[place][]byte{}}
}

// to is a partition's progress: behind which fact it is, and what was written on
// the way, if it was us.
type step struct {
	partition int32
	next      int64
	states    map[place][]byte
}

// advance notes what has been applied and lets go who has waited for it.
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

// restart sets how far Redis is, which may be less than it was.
func (p *progress) restart(applied, ends map[int32]int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.applied, p.ends, p.sum, p.caught = applied, ends, 0, false
	clear(p.fresh)
	for partition, next := range applied {
		p.sum += next
		p.release(step{partition: partition, next: next})
	}
	p.announce()
}

func (p *progress) reached(partition int32) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.applied[partition]
}

// distance is how far there is to go, and where to.
func (p *progress) distance() (behind int64, ends map[int32]int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for partition, end := range p.ends {
		behind += max(0, end-p.applied[partition])
	}
	return behind, p.ends // replaced as a whole
}

func (p *progress) known() (sum int64, caught bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sum, p.caught
}

// setCaught notes whether it may be decided by. If so it comes on, also where no
// fact has come since it did not.
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

// fail notes why it does not come on. It tells whether it came on before.
func (p *progress) fail(err error) (news bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	news = p.err == nil
	p.err = err
	return news
}

func (p *progress) status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Status{Err: p.err}
	for partition, end := range p.ends {
		s.Total += max(end, p.applied[partition])
		s.Behind += max(0, end-p.applied[partition])
	}
	switch {
	case p.caught:
		s.Behind = 0
	case s.Behind == 0:
		s.Behind = 1 // nobody has looked yet whether that is all
	}
	return s
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

// await begins to wait for a fact. What is nil has been waited for: then the
// state is what the batch with the fact left, if that is still at hand.
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
