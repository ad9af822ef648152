package score

import (
	"slices"

	"tidemill.dev/broker"
	"tidemill.dev/internal/models/champions"
	"tidemill.dev/internal/scoring/serving"
	"tidemill.dev/triggers/keys"
)

// splitCanary gives the canary of a group's model its share of the group's items, as a group of its own. Until the
// canary is loaded, and if it cannot be, the champion answers all of them, so that no event waits for a canary. A model
// without a canary costs one lookup a batch.
//
// The two groups have one target. So an event that has to wait does so for the champion, with the later events of its
// key, and the order of the key is kept.
func (s *session) splitCanary(b *batch, n int) {
	g := &b.groups[n]
	name := g.model.Ref().Model // that of noModel, if that answers
	c := s.o.Champions.Canary(name)
	if c == nil {
		return
	}
	m, state := s.o.Models.Slot(champions.CanaryName(name)).Use()
	if state != serving.Ready {
		return
	}
	plan, err := s.plans.planFor(m)
	if err != nil || m.Ref().Version != c.Version || m.Ref().Version == g.model.Ref().Version {
		m.Release()
		return
	}
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
