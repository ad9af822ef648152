package schedule

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"tidemill.dev/broker/retry"
	"tidemill.dev/config"
)

const (
	// part is how many ticks of a schedule with `each: key` are sent in one transaction.
	part = 2000
	// maxRoll bounds the keys that the controller keeps of a schedule. If there are more, a pass gets
	// them in pieces, and only those that are owed a tick.
	maxRoll = 1_000_000
	// pieceEvery is the time between two passes of a schedule with more keys than that. A tick in a spread
	// is late by as much, which is not yet too late.
	pieceEvery = 30 * time.Second
)

// pass is a walk over the slots of a schedule with too many ticks for one transaction.
// The start time of the pass, not of each transaction, decides which ticks are sent. So
// no tick becomes too late in between, and a new controller continues at the same slot,
// even with other keys.
type pass struct {
	Until  time.Time     `json:"until"`           // ticks due up to this time are sent
	Early  bool          `json:"early,omitempty"` // also send ticks that wait for their slot in the spread
	Asked  time.Time     `json:"asked,omitzero"`  // first question for the keys; the newest tick that was not too late then is sent
	Offset time.Duration `json:"offset"`          // last handled slot
	Key    string        `json:"key"`             // last handled key of the slot
	Late   bool          `json:"late,omitempty"`  // whether an earlier piece of the keys had ticks that are too late
}

// handled reports whether the pass has handled a key of a slot. The slots are ordered from last to
// first.
func (p *pass) handled(offset time.Duration, key string) bool {
	return p != nil && (offset > p.Offset || offset == p.Offset && key <= p.Key)
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
	asked  time.Time // first question for the keys; earlier than asOf if questions failed
	keys   []string  // sorted
	spread time.Duration
	seats  []slot
	piece  *piece // nil if the list has all keys
}

// piece describes a list that has only the keys which a pass needs next.
type piece struct {
	of    config.Schedule // definition for which the keys are owed ticks
	until time.Time       // end of the pass
	early bool            // whether the pass also sends ticks that wait for their slot
	asked time.Time       // first question for the keys of the pass
	after *pass           // position of the pass before the keys; nil at its begin
	more  bool            // whether the pass needs further keys after these
}

// question asks for the keys of a schedule. It has copies, because another goroutine answers it.
type question struct {
	entry entry
	state state
	early bool      // for a pass that begins: whether it also sends ticks that wait for their slot
	first time.Time // time of the first question that has no answer yet
}

func (p *plan) ask(e *entry, st state, early bool) {
	p.asks = append(p.asks, question{entry: *e, state: st, early: early})
}

// keyCollector makes the list of keys that answers a question. It keeps at most twice as many keys as
// a list may have.
type keyCollector struct {
	question
	most  int
	asOf  time.Time
	keys  []string
	piece *piece
	owed  map[time.Duration]bool // whether keys of a slot are owed ticks
}

func (q question) collector(most int, asOf time.Time) *keyCollector {
	return &keyCollector{question: q, most: most, asOf: asOf, owed: map[time.Duration]bool{}}
}

func (c *keyCollector) add(key string) bool {
	if c.piece == nil || c.wants(key) {
		c.keys = append(c.keys, key)
	}
	if len(c.keys) >= 2*c.most {
		c.compact()
	}
	return true
}

// compact removes repeated keys. If there are too many, it keeps those that the pass needs next.
func (c *keyCollector) compact() {
	slices.Sort(c.keys)
	c.keys = slices.Compact(c.keys)
	if len(c.keys) <= c.most {
		return
	}
	if c.piece == nil {
		c.beginPiece()
	}
	if len(c.keys) <= c.most {
		return
	}
	c.piece.more = true
	kept := make([]string, 0, c.most)
	for _, s := range slotsOf(c.entry.Name, c.keys, c.entry.Spread) {
		kept = append(kept, s.keys[:min(len(s.keys), c.most-len(kept))]...)
	}
	clear(c.keys)
	c.keys = append(c.keys[:0], kept...)
}

// beginPiece keeps only the keys that the pass needs.
func (c *keyCollector) beginPiece() {
	c.piece = &piece{of: c.entry.Schedule, until: c.asOf, early: c.early, asked: c.first, after: c.state.Pass}
	if p := c.state.Pass; p != nil {
		c.piece.until, c.piece.early, c.piece.asked = p.Until, p.Early, p.Asked
	}
	c.entry.many = true
	c.keys = slices.DeleteFunc(c.keys, func(key string) bool { return !c.wants(key) })
}

