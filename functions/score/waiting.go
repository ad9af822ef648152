package score

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"tidemill.dev/broker/retry"
	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/serving"
)

// wakeup notifies the pipeline when a model may have been loaded, a partition is assigned, or the
// committer is free.
type wakeup struct {
	mu      sync.Mutex
	targets []*target
	pending bool
	busy    int // batches that the committer has or is about to get
	wake    context.CancelFunc
}

// onWake sets the function that notify calls. It is called at once if notify was called
// since the last take, or if the committer is free and the caller waits for it. The
// returned function ends that.
func (l *wakeup) onWake(wake context.CancelFunc, committer bool) func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending || committer && l.busy == 0 {
		wake()
	}
	l.wake = wake
	return func() {
		l.mu.Lock()
		l.wake = nil
		l.mu.Unlock()
	}
}

// commits changes the number of batches that the committer has.
func (l *wakeup) commits(more int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy += more; l.busy == 0 && l.wake != nil {
		l.wake()
	}
}

func (l *wakeup) committing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.busy > 0
}

// notify signals the pipeline, for a model if t is not nil.
func (l *wakeup) notify(t *target) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending = true; t != nil {
		l.targets = append(l.targets, t)
	}
	if l.wake != nil {
		l.wake()
	}
}

// take returns the models for which notify was called.
func (l *wakeup) take() []*target {
	l.mu.Lock()
	defer l.mu.Unlock()
	woken := l.targets
	l.targets, l.pending = nil, false
	return woken
}

// watch calls notify when a slot that is loading has changed. Without a slot the model is away, and
// notify is called when it may be back.
func (s *session) watch(t *target, slot *serving.Slot) {
	if t.watched {
		return
	}
	t.watched = true
	var changed <-chan struct{}
	var back <-chan time.Time
	if slot == nil {
		back = time.After(time.Until(t.back))
	} else {
		changed = slot.Waiter()
	}
	s.running.Go(func() {
		select {
		case <-changed:
			s.wake.notify(t)
		case <-back:
			s.wake.notify(t)
		case <-s.life.Done():
		case <-s.over:
		}
	})
}

// collect begins a batch with waiting events whose models may be loaded now, or that have
// waited long enough. When the scorer closes, no event waits any longer.
func (s *session) collect(ctx context.Context, b *batch) error {
	woken := s.wake.take() // first, so that a later notify counts next time
	if now, all := s.assignments.changed(s.seen); now != s.seen {
		s.seen = now
		s.forgetEnded(b)
		for _, t := range all {
			s.begin(t)
		}
		s.reportHeld()
	}
	for _, t := range woken {
		t.watched = false
		s.askAgain(t)
		s.pull(b, t)
	}
	now := time.Now()
	for _, t := range s.queues {
		if len(t.waiting) > 0 && s.expired(&t.waiting[0], now) {
			s.pull(b, t)
		}
	}
	s.queues = slices.DeleteFunc(s.queues, func(t *target) bool {
		t.queued = len(t.waiting) > 0
		return !t.queued
	})
	return s.takeParked(ctx, b)
}

// pull puts the events that wait for a model into the batch, before any newer ones.
func (s *session) pull(b *batch, t *target) {
	for _, it := range t.waiting {
		it.delivery.waiting--
		b.touch(it.delivery)
		b.join(&it, t)
		b.items = append(b.items, it)
	}
	clear(t.waiting)
	t.waiting = t.waiting[:0]
}

// forgetEnded forgets assignments that have ended. The committer ends their deliveries
// to free the memory, because it may still be working with it.
func (s *session) forgetEnded(b *batch) {
	over := map[*assignment]bool{}
	s.active = slices.DeleteFunc(s.active, func(t *assignment) bool {
		if !s.assignments.hasEnded(t) {
			return false
		}
		over[t] = true
		for _, one := range t.deliveries {
			b.foreign = append(b.foreign, one.d)
		}
		t.deliveries = nil
		return true
	})
	for _, t := range s.queues {
		t.waiting = slices.DeleteFunc(t.waiting, func(it item) bool { return over[it.delivery.of] })
	}
}

// expired reports whether an item has waited long enough.
func (s *session) expired(it *item, now time.Time) bool {
	return s.closing || now.Sub(it.since) >= s.conf.Hold
}

// unreadFor is the time until parked events that could not be read are tried again.
// Their transaction has been committed, but Kafka does not say when readers can see it.
const unreadFor = 20 * time.Millisecond

