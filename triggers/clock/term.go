package clock

import (
	"context"
	"maps"
	"time"
)

const (
	// fullEvery is how often a mark tells everything, so that whoever starts
	// reads little, and never so late that the one before has expired.
	fullEvery = 6 * time.Hour
	// longestSleep bounds what a machine that slept, or a clock that was set, can
	// delay: a timer knows of neither.
	longestSleep = 20 * time.Second
)

// term is the time in which a keeper is the active one.
type term struct {
	k    *Keeper
	desk *desk

	roster *roster
	states map[string]state
	lost   bool
	sent   map[string]bool
	full   time.Time // when a mark last told everything
}

// lead is a whole term. It ends with the reason why it cannot go on.
func (k *Keeper) lead(ctx context.Context) error {
	d, err := k.open(ctx)
	if err != nil {
		return err
	}
	defer d.close()
	t := &term{k: k, desk: d, roster: newRoster(k)}
	ctx, end := context.WithCancel(ctx)
	defer t.roster.asking.Wait()
	defer end()
	if err := t.begin(ctx); err != nil {
		return err
	}
	k.become(active, nil)
	for {
		changed := k.changes() // before what may have changed is looked at
		next, err := t.work(ctx)
		if err != nil {
			return err
		}
		if err := k.sleep(ctx, next, changed, t.roster.answered); err != nil {
			return err
		}
	}
}

// begin takes over from the keeper before. What its last transaction sent and
// what of it came to stand on the stream may differ where transactions can tear:
// what is missing is sent again, and what nothing tells of is not sent again.
func (t *term) begin(ctx context.Context) error {
	book, err := t.desk.read(ctx)
	if err != nil {
		return err
	}
	for _, gap := range book.gaps {
		t.k.log.Warn("a mark of the schedules cannot be read", "reason", gap)
	}
	if t.sent, err = t.desk.seen(ctx, book); err != nil {
		return err
	}
	t.states, t.lost = book.states, book.lost()
	if t.states == nil {
		t.states = map[string]state{}
	}
	var torn []tick
	for _, tick := range book.ticks() {
		if !t.sent[tick.id()] {
			torn = append(torn, tick)
		}
	}
	if len(torn) > 0 {
		t.k.log.Warn("a transaction was torn, and ticks that are missing are sent again", "events", len(torn))
	}
	return t.write(ctx, t.k.timetable().stream, plan{ticks: torn}, t.k.now(), true)
}

// work does what is to be done now and says when there may be more.
func (t *term) work(ctx context.Context) (next time.Time, err error) {
	for {
		now := t.k.now()
		table := t.k.timetable()
		p := decide(question{table: table.entries, states: t.states, lost: t.lost, rolls: t.roster.known(), paused: t.k.opt.Paused, sent: t.sent, now: now})
		full := now.Sub(t.full) >= fullEvery
		if full || len(p.ticks) > 0 || len(p.states) > 0 || len(p.gone) > 0 {
			if err := t.write(ctx, table.stream, p, now, full); err != nil {
				return time.Time{}, err
			}
		}
		t.k.report(p, now)
		p.awake(t.roster.see(ctx, &p, table, now))
		if !p.more {
			t.lost = false // whoever comes from now on is new
			return p.wake, nil
		}
	}
}

// write has the plan's ticks and marks stand on the streams, or neither.
func (t *term) write(ctx context.Context, stream string, p plan, now time.Time, full bool) error {
	after := maps.Clone(t.states)
	maps.Copy(after, p.states)
	for _, name := range p.gone {
		delete(after, name)
	}
	m := mark{At: now, States: p.states, Gone: p.gone}
	if full {
		m = mark{At: now, States: after, Full: true}
	}
	if err := t.desk.write(ctx, stream, p.ticks, m); err != nil {
		return err
	}
	t.states = after
	if full {
		t.full = now
	}
	return nil
}
