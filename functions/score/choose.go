package score

import (
	"slices"

	"tidemill.dev"
)

// choose adds an event to the batch and finds the model it is meant for.
func (s *session) choose(b *batch, it item) {
	t := it.turn.tenure
	switch {
	case !selects(s.conf.Types, it.v.Type):
		it.verdict = passedOver
	case t.found != nil && t.found.has(it.v, it.offset), it.offset < t.ahead && t.held.seen(it.v, it.offset):
		it.verdict = skipped
	default:
		s.address(b, &it)
	}
	b.items = append(b.items, it)
}

// address finds the key and the model. What waits for the model already goes
// before it.
func (s *session) address(b *batch, it *item) {
	key, err := s.place.of(it.v)
	if err == nil {
		it.key, err = s.cache.of(key)
	}
	if err != nil {
		it.verdict, it.reason = dead, err
		return
	}
	if one := it.turn.tenure; one.holding && it.held == nil && one.held.waits(key) {
		s.hold(it)
		return
	}
	t := it.key.target
	if len(t.waiting) > 0 && t.batch != b.seq {
		s.pull(b, t)
	}
	b.join(it, t)
}

// selects tells whether events of a type are scored, of which some are asked for
// or all that are not ours.
func selects(types []string, typ string) bool {
	if len(types) == 0 {
		return !tidemill.ReservedType(typ)
	}
	_, found := slices.BinarySearch(types, typ)
	return found
}
