package repeats

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// shelf is one stream: what is known of it, and what waits for the next trip.
// All of it is under the lock of Memory, but for what is run's alone.
type shelf struct {
	stream  string
	key     string
	repeats prometheus.Counter

	known  known
	window time.Duration // the latest that anyone named
	fresh  time.Time     // when the last trip began that brought what others marked

	listed bool
	marks  queue
	page   *page // of those who wait for the next trip; nil is nobody

	after string // the last entry that was read; of run alone
}

// page is those who wait for one trip. Nothing changes after done is closed.
type page struct {
	done    chan struct{}
	waiting int
	failed  bool // the trip did
}

// wait puts somebody on the page of the next trip.
func (s *shelf) wait() *page {
	if s.page == nil {
		s.page = &page{done: make(chan struct{})}
	}
	s.page.waiting++
	return s.page
}

// dismiss lets everyone go who waits, with what is known already.
func (s *shelf) dismiss() (questions int) {
	p := s.page
	if p == nil {
		return 0
	}
	s.page, p.failed = nil, true
	close(p.done)
	return p.waiting
}
