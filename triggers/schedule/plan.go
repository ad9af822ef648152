package schedule

import (
	"maps"
	"slices"
	"time"

	"tidemill.dev/config"
)

const (
	// A tick that comes a minute late is still on time, because a new controller takes
	// over within that.
	tooLate = time.Minute + 1
	// mostMissed bounds the missed ticks that are sent for one schedule, over all its
	// keys.
	mostMissed = 1000
	// enough is the number of ticks after which a transaction takes no further schedule.
	// The ticks of one schedule are split only if the config does not bound their number.
	enough = 1000
	// kept is how long marks are kept, so nothing older can be missed.
	kept = 30 * 24 * time.Hour
)

// inputs has everything that a plan depends on.
type inputs struct {
	table  []*entry
	states map[string]state
	lost   bool                   // a schedule without a state may have had one
	rolls  map[string]*keyList    // known keys of schedules with `each: key`
	paused func(name string) bool // reports whether a schedule is paused
	sent   map[string]bool        // ids of ticks that are on the stream although no mark says so
	now    time.Time
}

// plan has the ticks and states to write now, and the time of the next plan.
type plan struct {
	ticks  []tick           // ordered by the time when they were due
	states map[string]state // states that have changed
	gone   []string         // schedules that were removed
	notes  []decisionNote
	wake   time.Time  // time of the next plan; zero if nothing will ever be due
	more   bool       // more ticks are due
	asks   []question // schedules whose keys are needed
	idle   []string   // schedules whose keys are no longer needed
}

// decisionNote is a decision that is logged.
type decisionNote struct {
	what     decision
	schedule string
	ticks    int
}

type decision int

const (
	skipped decision = iota // ticks were missed, and late ones are not wanted
	leftOut                 // more ticks were missed than are sent late
	forgot                  // the record of missed ticks is gone
)

// decide makes the plan. It is pure: the same inputs give the same plan, so a repeated
// call after a lost answer returns the same ticks.
func decide(q inputs) plan {
	p := plan{states: map[string]state{}}
	for _, e := range q.table {
		if len(p.ticks) >= enough {
			p.more = true
			break
		}
		p.planSchedule(&q, e)
	}
	if !p.more {
		p.gone = q.removedSchedules()
	}
	slices.SortStableFunc(p.ticks, func(a, b tick) int { return a.due.Compare(b.due) })
	return p
}

// removedSchedules returns the schedules that have a state but are no longer in the config. A
// schedule that comes back is new.
func (q *inputs) removedSchedules() (all []string) {
	for _, name := range slices.Sorted(maps.Keys(q.states)) {
		if !slices.ContainsFunc(q.table, func(e *entry) bool { return e.Name == name }) {
			all = append(all, name)
		}
	}
	return all
}

// planSchedule plans one schedule.
func (p *plan) planSchedule(q *inputs, e *entry) {
	st, known := q.states[e.Name]
	if !known {
		st = p.beginSchedule(q, e)
	} else if !st.belongsTo(&e.Schedule) || st.Pass != nil && st.Pass.Early {
		p.replace(q, e, st)
		return
	}
	if q.paused(e.Name) {
		return
	}
	if begin, ok := p.assignKeys(q, e, st, false); ok {
		p.addOwed(q, e, st, begin)
	}
	p.awake(e.wake(st, q.now))
}

// beginSchedule begins a schedule without a state. The schedule may be new, and then starts now.
// Or its marks are gone: then only the newest missed time is sent, if the schedule wants
// missed ticks.
func (p *plan) beginSchedule(q *inputs, e *entry) state {
	st := begun(&e.Schedule, q.now)
	if q.lost && e.Missed != config.MissedSkip {
		if last := e.newest(q.now.Add(-kept), q.now, 1); len(last) > 0 {
			st = begun(&e.Schedule, last[0].Add(-time.Second))
			p.notes = append(p.notes, decisionNote{forgot, e.Name, max(1, e.size())})
		}
	}
	p.states[e.Name] = st
	return st
}

// replace ends a schedule's old definition and begins the new one. Ticks of a past
// scheduled time that wait for their slot are sent at once, because they belong to the
// old definition.
func (p *plan) replace(q *inputs, e *entry, st state) {
	until := q.now
	was, err := st.former(e.Schedule)
	switch paused := q.paused(e.Name); {
	case paused && st.Pass != nil:
		return
	case err == nil && !paused:
		begin, ok := p.assignKeys(q, was, st, true)
		if until = begin.Until; !ok || !p.addOwed(q, was, st, begin) {
			return
		}
	}
	if st.Pass != nil && !st.Pass.Early { // a pass that began before the change
		p.more = true
		return
	}
	if st.Pass != nil {
		until = st.Pass.Until
	}
	if sent, ok := p.states[e.Name]; ok {
		st = sent
	}
	fresh := begun(&e.Schedule, later(until, st.Last)) // another controller's clock may have been ahead
	fresh.Last = st.Last
	p.states[e.Name] = fresh
	p.awake(e.wake(fresh, q.now))
}

