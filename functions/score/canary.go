package score

import (
	"errors"
	"fmt"
	"slices"

	"tidemill.dev/broker"
	"tidemill.dev/internal/models/champions"
	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/serving"
	"tidemill.dev/triggers/keys"
)

// splitCanary gives the canary of a group's model its share of the group's items, as another group. A model
// without a canary costs one lookup a batch.
//
// The two groups have one target. So an event that has to wait does so for the champion, with the later events of its
// key, and the order of the key is kept. For the same reason, all of the model's events wait for a canary that has
// to be loaded again.
func (s *session) splitCanary(b *batch, n int) {
	g := &b.groups[n]
	c, m, slot := s.canaryOf(g.model)
	if slot != nil {
		g.model.Release()
		g.model, g.does = nil, waiting
		s.watch(g.target, slot)
		s.setVerdict(b, g)
		return
	}
	if m == nil {
		return
	}
	plan, err := s.plans.planFor(m)
	if err == nil {
		err = otherSize(g.model, m)
	}
	if err != nil {
		s.o.Models.Slot(champions.CanaryName(m.Ref().Model)).Refuse(m.Ref().Version, err)
		m.Release()
		return
	}
	name := g.model.Ref().Model // that of noModel, if that answers
	by := canaryPlace{place: keys.NewPlace(c.By), name: name, of: c}
	items := b.itemsOf(g)
	s.taken = s.taken[:0]
	stay := items[:0]
	for _, i := range items {
		if by.takes(b.items[i].v) {
			s.taken = append(s.taken, i)
		} else {
			stay = append(stay, i)
		}
	}
	if len(s.taken) == 0 {
		m.Release()
		return
	}
	copy(items[len(stay):], s.taken)
	own := int32(len(b.groups))
	for _, i := range s.taken {
		b.items[i].group = own
	}
	g.n, g.shares = int32(len(stay)), own
	b.groups = append(b.groups, group{target: g.target, model: m, canary: true, plan: plan, first: g.first + g.n, n: int32(len(s.taken))})
}

// otherSize returns an error if an input of the canary has another size than the same one of the champion, because an event
// has one size.
func otherSize(champion, canary *infer.Model) error {
	for _, own := range canary.Inputs() {
		for _, of := range champion.Inputs() {
			for i := 1; of.Name == own.Name && i < min(len(own.Shape), len(of.Shape)); i++ { // the first size is the number of rows
				if a, b := own.Shape[i], of.Shape[i]; a > 0 && b > 0 && a != b {
					return fmt.Errorf("its input %s takes %d values, and that of version %d takes %d: no event fits both; promote it without a canary when the events have its size", own.Name, a, champion.Ref().Version, b)
				}
			}
		}
	}
	return nil
}

// canaryOf returns the canary that answers next to a model, and its model; nil if the champion answers alone. It
// returns a slot instead if events have to wait until the canary is loaded there.
//
// A new canary begins when it is loaded, so that no event waits for it. From then on it answers its share in each
// batch, here and in each process that takes a partition over: a user whose events it answers does not
// come back to the champion because a process starts. The new owner of a partition cannot know whether the former one
// had begun, so it waits for all canaries that it knows. A canary that cannot be loaded anywhere, or
// whose inputs do not fit the scorer's map or the champion's sizes, answers nothing. The scorer reports that, and the canary is refused after its hold.
func (s *session) canaryOf(of *infer.Model) (*champions.Canary, *infer.Model, *serving.Slot) {
	name := of.Ref().Model
	c := s.o.Champions.Canary(name)
	if c == nil || c.Version == of.Ref().Version {
		return nil, nil, nil
	}
	slot := s.o.Models.Slot(champions.CanaryName(name))
	m, state := slot.Use()
	switch {
	case state == serving.Ready && m.Ref().Version == c.Version:
		return c, m, nil
	case state == serving.Ready: // an older canary, until the new one is loaded
		m.Release()
	case state == serving.Loading && s.hasBegun(c, slot) && !errors.Is(slot.Err(), infer.ErrNoRuntime):
		return nil, nil, slot
	}
	return nil, nil, nil
}

// hasBegun reports whether a canary has answered events, here or in the process that had a partition before.
func (s *session) hasBegun(c *champions.Canary, slot *serving.Slot) bool {
	assigned := s.assignedAt.Load()
	return assigned != nil && !c.Known.After(*assigned) || slot.Last() == c.Version
}

// arrivals returns the items of a group and of its canary in the order of their arrival.
func (b *batch) arrivals(g *group) []int32 {
	if g.shares == 0 {
		return b.itemsOf(g)
	}
	all := slices.Concat(b.itemsOf(g), b.itemsOf(&b.groups[g.shares]))
	slices.Sort(all)
	return all
}

// canaryPlace is where an event has the value that decides whether the canary answers.
type canaryPlace struct {
	place keys.Place
	name  string
	of    *champions.Canary
}

// takes reports whether the canary answers an event.
func (p *canaryPlace) takes(v *broker.View) bool { return p.of.Takes(p.name, p.value(v)) }

// value returns the value that decides. An event without a text there is decided by its source and id.
func (p *canaryPlace) value(v *broker.View) []string {
	if p.of.By != "" {
		if text := p.place.Of(v); text != "" {
			return []string{text}
		}
	}
	return []string{v.Source, v.ID}
}