// nextDue returns the time at which the pipeline must act even if no event arrives.
func (s *session) nextDue() (at time.Time, some bool) {
	if s.unread {
		at, some = time.Now().Add(unreadFor), true
	} else if s.crowded {
		at, some = time.Now().Add(crowdedFor), true
	}
	for _, t := range s.queues {
		if len(t.waiting) > 0 {
			if until := t.waiting[0].since.Add(s.conf.Hold); !some || until.Before(at) {
				at, some = until, true
			}
		}
	}
	return at, some
}

// mostAsked is how many models are loaded at once for parked events. If all were
// loaded at once, some would be evicted before they are used. Models whose load has failed and is tried again do not
// count: however many they are, they must not keep others from being loaded.
const mostAsked = 256

// crowdedFor is the time until it is checked again whether more models can be asked for. A failed load does not say so.
const crowdedFor = time.Second

// delay makes events wait that were not answered. Either ONNX Runtime's process could not score them now: it was lost because
// of other models, or does not take this one for a while. Or the batch was full. Later events of their model wait with them, so
// that the order of each key is kept. A model of which only some events were answered comes last in the next batch, so that
// each model has its turn.
func (s *session) delay(b *batch) {
	var last *target
	var rest []int32
	for n := range b.groups {
		g := &b.groups[n]
		if g.model == nil || g.canary {
			continue
		}
		late := b.firstWaiting(g)
		if len(late) > 0 && b.items[late[0]].reason != nil {
			s.delayAway(b, g.target, late)
			continue
		}
		if g.target.away = 0; last == nil && len(late) > 0 && len(late) < int(g.n) {
			last, rest = g.target, late
			continue
		}
		s.parkLate(b, g.target, late, true)
	}
	s.parkLate(b, last, rest, true)
}

// delayAway makes events wait until their model can be asked again.
func (s *session) delayAway(b *batch, t *target, late []int32) {
	reason := b.items[late[0]].reason
	if t.away++; t.away == 1 {
		s.log.Warn("scorer: a model cannot be asked now; its events wait", "scorer", s.conf.Name, "model", t.name, "reason", reason)
	}
	s.failing(reason)
	t.back = time.Now().Add(awayWait(t.away))
	s.parkLate(b, t, late, false)
	s.watch(t, nil)
}

// firstWaiting returns the first item of a group, or of its canary, that has to wait, and those after it. Dead letters
// remain dead.
func (b *batch) firstWaiting(g *group) (late []int32) {
	for _, i := range b.arrivals(g) {
		if it := &b.items[i]; it.verdict == waiting || len(late) > 0 && it.verdict != dead {
			late = append(late, i)
		}
	}
	return late
}

// awayWait is the time after which a model that is away is asked again.
func awayWait(times int) time.Duration {
	return retry.Backoff{First: 100 * time.Millisecond, Cap: 10 * time.Second}.After(times)
}

// isAway reports whether the model is not to be asked now.
func (t *target) isAway() bool { return t.away > 0 && time.Now().Before(t.back) }

// parkLate handles items whose model is loading or away, or for which the batch had no room. These events wait, or have waited
// long enough for their model and are parked together with later events of their keys. Parked events that were taken too early
// go back first.
func (s *session) parkLate(b *batch, of *target, items []int32, full bool) {
	if len(items) == 0 {
		return
	}
	back := map[*assignment][]*heldEvent{}
	for _, i := range items {
		if it := &b.items[i]; it.held != nil {
			back[it.delivery.of] = append(back[it.delivery.of], it.held)
			it.verdict = waiting
		}
	}
	for t, events := range back {
		t.held.putBack(events)
		t.holding = true
	}
	now := time.Now()
	for _, i := range items {
		it := &b.items[i]
		if it.held != nil {
			continue
		}
		switch {
		case full:
			it.since = time.Time{} // collect takes it at once
		case it.since.IsZero():
			it.since = now
		}
		if t := it.delivery.of; !full && s.expired(it, now) || t.holding && t.held.isWaiting(it.key.key, of.name) {
			s.hold(it)
			continue
		}
		it.verdict = waiting
		s.queue(of, it)
	}
}

// hold parks an item.
func (s *session) hold(it *item) {
	t := it.delivery.of
	it.verdict = postponed
	it.parks = t.held.hold(it.key.key, it.key.target.name, it.v, it.offset, it.logged)
	t.holding = true
}

