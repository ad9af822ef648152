package ledger

import (
	"tidemill.dev"
)

// shelf keeps some makings of one partition as they are behind the facts that have
// been applied. As these alone decide them, it stays right whoever else writes
// to Redis, and whether Redis forgets, until others apply facts of the partition.
type shelf struct {
	young, old map[string]*tidemill.Making
}

// get finds a making. One that is known not to be yet is an empty one.
func (s *shelf) get(member string, kept int) *tidemill.Making {
	if m := s.young[member]; m != nil {
		return m
	}
	m := s.old[member]
	if m != nil {
		s.put(member, m, kept)
	}
	return m
}

// put keeps a making, and those that were used last: as many as said at least, and
// at most twice as many.
func (s *shelf) put(member string, m *tidemill.Making, kept int) {
	if len(s.young) >= kept {
		s.young, s.old = nil, s.young
	}
	if s.young == nil {
		s.young = map[string]*tidemill.Making{}
	}
	s.young[member] = m
}

func (s *shelf) clear() { s.young, s.old = nil, nil }
