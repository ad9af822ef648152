package score

import (
	"cmp"
	"context"
	"slices"
	"time"

	"tidemill.dev/internal/infer"
	"tidemill.dev/internal/served"
)

// mostAsked is how many keys' models are loaded at once for what is held. Asking
// for all would have models loaded that others push out before they are used.
const mostAsked = 256

// asked is a key whose model is being loaded.
type asked struct {
	tenure *tenure
	key    string
}

// stall is what becomes of items whose model is loading: they wait, or they have
// waited for long enough and are parked, and with them what follows of their keys.
// What was parked and has come too early goes back first.
func (s *session) stall(b *batch, g *group) {
	back := map[*tenure][]*heldEvent{}
	for _, i := range b.of(g) {
		if it := &b.items[i]; it.held != nil {
			back[it.turn.tenure] = append(back[it.turn.tenure], it.held)
			it.verdict = waiting
		}
	}
	for t, events := range back {
		t.held.putBack(events)
		t.holding = true
	}
	now := time.Now()
	for _, i := range b.of(g) {
		it := &b.items[i]
		if it.held != nil {
			continue
		}
		if it.since.IsZero() {
			it.since = now
		}
		if t := it.turn.tenure; s.expired(it, now) || t.holding && t.held.waits(it.key.key) {
			s.hold(it)
			continue
		}
		it.verdict = waiting
		s.queue(g.target, it)
	}
}

// hold parks an item.
func (s *session) hold(it *item) {
	t := it.turn.tenure
	it.verdict = parked
	it.seq = t.held.hold(it.key.key, it.v, it.offset, it.logged)
	t.holding = true
}

// park sends what is parked in the order in which that was decided, which is not
// that of the items: it was decided model by model.
func (b *batch) park(ctx context.Context, to sink) {
	var all []*item
	for i := range b.items {
		if it := &b.items[i]; it.verdict == parked {
			all = append(all, it)
		}
	}
	slices.SortFunc(all, func(x, y *item) int { return cmp.Compare(x.seq, y.seq) })
	for _, it := range all {
		it.turn.tenure.held.park(ctx, to, it.seq, it.key.key, it.v, it.logged)
	}
}

// queue lets an item wait for its model.
func (s *session) queue(t *target, it *item) {
	if !t.queued {
		t.queued = true
		s.queues = append(s.queues, t)
	}
	kept := *it
	kept.verdict = scoring
	t.waiting = append(t.waiting, kept)
	it.turn.waiting++
}

// comeBack puts what was parked into the batch, as far as the models are there.
// What is there leaves room for what comes from the stream, or a long queue of
// the one would hold up the other.
func (s *session) comeBack(ctx context.Context, b *batch) error {
	if s.unread = false; s.closing {
		return nil
	}
	for _, t := range s.active {
		if t.holding = t.held.count() > 0; !t.holding {
			continue
		}
		s.ask(t)
		events, err := t.held.take(ctx, s.most/2-b.events, mostBytes/2-b.bytes)
		if err != nil {
			return err
		}
		for _, e := range events {
			s.back(b, t, e)
		}
		s.unread = s.unread || t.held.ready()
		anew, err := t.held.renew(ctx)
		if err != nil {
			return err
		}
		for _, r := range anew {
			b.touch(t.own)
			b.items = append(b.items, item{v: &r.old.view, offset: r.old.offset, logged: r.old.logged, turn: t.own, held: r.old,
				key: &keyed{key: r.old.key}, verdict: parked, seq: r.seq})
		}
		t.holding = t.held.count() > 0
	}
	return nil
}

// back puts an event that was parked into the batch.
func (s *session) back(b *batch, t *tenure, e *heldEvent) {
	b.touch(t.own)
	b.events++
	b.bytes += e.size
	it := item{v: &e.view, offset: e.offset, logged: e.logged, turn: t.own, held: e}
	if e.err != nil {
		it.verdict, it.reason = dead, e.err
	} else {
		s.address(b, &it)
	}
	b.items = append(b.items, it)
}

// ask opens the keys whose models are there, and has others loaded. A key whose
// model will not come is opened too: there is something to be done about it.
func (s *session) ask(t *tenure) {
	for s.asking < mostAsked {
		key, some := t.held.ask()
		if !some {
			return
		}
		k, err := s.cache.of(key)
		if err != nil || s.there(k.target) {
			t.held.unlock(key)
			continue
		}
		k.target.asked = append(k.target.asked, asked{t, key})
		s.asking++
	}
}

// there tells whether a model need not be waited for, and keeps one that has just
// been loaded for the batch that asks: the cache may not want to.
func (s *session) there(t *target) bool {
	if t.kept != nil {
		return true
	}
	slot, m, state := s.find(t)
	if state == served.Loading {
		s.watch(t, slot)
		return false
	}
	if t.kept = m; m != nil {
		s.keeps = append(s.keeps, t)
	}
	return true
}

// reask has the keys asked for again whose model may have been loaded.
func (s *session) reask(t *target) {
	for _, a := range t.asked {
		a.tenure.held.close(a.key)
	}
	s.asking -= len(t.asked)
	t.asked = nil
}

// kept is the model that was kept for this batch, if it still is the one that
// should answer.
func (s *session) kept(t *target) *infer.Model {
	m := t.kept
	if m == nil {
		return nil
	}
	if now, ok := s.o.Champions.Champion(m.Ref().Model); !ok || now.Version != m.Ref().Version {
		return nil
	}
	t.kept = nil
	return m
}

// unkeep lets go of what was kept and not needed.
func (s *session) unkeep() {
	for _, t := range s.keeps {
		if t.kept != nil {
			t.kept.Release()
			t.kept = nil
		}
	}
	clear(s.keeps)
	s.keeps = s.keeps[:0]
}
