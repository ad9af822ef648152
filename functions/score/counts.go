package score

import (
	"sync"
	"sync/atomic"
	"time"
)

// counts are what a scorer has done since it was opened.
type counts struct {
	events, scored, passed, dropped, dead, skipped, aborted, batches, swaps atomic.Uint64

	held   atomic.Int64
	lag    atomic.Int64
	models atomic.Int64

	latency *latencies
	sizes   *latencies // of batches

	mu     sync.Mutex
	newest []Swap // oldest first
	fault  string
	at     time.Time
	rate   rate

	unsaid   uint64    // dead letters since the log was told of some
	saidDead time.Time // when that was
}

// swapsKept is how many swaps a standing shows.
const swapsKept = 50

// counted counts a batch that has been committed. Its events came to an end when
// Kafka said so, which is now.
func (s *session) counted(b *batch, now time.Time) {
	var n [verdicts]uint64
	var reason error
	var all uint64
	millis := now.UnixMilli()
	s.counts.latency.begin()
	for i := range b.items {
		it := &b.items[i]
		if n[it.verdict]++; it.held == nil && it.verdict != waiting && it.verdict != lost {
			all++
		}
		switch it.verdict {
		case scored:
			s.counts.latency.add(millis - it.logged)
		case dead:
			reason = it.reason
		}
	}
	s.counts.latency.end()
	if letters := s.counts.toSay(n[dead], now); letters > 0 {
		s.log.Warn("dead letters", "scorer", s.conf.Name, "stream", s.conf.From, "events", letters, "reason", reason)
	}
	s.swapped(b, now)
	s.counts.add(&n, all, now)
}

// sayDeadEvery keeps a publisher whose events are all bad from filling the log: a
// batch may be one of them.
const sayDeadEvery = 10 * time.Second

// toSay is how many dead letters the log is to be told of, 0 while it has been
// told lately.
func (c *counts) toSay(more uint64, now time.Time) (letters uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unsaid += more
	if more == 0 || now.Sub(c.saidDead) < sayDeadEvery {
		return 0
	}
	letters, c.unsaid, c.saidDead = c.unsaid, 0, now
	return letters
}

// add counts the events last: whoever finds them counted finds what became of them.
func (c *counts) add(n *[verdicts]uint64, all uint64, now time.Time) {
	c.scored.Add(n[scored])
	c.passed.Add(n[passed] + n[passedOver])
	c.dropped.Add(n[dropped])
	c.dead.Add(n[dead])
	c.skipped.Add(n[skipped])
	c.batches.Add(1)
	c.sizes.one(int64(all))
	c.mu.Lock()
	c.rate.add(all, now)
	c.mu.Unlock()
	c.events.Add(all)
}

// swapped keeps the newest swaps.
func (s *session) swapped(b *batch, now time.Time) {
	c := &s.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range b.swaps {
		w := &b.swaps[i]
		if w.lost {
			continue
		}
		c.swaps.Add(1)
		if len(c.newest) == 2*swapsKept {
			c.newest = append(c.newest[:0], c.newest[swapsKept:]...)
		}
		c.newest = append(c.newest, Swap{At: now, Model: w.model, Before: w.before, Version: w.version,
			Stream: s.conf.From, Partition: w.tenure.partition, Offset: w.offset})
	}
}

// failing remembers why the scorer did not get on.
func (s *Scorer) failing(err error) {
	s.counts.mu.Lock()
	defer s.counts.mu.Unlock()
	s.counts.fault, s.counts.at = err.Error(), time.Now()
}

// rate counts events by the second, for the last seconds.
type rate struct {
	counts [rateSeconds + 1]uint64
	second int64
}

const rateSeconds = 10

func (r *rate) add(n uint64, now time.Time) {
	r.move(now.Unix())
	r.counts[r.second%int64(len(r.counts))] += n
}

// move empties the seconds that have passed since the last event.
func (r *rate) move(second int64) {
	for i := max(r.second+1, second-rateSeconds); i <= second; i++ {
		r.counts[i%int64(len(r.counts))] = 0
	}
	r.second = max(r.second, second)
}

// of is the rate of the last whole seconds.
func (r *rate) of(now time.Time) float64 {
	r.move(now.Unix())
	var all uint64
	for i, n := range r.counts {
		if int64(i) != r.second%int64(len(r.counts)) {
			all += n
		}
	}
	return float64(all) / rateSeconds
}
