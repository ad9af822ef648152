package score

import (
	"errors"
	"fmt"
	"slices"

	"tidemill.dev/config"
	"tidemill.dev/internal/infer"
	"tidemill.dev/internal/served"
)

// resolve asks once a batch which version of each model answers. What changes
// meanwhile counts from the next batch on: that is how versions are swapped.
//
// The places among the facts are asked behind it. Every version was known at
// them or before, so a successor that waits for them cannot know an older one.
func (s *session) resolve(b *batch) {
	for i := range b.groups {
		g := &b.groups[i]
		s.answers(g)
		if g.model == nil {
			s.settle(b, g)
		}
	}
	if places := s.o.Champions.Places(); !slices.Equal(places, s.places) {
		s.places, s.facts = places, factsText(places)
	}
	b.facts = s.facts
	s.unkeep()
}

// answers finds the model of a group, or what becomes of it without.
func (s *session) answers(g *group) {
	slot, m, state := s.find(g.target)
	switch state {
	case served.Missing:
		s.without(g)
	case served.Loading:
		g.does = waiting
		s.watch(g.target, slot)
	case served.Broken:
		g.does, g.reason = dead, fmt.Errorf("%w: %w", errUnloadable, slot.Err())
	default:
		s.ready(g, m)
	}
}

// ready finds how events are read for a model that answers.
func (s *session) ready(g *group, m *infer.Model) {
	if g.plan, g.reason = s.plans.of(m); g.reason != nil {
		m.Release()
		g.does = dead
		return
	}
	g.model = m
}

// find is the version that answers for a model now, which may be that of the
// model that stands in for it.
func (s *session) find(t *target) (*served.Slot, *infer.Model, served.State) {
	slot, m, state := s.use(t)
	if state == served.Missing && s.conf.NoModel.Action == config.NoModelUse {
		slot, m, state = s.use(s.cache.target(s.conf.NoModel.Model))
	}
	if state == served.Loading {
		if m = s.kept(t); m != nil {
			state = served.Ready
		}
	}
	return slot, m, state
}

// use is the version of a model that answers now. Whether there is such a model
// is asked of the champions first: a slot stays, and names may come from anybody.
func (s *session) use(t *target) (*served.Slot, *infer.Model, served.State) {
	if t.slot == nil {
		if _, ok := s.o.Champions.Champion(t.name); !ok {
			return nil, nil, served.Missing
		}
		t.slot = s.o.Models.Slot(t.name)
	}
	m, state := t.slot.Use()
	return t.slot, m, state
}

var errUnloadable = errors.New("its model cannot be loaded")

// mostSent is how large an output may be. Kafka would refuse a larger one, and its
// whole transaction, again and again.
const mostSent = 1<<20 - 64<<10

var errTooLarge = errors.New("what follows from it is too large for a stream; where the model has that many scores, set the scorer's top")

// without is what becomes of events whose model has no champion.
func (s *session) without(g *group) {
	switch s.conf.NoModel.Action {
	case config.NoModelDrop:
		g.does = dropped
	case config.NoModelPass:
		g.does = passed
	case config.NoModelUse:
		g.does, g.reason = dead, fmt.Errorf("neither model %s nor %s, which noModel names, has a champion", g.target.name, s.conf.NoModel.Model)
	default:
		g.does, g.reason = dead, fmt.Errorf("model %s has no champion", g.target.name)
	}
}

// settle gives the items of a group that is not scored what becomes of them.
func (s *session) settle(b *batch, g *group) {
	if g.does == waiting {
		s.stall(b, g)
		return
	}
	for _, i := range b.of(g) {
		it := &b.items[i]
		if it.verdict, it.reason = g.does, g.reason; it.verdict == passed && sizeOf(it.v) > mostSent {
			it.verdict, it.reason = dead, errTooLarge
		}
	}
}
