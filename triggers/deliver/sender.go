package deliver

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"tidemill.dev/config"
)

// sender makes a trigger's attempts, as many at once and as many a second as its
// policy allows. What was just read, what was parked and what is replayed take
// turns, so that none waits for the end of another.
//
// Workers are goroutines that live as long as there is something to send. The
// sender's lock is held for moments only, and never together with a shard's.
type sender struct {
	d    *Dispatcher
	name string
	to   atomic.Pointer[target]
	tally

	mu       sync.Mutex
	fresh    fifo // read from the stream
	parked   fifo // read from where it was parked
	past     fifo // of a replay
	turn     int  // of these three
	workers  int
	reserved int // loads under way
	hungry   map[*lane]struct{}
	eager    map[chan struct{}]struct{} // replays that wait for room
	pace     *bucket
	timer    *time.Timer // until the pace allows more
	waits    bool        // for the timer
	ended    bool
	share    float64 // of the stream's partitions that are ours, and so of the rate
}

// target is where a sender sends, and how.
type target struct {
	subscriber *subscriber // nil: what comes here only becomes dead letters
	trigger    config.Trigger
}

func newSender(d *Dispatcher, name string, to *target) *sender {
	s := &sender{d: d, name: name, hungry: map[*lane]struct{}{}, eager: map[chan struct{}]struct{}{}, pace: newBucket(0), share: 1}
	s.aim(to)
	return s
}

// aim makes the sender send elsewhere or otherwise from now on.
func (s *sender) aim(to *target) {
	old := s.to.Swap(to)
	if old != nil && old.subscriber != nil && old.subscriber != to.subscriber {
		old.subscriber.close()
	}
	s.mu.Lock()
	s.setPace()
	s.hire()
	s.mu.Unlock()
}

// setShare says which part of the trigger's rate is ours: the others belong to
// those who have the other partitions.
func (s *sender) setShare(share float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if share != s.share {
		s.share = share
		s.setPace()
		s.hire()
	}
}

func (s *sender) setPace() {
	rate := s.to.Load().trigger.Delivery.Rate * s.share
	if rate != s.pace.rate {
		s.pace = newBucket(rate)
		s.pace.tokens = min(s.pace.tokens, 1) // no burst for those who change
		if s.waits {
			s.timer.Stop() // it may be set for hours
			s.waits = false
		}
	}
}

// offer takes an item to be sent.
func (s *sender) offer(i *item) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	switch {
	case i.part.past != 0:
		s.past.push(i)
	case i.parked:
		s.parked.push(i)
	default:
		s.fresh.push(i)
	}
	s.hire()
	return true
}

// hire starts workers while there is work that none is on its way to. Called
// with the lock held.
func (s *sender) hire() {
	if s.waits || s.ended {
		return
	}
	most := s.to.Load().trigger.Delivery.Concurrency
	for s.workers < most && s.workers-int(s.inFlight.Load()) < s.waiting() {
		s.workers++
		s.d.working.Go(s.work)
	}
}

// work sends until nothing is left.
func (s *sender) work() {
	for {
		i := s.next()
		if i == nil {
			return
		}
		s.d.attempt(s, i)
		s.inFlight.Add(-1)
	}
}

// next takes the next item; without one the worker ends.
func (s *sender) next() *item {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range []*fifo{&s.fresh, &s.parked, &s.past} {
		q.skip()
	}
	if s.ended || s.waiting() == 0 || s.workers > s.to.Load().trigger.Delivery.Concurrency || !s.may() {
		s.workers--
		return nil
	}
	s.inFlight.Add(1)
	for {
		s.turn++
		if q := [...]*fifo{&s.fresh, &s.parked, &s.past}[s.turn%3]; q.n > 0 {
			i := q.pop()
			s.feed()
			return i
		}
	}
}

// waiting is how many items are still to be sent. Called with the lock held.
func (s *sender) waiting() int { return s.fresh.n + s.parked.n + s.past.n }

// room tells whether a replay may offer an item, or wakes it when it may.
func (s *sender) room(wake chan struct{}) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.past.n >= s.to.Load().trigger.Delivery.Concurrency {
		s.eager[wake] = struct{}{}
		return false
	}
	return true
}

// may asks the pace. If it is not yet time, a timer hires anew when it is.
// Called with the lock held.
func (s *sender) may() bool {
	if s.waits {
		return false
	}
	ok, next := s.pace.take(time.Now())
	if ok {
		return true
	}
	s.waits = true
	s.timer = time.AfterFunc(time.Until(next), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.waits = false
		s.hire()
	})
	return false
}

// reserve makes room for items that are to be loaded: about so many as keep all
// workers busy until the next. A lane that gets none is woken when there is.
func (s *sender) reserve(l *lane) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := max(2*s.to.Load().trigger.Delivery.Concurrency-s.parked.n-s.reserved, 0)
	s.reserved += n
	if n == 0 {
		s.hungry[l] = struct{}{}
	}
	return n
}

// unreserve gives room back that was not needed, or that is taken now.
func (s *sender) unreserve(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reserved -= n
	if n > 0 {
		s.feed()
	}
}

// feed wakes lanes that wait for room. Called with the lock held.
func (s *sender) feed() {
	if len(s.eager) > 0 && s.past.n <= s.to.Load().trigger.Delivery.Concurrency/2 {
		for wake := range s.eager {
			poke(wake)
		}
		clear(s.eager)
	}
	if len(s.hungry) == 0 || s.parked.n+s.reserved > s.to.Load().trigger.Delivery.Concurrency {
		return
	}
	for l := range s.hungry {
		poke(l.due)
	}
	clear(s.hungry)
}

// end stops the sender and returns what it has not begun to send.
func (s *sender) end() []*item {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if s.timer != nil {
		s.timer.Stop()
	}
	var left []*item
	for _, q := range []*fifo{&s.fresh, &s.parked, &s.past} {
		for q.n > 0 {
			left = append(left, q.pop())
		}
	}
	for l := range s.hungry {
		poke(l.due)
	}
	return left
}

// random is from 0 to 1, for the jitter of delays.
func random() float64 { return rand.Float64() }

// fifo is a queue of items in a ring.
type fifo struct {
	ring []*item
	head int
	n    int
}

func (f *fifo) push(i *item) {
	if f.n == len(f.ring) {
		f.renew()
	}
	f.ring[(f.head+f.n)%len(f.ring)] = i
	f.n++
}

// renew makes room: by leaving out what only waits in vain, and else by taking
// more memory. Most of what an overloaded sender has may have been parked again.
func (f *fifo) renew() {
	all := make([]*item, 0, f.n)
	for f.n > 0 {
		if i := f.pop(); !i.vain() {
			all = append(all, i)
		}
	}
	f.ring, f.head, f.n = make([]*item, max(16, 2*len(all))), 0, len(all)
	copy(f.ring, all)
}

// skip passes over what waits in vain, until something does not.
func (f *fifo) skip() {
	for f.n > 0 && f.ring[f.head].vain() {
		f.pop()
	}
}

func (f *fifo) pop() *item {
	i := f.ring[f.head]
	f.ring[f.head] = nil
	f.head = (f.head + 1) % len(f.ring)
	f.n--
	return i
}
