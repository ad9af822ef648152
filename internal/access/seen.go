package access

import (
	"sync"
	"time"
)

const (
	// maxSeen bounds one generation of JWTs that are remembered.
	maxSeen = 10_000
	// seenFor bounds how long one is, so that a key which its issuer has
	// withdrawn does not count much longer.
	seenFor = 5 * time.Minute
)

// seen remembers good JWTs by their hashes: two generations, of which the older
// is forgotten when the younger is full. What is used moves to the younger.
type seen struct {
	limit int

	mu         sync.Mutex
	young, old map[hash]visit
}

type visit struct {
	caller *Caller
	until  time.Time
}

func newSeen(limit int) *seen { return &seen{limit: limit, young: map[hash]visit{}} }

// get is the caller of a JWT that still counts, else nil.
func (s *seen) get(jwt hash, now time.Time) *Caller {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.young[jwt]
	if !ok {
		if v, ok = s.old[jwt]; !ok {
			return nil
		}
		s.add(jwt, v)
	}
	if !now.Before(v.until) {
		return nil
	}
	return v.caller
}

func (s *seen) put(jwt hash, c *Caller, now, expires time.Time) {
	until := now.Add(seenFor)
	if expires.Before(until) {
		until = expires
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(jwt, visit{c, until})
}

func (s *seen) add(jwt hash, v visit) {
	if len(s.young) >= s.limit {
		s.young, s.old = map[hash]visit{}, s.young
	}
	s.young[jwt] = v
}