// wants reports whether the pass has not handled a key yet, and owes it a tick.
func (c *keyCollector) wants(key string) bool {
	at := offset(c.entry.Name, key, c.entry.Spread)
	if c.piece.after.handled(at, key) {
		return false
	}
	owed, known := c.owed[at]
	if !known {
		a := c.entry.arrears(c.state, at, pass{Until: c.piece.until, Early: c.piece.early, Asked: c.piece.asked})
		owed = len(a.times) > 0 || a.late > 0
		c.owed[at] = owed
	}
	return owed
}

func (c *keyCollector) list() *keyList {
	c.compact()
	slices.Sort(c.keys)
	return &keyList{asOf: c.asOf, asked: c.first, keys: c.keys, spread: c.entry.Spread, seats: slotsOf(c.entry.Name, c.keys, c.entry.Spread), piece: c.piece}
}

// serves reports whether the list has the keys that a pass needs now: the pass of the state, or else
// one that begins.
func (r *keyList) serves(st state, early bool) bool {
	if r == nil || r.piece == nil {
		return r != nil
	}
	if !st.belongsTo(&r.piece.of) {
		return false
	}
	if st.Pass == nil {
		return r.piece.after == nil && r.piece.early == early
	}
	return r.piece.until.Equal(st.Pass.Until) && r.piece.early == st.Pass.Early &&
		(r.piece.after == nil || st.Pass.handled(r.piece.after.Offset, r.piece.after.Key))
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
// and returns the pass that may begin: up to the time for which these keys hold. It returns false while
// the keys are not known; then the plan asks for them. A pass that begins is early if it also sends ticks that
// wait for their slot.
func (p *plan) assignKeys(q *inputs, e *entry, st state, early bool) (begin pass, ok bool) {
	begin = pass{Until: q.now, Early: early}
	if !e.Each {
		return begin, true
	}
	newest, r := e.latest(st, q.now), q.rolls[e.Name]
	e.seats, e.many, e.more = nil, false, false
	switch {
	case newest.IsZero() && st.Pass == nil:
		p.idle = append(p.idle, e.Name)
		return begin, true
	case !r.serves(st, early):
		p.ask(e, st, early)
		return begin, false
	}
	e.seats = r.slotsFor(e)
	if st.Through.Before(r.asked) { // no tick has been handled since
		begin.Asked = r.asked
	}
	switch {
	case r.piece != nil:
		begin.Until = p.assignPiece(q, e, st, r, early)
	case newest.After(r.asOf): // meanwhile ticks of earlier times are still sent
		p.ask(e, st, early)
		begin.Until = e.nextTime(r.asOf).Add(-time.Millisecond)
	}
	return begin, true
}

// assignPiece prepares a pass over a piece of the keys. The next pass needs other keys, because
// other slots are owed ticks then.
func (p *plan) assignPiece(q *inputs, e *entry, st state, r *keyList, early bool) (until time.Time) {
	e.many, e.more = true, r.piece.more
	again := r.asOf.Add(pieceEvery)
	if st.Pass == nil && !q.now.Before(again) {
		p.ask(e, st, early)
	}
	p.awake(again)
	return r.piece.until
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
func (k *Controller) requestKeys(ctx context.Context, q question, asOf time.Time) (*keyList, error) {
	c := q.collector(cmp.Or(k.opt.most, maxRoll), asOf)
	if k.opt.Keys == nil {
		return c.list(), nil
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	if err := k.opt.Keys(ctx, q.entry.Name, c.add); err != nil {
		return nil, fmt.Errorf("ask for the keys of schedule %s: %w", q.entry.Name, err)
	}
	return c.list(), nil
}

const (
	// askWithin bounds how long the answer may take. A million keys come within seconds.
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
	first    time.Time
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
func (r *keyLists) see(ctx context.Context, p *plan, now time.Time) (again time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range p.idle {
		r.forget(name)
	}
	for _, name := range p.gone {
		r.forget(name)
	}
	asked := map[string]bool{}
	for _, q := range p.asks {
		name := q.entry.Name
		asked[name] = true
		t := r.tries[name]
		if t == nil {
			t = &keyRequest{first: now}
			r.tries[name] = t
		}
		q.first = t.first
		switch {
		case t.open:
		case now.Before(t.again):
			if again.IsZero() || t.again.Before(again) {
				again = t.again
			}
		default:
			t.open = true
			r.asking.Go(func() { r.ask(ctx, q, now) })
		}
	}
	for name, t := range r.tries { // such a schedule is paused, is gone or has keys of its own now
		if !t.open && !asked[name] && !p.more {
			r.forget(name)
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

func (r *keyLists) ask(ctx context.Context, q question, asOf time.Time) {
	name := q.entry.Name
	got, err := r.k.requestKeys(ctx, q, asOf)
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
	r.k.delayed(name, err)
	r.mu.Unlock()
	select {
	case r.answered <- struct{}{}:
	default:
	}
}