// park sends the items to be parked in the order of the input, also those that are parked again.
func (b *batch) park(ctx context.Context, to output) error {
	var all []*item
	for i := range b.items {
		if it := &b.items[i]; it.verdict == postponed {
			all = append(all, it)
		}
	}
	slices.SortStableFunc(all, func(x, y *item) int { return cmp.Compare(x.offset, y.offset) })
	for _, it := range all {
		if err := it.delivery.of.held.park(ctx, to, it.parks, it.v); err != nil {
			return err
		}
	}
	return nil
}

// queue makes an item wait for its model.
func (s *session) queue(t *target, it *item) {
	if !t.queued {
		t.queued = true
		s.queues = append(s.queues, t)
	}
	kept := *it
	kept.verdict, kept.reason = scoring, nil
	t.waiting = append(t.waiting, kept)
	it.delivery.waiting++
}

// takeParked puts parked events into the batch if their models are loaded. Returned events leave
// room for events of the stream, so that a long queue of one kind does not delay the other.
func (s *session) takeParked(ctx context.Context, b *batch) error {
	if s.unread, s.crowded = false, false; s.closing {
		return nil
	}
	s.room = unknownRoom
	for _, t := range s.active {
		if t.holding = t.held.count() > 0; !t.holding {
			continue
		}
		s.openModels(t)
		events, err := t.held.takeOpen(ctx, max(s.most/2, 1)-b.events, mostBytes/2-b.bytes)
		if err != nil {
			return err
		}
		for _, e := range events {
			s.addParked(b, t, e)
		}
		s.unread = s.unread || t.held.ready()
		again, err := t.held.renew(ctx)
		if err != nil {
			return err
		}
		for _, r := range again {
			b.touch(t.own)
			b.items = append(b.items, item{v: &r.old.view, offset: r.old.offset, delivery: t.own, held: r.old, parks: r.again, verdict: postponed})
		}
		t.holding = t.held.count() > 0
	}
	return nil
}

// addParked puts an event that was parked into the batch.
func (s *session) addParked(b *batch, t *assignment, e *heldEvent) {
	b.touch(t.own)
	b.events++
	b.bytes += e.size
	it := item{v: &e.view, offset: e.offset, logged: e.logged, delivery: t.own, held: e}
	if e.err != nil {
		it.verdict, it.reason = dead, e.err
	} else {
		s.address(b, &it)
	}
	b.items = append(b.items, it)
}

// openModels opens the models that are loaded and starts to load others. A model that cannot come is
// opened too, because its events can be handled without it.
func (s *session) openModels(t *assignment) {
	for {
		name, some := t.held.nextModel()
		if !some {
			return
		}
		if s.room == unknownRoom {
			s.room = s.roomNow()
		}
		if s.room == 0 {
			t.held.closeModel(name)
			s.crowded = true
			return
		}
		of := s.cache.target(name)
		if name == "" || s.available(of) {
			t.held.unlock(name)
			continue
		}
		if len(of.asked) == 0 {
			s.asking, s.room = append(s.asking, of), s.room-1
		}
		of.asked = append(of.asked, t)
	}
}

// unknownRoom is the room before it is counted, which is only done if a key needs it: there may be very many models.
const unknownRoom = -1

// roomNow returns how many further models may be loaded for parked events.
func (s *session) roomNow() int {
	room := mostAsked
	for _, t := range s.asking {
		if t.slot == nil || t.slot.Err() == nil {
			room--
		}
	}
	return max(room, 0)
}

// available reports whether a model need not be waited for. It keeps a model that has just
// been loaded for this batch, because the cache may evict it.
func (s *session) available(t *target) bool {
	if t.kept != nil {
		return true
	}
	slot, m, state := s.find(t)
	if state == serving.Loading {
		s.watch(t, slot)
		return false
	}
	if m != nil {
		_, canary, loading := s.canaryOf(m)
		if canary != nil {
			canary.Release()
		}
		if loading != nil {
			m.Release()
			s.watch(t, loading)
			return false
		}
	}
	if t.kept = m; m != nil {
		s.keeps = append(s.keeps, t)
	}
	return true
}

// askAgain checks a model again that may have been loaded.
func (s *session) askAgain(t *target) {
	for _, a := range t.asked {
		a.held.closeModel(t.name)
	}
	if len(t.asked) > 0 {
		s.asking = slices.DeleteFunc(s.asking, func(one *target) bool { return one == t })
	}
	t.asked = nil
}

// keptModel returns the model that was kept for this batch, if it is still the right version.
func (s *session) keptModel(t *target) *infer.Model {
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

// unkeep releases kept models that were not needed.
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
