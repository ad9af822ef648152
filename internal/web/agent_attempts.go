package web

import (
	"slices"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/api"
)

// attempts are those that ask much: what the ledger said of each a moment ago,
// and how much it has told. It is a memory of this gateway alone: one that is
// started anew, or another replica, begins with none, and so is no fence. The
// fence is the ledger, which every request asks that leaves something behind
// under the run's name.
type attempts struct {
	mu    sync.Mutex
	of    map[string]*attempt
	sweep int // how many there may be before those that have gone are looked for
}

// attempt is what is remembered of one.
type attempt struct {
	run   *tidemill.Run // which nobody changes
	asked time.Time     // when the ledger said so
	used  time.Time

	steps   float64 // of progress that it may tell now
	stepped time.Time
	logged  int64 // bytes, as far as it came by here
	chunks  []chunk
}

// chunk is one of a log, of which the newest few are remembered.
type chunk struct{ seq, bytes int }

const (
	latelyFor    = time.Second // the ledger's word is good for so long where a mistake does no harm
	attemptKept  = time.Minute // without a request
	leastAttempt = 256         // are kept without looking
	chunksKept   = 4           // an agent sends one after the other
)

// lately is an attempt's run, if the ledger spoke of it a moment ago.
func (s *attempts) lately(name string, now time.Time) *tidemill.Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.of[name]
	if a == nil || now.Sub(a.asked) > latelyFor {
		return nil
	}
	a.used = now
	return a.run
}

// keep remembers an attempt, and what the ledger has just said of it.
func (s *attempts) keep(name string, run *tidemill.Run, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of, s.sweep = map[string]*attempt{}, leastAttempt
	}
	a := s.of[name]
	if a == nil {
		a = &attempt{steps: api.MaxSteps, stepped: now}
		s.of[name] = a
	}
	a.run, a.asked, a.used = run, now, now
	if len(s.of) > s.sweep {
		s.clean(now)
	}
}

// clean forgets those that have not asked for long. It is called again only
// when as many have come again as are left, so that each costs little.
func (s *attempts) clean(now time.Time) {
	for name, a := range s.of {
		if now.Sub(a.used) > attemptKept {
			delete(s.of, name)
		}
	}
	s.sweep = max(2*len(s.of), leastAttempt)
}

func (s *attempts) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, name)
}

// step takes n lines of progress, if an attempt may tell so many now.
func (s *attempts) step(name string, n int, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.of[name]
	if a == nil {
		return true // it has been forgotten meanwhile, so it has not told much
	}
	a.steps = min(a.steps+now.Sub(a.stepped).Seconds()*api.StepsASec, api.MaxSteps)
	a.stepped = now
	if a.steps < float64(n) {
		return false
	}
	a.steps -= float64(n)
	return true
}

// log counts a chunk of the log, if that and those before are no more than most.
// One of the newest that comes again is counted once, and by what it has grown;
// any other counts: whoever chose the numbers could else have all counted as
// repeats.
func (s *attempts) log(name string, seq, bytes int, most int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.of[name]
	if a == nil {
		return true
	}
	was := 0
	at := slices.IndexFunc(a.chunks, func(c chunk) bool { return c.seq == seq })
	if at >= 0 {
		was = a.chunks[at].bytes
	}
	more := int64(max(bytes-was, 0))
	if more > 0 && a.logged+more > most {
		return false
	}
	if at >= 0 {
		a.chunks = slices.Delete(a.chunks, at, at+1)
	} else if len(a.chunks) == chunksKept {
		a.chunks = slices.Delete(a.chunks, 0, 1)
	}
	a.logged, a.chunks = a.logged+more, append(a.chunks, chunk{seq, max(bytes, was)})
	return true
}
