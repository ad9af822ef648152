package deliver

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"tidemill.dev/config"
)

// sender makes a trigger's attempts: as many at once and as many a second as its policy allows.
// New, parked, replayed and doomed items take turns, so that none waits for the end of another kind.
// Doomed items take nothing from the rate, because nothing is sent.
//
// Workers are goroutines that live as long as there is something to send. The sender's
// lock is held for moments only, and never together with an assignment's.
type sender struct {
	d    *Dispatcher
	name string
	to   atomic.Pointer[target]
	attemptCounts

	mu       sync.Mutex
	fresh    fifo // items that were just read from the stream
	parked   fifo // items that were read from the parked log
	past     fifo // items of a range replay
	doomed   fifo // items that only need a dead letter
	turn     int  // index of the kind whose turn is next
	workers  int
	reserved int // room reserved for records that are being read
	hungry   map[*pipeline]struct{}
	eager    map[chan struct{}]struct{} // replays that wait for room
	pace     *bucket
	timer    *time.Timer // fires when the pace allows more
	waits    bool        // whether the timer is set
	ended    bool
	share    float64 // our share of the stream's partitions, and so of the rate
	circuit  circuit
}

// target is where a sender sends and by which policy.
type target struct {
	subscriber *subscriber // nil if items only become dead letters
	trigger    config.Trigger
}

func newSender(d *Dispatcher, name string, to *target) *sender {
	s := &sender{d: d, name: name, hungry: map[*pipeline]struct{}{}, eager: map[chan struct{}]struct{}{}, pace: newBucket(0), share: 1}
	s.aim(to)
	return s
}

// aim sets a new target.
func (s *sender) aim(to *target) {
	old := s.to.Swap(to)
	if old != nil && old.subscriber != nil && old.subscriber != to.subscriber {
		old.subscriber.close()
	}
	s.mu.Lock()
	if old != nil && old.subscriber != to.subscriber {
		s.circuit.stopTimer()
		s.circuit = circuit{} // the new address may be reachable
	}
	s.setPace()
	s.hire()
	s.mu.Unlock()
}

// setShare sets our part of the trigger's rate. The owners of the other partitions have the other
// shares.
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
		s.pace.tokens = min(s.pace.tokens, 1) // a change gives no burst
		if s.waits {
			s.timer.Stop() // it may be set for hours ahead
			s.waits = false
		}
	}
}

// offer accepts an item to be sent.
func (s *sender) offer(i *item) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	switch {
	case i.doomed:
		s.doomed.push(i)
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

// hire starts workers while there are more items than workers on their way. Called with
// the lock held.
func (s *sender) hire() {
	if s.ended {
		return
	}
	most := s.to.Load().trigger.Delivery.Concurrency
	for s.workers < most && s.workers-int(s.inFlight.Load()) < s.waitingCount() {
		s.workers++
		s.d.working.Go(s.work)
	}
}

// work sends items until none is left.
func (s *sender) work() {
	for {
		i := s.nextItem()
		if i == nil {
			return
		}
		s.d.attempt(s, i)
		s.inFlight.Add(-1)
	}
}

// nextItem returns the next item; the worker ends if there is none.
func (s *sender) nextItem() *item {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.queues()
	for _, q := range all {
		q.skip()
	}
	if !s.ended && s.workers <= s.to.Load().trigger.Delivery.Concurrency {
		for range all {
			s.turn++
			if q := all[s.turn%len(all)]; q.n > 0 && (q == &s.doomed || s.mayHire()) {
				s.inFlight.Add(1)
				i := q.pop()
				s.feed()
				return i
			}
		}
	}
	s.workers--
	return nil
}

// queues returns the queues of all kinds.
func (s *sender) queues() [4]*fifo { return [...]*fifo{&s.fresh, &s.parked, &s.past, &s.doomed} }

// waitingCount returns the number of items that are to be handled and need not wait for the rate. Called with the lock held.
func (s *sender) waitingCount() int {
	if s.waits {
		return s.doomed.n
	}
	return s.fresh.n + s.parked.n + s.past.n + s.doomed.n
}

// room reports whether a replay may offer an item. If not, the replay is woken as soon as it may.
func (s *sender) room(wake chan struct{}) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.past.n >= s.to.Load().trigger.Delivery.Concurrency {
		s.eager[wake] = struct{}{}
		return false
	}
	return true
}

