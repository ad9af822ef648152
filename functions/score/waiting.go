package score

import (
	"context"
	"slices"
	"sync"
	"time"

	"tidemill.dev/internal/served"
)

// bell wakes the pipeline: some model may have been loaded, or a partition come,
// or the committer may have become free.
type bell struct {
	mu    sync.Mutex
	woken []*target
	rung  bool
	busy  int // batches that the committer has, or is about to be given
	wake  context.CancelFunc
}

// listen calls wake when the bell is rung, at once if it has been since it was
// last taken, or if there is no committer to wait for. The returned function ends
// that.
func (l *bell) listen(wake context.CancelFunc, committer bool) func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rung || committer && l.busy == 0 {
		wake()
	}
	l.wake = wake
	return func() {
		l.mu.Lock()
		l.wake = nil
		l.mu.Unlock()
	}
}

// commits says that the committer has a batch more, or one less.
func (l *bell) commits(more int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy += more; l.busy == 0 && l.wake != nil {
		l.wake()
	}
}

func (l *bell) committing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.busy > 0
}

// ring wakes the pipeline, for a model if there is one.
func (l *bell) ring(t *target) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rung = true; t != nil {
		l.woken = append(l.woken, t)
	}
	if l.wake != nil {
		l.wake()
	}
}

// taken are the targets that it was rung for.
func (l *bell) taken() []*target {
	l.mu.Lock()
	defer l.mu.Unlock()
	woken := l.woken
	l.woken, l.rung = nil, false
	return woken
}

// watch rings when a slot that is loading may be otherwise.
func (s *session) watch(t *target, slot *served.Slot) {
	if t.watched {
		return
	}
	t.watched = true
	changed := slot.Waiter()
	s.running.Go(func() {
		select {
		case <-changed:
			s.bell.ring(t)
		case <-s.life.Done():
		case <-s.over:
		}
	})
}

// collect begins a batch with what has waited: for models that may be there now,
// or for long enough. Once nothing more comes nothing waits any longer.
func (s *session) collect(ctx context.Context, b *batch) error {
	woken := s.bell.taken() // first: what rings from here on is seen next time
	if now, all := s.tenures.changed(s.seen); now != s.seen {
		s.seen = now
		s.reap(b)
		for _, t := range all {
			s.know(t)
		}
		s.told()
	}
	for _, t := range woken {
		t.watched = false
		s.reask(t)
		s.pull(b, t)
	}
	now := time.Now()
	for _, t := range s.queues {
		if len(t.waiting) > 0 && s.expired(&t.waiting[0], now) {
			s.pull(b, t)
		}
	}
	s.queues = slices.DeleteFunc(s.queues, func(t *target) bool {
		t.queued = len(t.waiting) > 0
		return !t.queued
	})
	return s.comeBack(ctx, b)
}

// pull puts what waits for a model into the batch, before anything newer.
func (s *session) pull(b *batch, t *target) {
	for _, it := range t.waiting {
		it.turn.waiting--
		b.touch(it.turn)
		b.join(&it, t)
		b.items = append(b.items, it)
	}
	clear(t.waiting)
	t.waiting = t.waiting[:0]
}

// reap forgets tenures that have ended. Their deliveries are ended for their
// memory's sake, by the committer, which may still be busy with what points into
// them.
func (s *session) reap(b *batch) {
	over := map[*tenure]bool{}
	s.active = slices.DeleteFunc(s.active, func(t *tenure) bool {
		if !s.tenures.ended(t) {
			return false
		}
		over[t] = true
		for _, one := range t.turns {
			b.drops = append(b.drops, one.d)
		}
		t.turns = nil
		return true
	})
	for _, t := range s.queues {
		t.waiting = slices.DeleteFunc(t.waiting, func(it item) bool { return over[it.turn.tenure] })
	}
}

// expired tells whether an item has waited for long enough.
func (s *session) expired(it *item, now time.Time) bool {
	return s.closing || now.Sub(it.since) >= s.conf.Hold
}

// unreadFor is how long it takes until what is parked is asked for once more that
// could not be read. Nobody says when it can: its transaction has been committed
// by then, and Kafka gets round to telling readers.
const unreadFor = 20 * time.Millisecond

// due is when the pipeline has something to do although nothing comes.
func (s *session) due() (at time.Time, some bool) {
	if s.unread {
		at, some = time.Now().Add(unreadFor), true
	}
	for _, t := range s.queues {
		if len(t.waiting) > 0 {
			if until := t.waiting[0].since.Add(s.conf.Hold); !some || until.Before(at) {
				at, some = until, true
			}
		}
	}
	return at, some
}
