package score

import "tidemill.dev/broker"

// shelf holds contents of events, by their entries' sequence numbers.
type shelf struct {
	events map[uint64]*heldEvent
	size   int
}

func (s *shelf) put(e *heldEvent) {
	if s.events == nil {
		s.events = map[uint64]*heldEvent{}
	}
	s.events[e.seq] = e
	s.size += e.size
}

// take is an event that is not on the shelf any more; nil if it was not.
func (s *shelf) take(seq uint64) *heldEvent {
	e := s.events[seq]
	if e != nil {
		delete(s.events, seq)
		s.size -= e.size
	}
	return e
}

func (s *shelf) clear() { *s = shelf{} }

// sizeOf is about what an event takes.
func sizeOf(v *broker.View) int {
	n := 512 + len(v.ID) + len(v.Source) + len(v.Type) + len(v.Subject) + len(v.DataContentType) + len(v.DataSchema) + len(v.Time) + len(v.Data) + len(v.Key)
	for _, x := range v.Extensions {
		n += 32 + len(x.Name) + len(x.Value)
	}
	for _, h := range v.Foreign {
		n += 40 + len(h.Key) + len(h.Value)
	}
	return n
}
