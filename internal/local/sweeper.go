package local

import (
	"sync"
	"time"
)

// sweeper ends processes that have left the group of an attempt, and have
// outlived it: else they would sit on a GPU for ever. To look through all
// processes of the machine costs too much to be done after each attempt, so it
// is done a while after the first of several.
type sweeper struct {
	cookie string
	spare  func(run string, attempt int) bool

	mu     sync.Mutex
	due    *time.Timer
	closed bool
}

const sweepAfter = 2 * time.Second

func newSweeper(cookie string, spare func(string, int) bool) *sweeper {
	return &sweeper{cookie: cookie, spare: spare}
}

func (s *sweeper) soon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.due == nil && !s.closed {
		s.due = time.AfterFunc(sweepAfter, s.sweep)
	}
}

func (s *sweeper) sweep() {
	s.mu.Lock()
	s.due = nil
	s.mu.Unlock()
	sweep(s.cookie, s.spare)
}

// close leaves what is left to the guard.
func (s *sweeper) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.due != nil {
		s.due.Stop()
	}
}
