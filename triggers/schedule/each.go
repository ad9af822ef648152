package schedule

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"tidemill.dev/broker/retry"
)

const (
	// part is how many ticks of a schedule with `each: key` are sent in one transaction.
	part = 2000
	// maxRoll bounds the keys that a mistake in recipes can make the controller keep.
	maxRoll = 1_000_000
)

// pass is a walk over the slots of a schedule with too many ticks for one transaction.
// The start time of the pass, not of each transaction, decides which ticks are sent. So
// no tick becomes too late in between, and a new controller continues at the same slot,
// even with other keys.
type pass struct {
	Until  time.Time     `json:"until"`           // ticks due up to this time are sent
	Early  bool          `json:"early,omitempty"` // also send ticks that wait for their slot in the spread
	Offset time.Duration `json:"offset"`          // last handled slot
	Key    string        `json:"key"`             // last handled key of the slot
}

// keysAfter returns the keys of a slot that a pass has not handled yet.
func (s *slot) keysAfter(p *pass) []string {
	switch {
	case p == nil || s.offset < p.Offset: // the slots are ordered from last to first
		return s.keys
	case s.offset > p.Offset:
		return nil
	}
	i, found := slices.BinarySearch(s.keys, p.Key)
	if found {
		i++
	}
	return s.keys[i:]
}

// storePass stores an unfinished pass, which the next plan continues.
func (p *plan) storePass(e *entry, st state, at pass, late, before int) {
	p.countTicks(e, &st, late, before)
	st.Pass = &at
	p.states[e.Name] = st
	p.more = true
}

// keyList has the keys that a schedule with `each: key` had at one time.
type keyList struct {
	asOf   time.Time // the keys do not hold for later scheduled times
	keys   []string  // sorted
	spread time.Duration
	seats  []slot
}

func newKeyList(schedule string, keys []string, spread time.Duration, asOf time.Time) *keyList {
	keys = slices.Clone(keys)
	slices.Sort(keys)
	keys = slices.Compact(keys)
	return &keyList{asOf: asOf, keys: keys, spread: spread, seats: slotsOf(schedule, keys, spread)}
}

// slotsFor returns the slots of the keys, for the present definition of a schedule or for the
// one that is being replaced.
func (r *keyList) slotsFor(e *entry) []slot {
	if r.spread != e.Spread {
		return slotsOf(e.Name, r.keys, e.Spread)
	}
	return r.seats
}

// assignKeys gives the keys of a schedule with `each: key` their slots, if ticks may be owed,
// and returns the time up to which these keys hold. It returns false while the keys are
// not known; then the plan asks for them.
func (p *plan) assignKeys(q *inputs, e *entry, st state) (until time.Time, ok bool) {
	if !e.Each {
		return q.now, true
	}
	newest, r := e.latest(st, q.now), q.rolls[e.Name]
	e.seats = nil
	switch {
	case newest.IsZero() && st.Pass == nil:
		p.idle = append(p.idle, e.Name)
		return q.now, true
	case r == nil:
		p.asks = append(p.asks, e.Name)
		return q.now, false
	}
	e.seats = r.slotsFor(e)
	if newest.After(r.asOf) { // meanwhile ticks of earlier times are still sent
		p.asks = append(p.asks, e.Name)
		return e.nextTime(r.asOf).Add(-time.Millisecond), true
	}
	return q.now, true
}

// latest returns the newest scheduled time that may still owe ticks; zero if there is
// none.
func (e *entry) latest(st state, now time.Time) time.Time {
	all := e.newest(later(st.From, st.Through.Add(-e.Spread)), now, 1)
	if len(all) == 0 {
		return time.Time{}
	}
	return all[0]
}

// called reports whether keys were requested for a time that the state does not cover
// yet. A key added after a scheduled time is not owed its tick, even if there is no other
// key.
func (e *entry) called(st state, until time.Time) bool {
	newest := e.latest(st, until)
	return e.Each && !newest.IsZero() && (st.Through.Before(newest) || !until.Before(newest.Add(e.Spread)))
}

// requestKeys asks for the keys of a schedule.
func (k *Controller) requestKeys(ctx context.Context, schedule string, spread time.Duration, asOf time.Time) (*keyList, error) {
	if k.opt.Keys == nil {
		return newKeyList(schedule, nil, spread, asOf), nil
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	keys, err := k.opt.Keys(ctx, schedule)
	if err == nil && len(keys) > maxRoll {
		err = fmt.Errorf("there are %d, and a schedule ticks for %d at most; name it in recipes of fewer keys", len(keys), maxRoll)
	}
	if err != nil {
		return nil, fmt.Errorf("ask for the keys of schedule %s: %w", schedule, err)
	}
	return newKeyList(schedule, keys, spread, asOf), nil
}

const (
	// askWithin bounds how long the answer may take. Hundreds of thousands of keys come
	// within seconds.
	askWithin = time.Minute
	// A failed request is repeated after askAgain, doubled each time up to mostAskAgain, so that a
	// tick does not become late for lack of a try.
	askAgain     = time.Second
	mostAskAgain = 16 * time.Second
)

// keyLists gets the keys of schedules with `each: key`. The request runs outside the loop, so that
// a slow answer delays only its own schedule.
type keyLists struct {
	k      *Controller
	asking sync.WaitGroup

	mu       sync.Mutex
	answered chan struct{} // signalled when there is an answer
	rolls    map[string]*keyList
	tries    map[string]*keyRequest
}

// keyRequest is a request for keys that has no answer yet.
type keyRequest struct {
	open     bool
	failures int
	again    time.Time
}

func newKeyLists(k *Controller) *keyLists {
	return &keyLists{k: k, answered: make(chan struct{}, 1), rolls: map[string]*keyList{}, tries: map[string]*keyRequest{}}
}

// current returns the present lists of keys.
func (r *keyLists) current() map[string]*keyList {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.rolls)
}

// see requests the keys that a plan needs, forgets those that it does not need, and
// returns the time of the next retry.
func (r *keyLists) see(ctx context.Context, p *plan, table *timetable, now time.Time) (again time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range p.idle {
		r.forget(name)
	}
	for _, name := range p.gone {
		r.forget(name)
	}
	for _, name := range p.asks {
		t := r.tries[name]
		if t == nil {
			t = &keyRequest{}
			r.tries[name] = t
		}
		switch {
		case t.open:
		case now.Before(t.again):
			if again.IsZero() || t.again.Before(again) {
				again = t.again
			}
		default:
			t.open = true
			spread := table.spread(name)
			r.asking.Go(func() { r.ask(ctx, name, spread, now) })
		}
	}
	return again
}

func (r *keyLists) forget(name string) {
	delete(r.rolls, name)
	if t := r.tries[name]; t != nil && !t.open {
		delete(r.tries, name)
		r.k.delayed(name, nil)
	}
}

func (r *keyLists) ask(ctx context.Context, name string, spread time.Duration, asOf time.Time) {
	got, err := r.k.requestKeys(ctx, name, spread, asOf)
	if ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	t := r.tries[name]
	if err == nil {
		r.rolls[name] = got
		delete(r.tries, name)
	} else {
		t.open = false
		t.failures++
		t.again = r.k.now().Add(retry.Backoff{First: askAgain, Cap: mostAskAgain}.After(t.failures))
	}
	r.mu.Unlock()
	r.k.delayed(name, err)
	select {
	case r.answered <- struct{}{}:
	default:
	}
}
