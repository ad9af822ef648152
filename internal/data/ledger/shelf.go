package ledger

import (
	"tidemill.dev"
)

// shelves keep what one partition has.
type shelves struct {
	makings   shelf[tidemill.Making]
	models    shelf[tidemill.Model]
	unwritten *unwritten // nil if Redis has all
}

func (s *shelves) clear() {
	s.makings.clear()
	s.models.clear()
	s.unwritten = nil
}

// shelf keeps some makings or models of one partition as they are behind the facts
// that have been applied. As these alone decide them, it stays right whoever else
// writes to Redis, and whether Redis forgets, until others apply facts of the
// partition.
type shelf[T any] struct {
	young, old map[string]*T
}

// get finds one. One that is known not to be yet is an empty one.
func (s *shelf[T]) get(member string, kept int) *T {
	if m := s.young[member]; m != nil {
		return m
	}
	m := s.old[member]
	if m != nil {
		s.put(member, m, kept)
	}
	return m
}

// put keeps one, and those that were used last: as many as said at least, and at
// most twice as many.
func (s *shelf[T]) put(member string, m *T, kept int) {
	if len(s.young) >= kept {
		s.young, s.old = nil, s.young
	}
	if s.young == nil {
		s.young = map[string]*T{}
	}
	s.young[member] = m
}

func (s *shelf[T]) clear() { s.young, s.old = nil, nil }