// awake schedules the next plan for a time, if that time is earlier.
func (p *plan) awake(at time.Time) {
	if !at.IsZero() && (p.wake.IsZero() || at.Before(p.wake)) {
		p.wake = at
	}
}

// wake returns when the next tick is due. For `each: key` that is also the time when the
// keys are requested.
func (e *entry) wake(st state, now time.Time) (first time.Time) {
	if e.Each {
		first = e.nextTime(later(st.From, now))
	}
	for _, s := range e.seats {
		if at := e.nextTime(later(st.From, now.Add(-s.offset))); !at.IsZero() && (first.IsZero() || at.Add(s.offset).Before(first)) {
			first = at.Add(s.offset)
		}
	}
	return first
}

// addOwed adds the ticks that are due until the end of a pass, which is under way or begins
// now. It reports whether all of them were added.
func (p *plan) addOwed(q *inputs, e *entry, st state, begin pass) (whole bool) {
	at := begin
	if st.Pass != nil {
		at = *st.Pass
	}
	before, late, anyLate := len(p.ticks), 0, false
	for _, s := range e.seats {
		a := e.arrears(st, s.offset, at)
		anyLate = anyLate || a.late > 0
		for _, key := range s.keysAfter(st.Pass) {
			if e.Each && len(p.ticks)-before >= part {
				p.storePass(e, st, at, late, before)
				return false
			}
			late += a.late
			p.add(q, e.Name, s.offset, key, a)
			at.Offset, at.Key = s.offset, key
		}
	}
	if e.many {
		at.Late = at.Late || anyLate
		anyLate = at.Late
	}
	switch {
	case e.more && (st.Pass == nil || at != *st.Pass):
		p.storePass(e, st, at, late, before)
		return false
	case e.more:
		p.ask(e, st, at.Early)
		return false
	case anyLate || len(p.ticks) > before || st.Pass != nil || e.called(st, at.Until):
		p.endPass(e, st, at, anyLate, late, before)
	}
	return true
}

// endPass records that a pass has ended.
func (p *plan) endPass(e *entry, st state, at pass, anyLate bool, late, before int) {
	through, until := st.Through, at.Until
	st.Pass, st.Through = nil, until
	p.countTicks(e, &st, late, before)
	if anyLate && e.Missed == config.MissedSkip {
		if !at.Asked.IsZero() {
			until = at.Asked // the newest tick has counted those that were skipped since
		}
		st.skip(through, until.Add(-tooLate))
	}
	st.dropCounted(e)
	p.states[e.Name] = st
}

// countTicks records the newest tick and the late ticks that the plan has added.
func (p *plan) countTicks(e *entry, st *state, late, before int) {
	for _, t := range p.ticks[before:] {
		st.Last = later(st.Last, t.Scheduled)
	}
	if late > 0 {
		p.notes = append(p.notes, decisionNote{e.verdict(), e.Name, late})
	}
}

func (p *plan) add(q *inputs, schedule string, offset time.Duration, key string, a missed) {
	for i, at := range a.times {
		t := tick{Schedule: schedule, Key: key, Scheduled: at, due: at.Add(offset)}
		if i == 0 {
			t.Missed = a.missed
		}
		if len(q.sent) == 0 || !q.sent[t.id()] {
			p.ticks = append(p.ticks, t)
		}
	}
}

// missed has the ticks that are due for a slot.
type missed struct {
	times  []time.Time // scheduled times that are sent
	late   int         // number of late times that are not sent
	missed int         // number of missed times, including those skipped earlier
}

func (e *entry) arrears(st state, offset time.Duration, at pass) (a missed) {
	after, until := st.oweFrom(offset), at.Until.Add(-offset)
	late := until.Add(-tooLate)
	if at.Early {
		until = at.Until
	}
	first := e.nextTime(after)
	if first.IsZero() || first.After(until) {
		return a
	}
	if late.After(after) {
		from, most := after, e.lateLimit()
		if most == 0 && !at.Asked.IsZero() && len(e.timesBetween(late, until, 1)) == 0 {
			from, most = later(after, at.Asked.Add(-offset-tooLate)), 1 // it was due, and its keys could not be read
		}
		a.times = e.newest(from, late, most)
		dropped := late
		if len(a.times) > 0 {
			dropped = a.times[0].Add(-time.Second)
		}
		a.late = e.countTimes(after, dropped)
		after = late
	}
	soon := e.timesBetween(after, until, mostMissed)
	if len(soon) == mostMissed { // this can happen if a schedule that ticks every second is replaced
		a.late += e.countTimes(soon[mostMissed-1], until)
	}
	a.times = append(a.times, soon...)
	if len(a.times) > 0 {
		a.missed = min(a.late+st.skippedBefore(e, offset, first), mostCounted)
	}
	return a
}

// verdict returns the reason why ticks that are too late are not sent.
func (e *entry) verdict() decision {
	if e.Missed == config.MissedAll {
		return leftOut
	}
	return skipped
}

// lateLimit returns how many late ticks are sent for each key.
func (e *entry) lateLimit() int {
	switch e.Missed {
	case config.MissedLast:
		return 1
	case config.MissedAll:
		return max(1, mostMissed/max(1, e.size()))
	}
	return 0
}