// mayHire reports whether the rate allows another attempt. If it is too early, a timer calls hire
// again. Called with the lock held.
func (s *sender) mayHire() bool {
	if s.waits {
		return false
	}
	ok, next := s.pace.takeToken(time.Now())
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

// reserve makes room for items to be loaded: about as many as keep all workers busy
// until the next load. A pipeline that gets no room is woken when there is some.
func (s *sender) reserve(l *pipeline) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.circuit.open { // the partitions learn it soon
		s.hungry[l] = struct{}{}
		return 0
	}
	n := max(2*s.to.Load().trigger.Delivery.Concurrency-s.parked.n-s.doomed.n-s.reserved, 0)
	s.reserved += n
	if n == 0 {
		s.hungry[l] = struct{}{}
	}
	return n
}

// unreserve gives back room that was not needed or is now used.
func (s *sender) unreserve(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reserved -= n
	if n > 0 {
		s.feed()
	}
}

// feed notifies pipelines that wait for room. Called with the lock held.
func (s *sender) feed() {
	if len(s.eager) > 0 && s.past.n <= s.to.Load().trigger.Delivery.Concurrency/2 {
		for wake := range s.eager {
			notify(wake)
		}
		clear(s.eager)
	}
	if len(s.hungry) == 0 || s.parked.n+s.doomed.n+s.reserved > s.to.Load().trigger.Delivery.Concurrency {
		return
	}
	s.notifyHungry()
}

// notifyHungry notifies pipelines that have records to load. Called with the lock held.
func (s *sender) notifyHungry() {
	for l := range s.hungry {
		notify(l.due)
	}
	clear(s.hungry)
}

// stopSending stops the sender and returns the items that it has not begun to send.
func (s *sender) stopSending() []*item {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.circuit.stopTimer()
	if s.timer != nil {
		s.timer.Stop()
	}
	var left []*item
	for _, q := range s.queues() {
		for q.n > 0 {
			left = append(left, q.pop())
		}
	}
	s.notifyHungry()
	return left
}

// random returns a number in [0, 1) for the jitter of delays.
func random() float64 { return rand.Float64() }

// fifo is a queue of items in a ring buffer.
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

// renew makes room: it drops obsolete items, or takes more memory if there are none. Most
// items of an overloaded sender may have been parked again.
func (f *fifo) renew() {
	all := make([]*item, 0, f.n)
	for f.n > 0 {
		if i := f.pop(); !i.obsolete() {
			all = append(all, i)
		}
	}
	f.ring, f.head, f.n = make([]*item, max(16, 2*len(all))), 0, len(all)
	copy(f.ring, all)
}

// skip passes over obsolete items.
func (f *fifo) skip() {
	for f.n > 0 && f.ring[f.head].obsolete() {
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

// bucket limits a trigger's attempts to a rate. It has the tokens of one second, so attempts may
// come in a burst. It has room for at least one token, so a rate below one a second works too. It
// never waits: the caller asks again at the returned time. It is not safe for concurrent use.
type bucket struct {
	rate   float64 // tokens a second; 0 is unlimited
	most   float64
	tokens float64
	at     time.Time // time at which the tokens were counted
}

// newBucket returns a full bucket.
func newBucket(rate float64) *bucket {
	most := max(rate, 1)
	return &bucket{rate: rate, most: most, tokens: most}
}

// longestNext bounds the time until the next token, however small the rate is.
const longestNext = 24 * time.Hour

// takeToken takes a token if one is available; otherwise next is the time of the next token.
func (b *bucket) takeToken(now time.Time) (ok bool, next time.Time) {
	if b.rate <= 0 {
		return true, now
	}
	if passed := now.Sub(b.at); passed > 0 { // a clock that goes back adds no tokens
		if !b.at.IsZero() {
			b.tokens = min(b.most, b.tokens+b.rate*passed.Seconds())
		}
		b.at = now
	}
	if b.tokens >= 1 {
		b.tokens--
		return true, now
	}
	return false, b.at.Add(b.untilToken())
}

// untilToken returns the time until the next token, rounded up so that the token exists by then.
func (b *bucket) untilToken() time.Duration {
	const margin = time.Microsecond // margin for floating-point errors
	seconds := (1 - b.tokens) / b.rate
	if seconds >= longestNext.Seconds() {
		return longestNext
	}
	return time.Duration(seconds*float64(time.Second)) + margin
}
