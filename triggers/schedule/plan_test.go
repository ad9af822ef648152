package schedule

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev/config"
)

// desktop runs one plan after another, as a term does.
type desktop struct {
	t      *testing.T
	table  []*entry
	states map[string]state
	lost   bool
	paused map[string]bool
	sent   map[string]bool
	rolls  map[string]*keyList
	keys   func() []string // source of keys for schedules with each; nil while they are unknown
	asked  int
	most   int // number of keys in a list; 0 for maxRoll
}

func newDesktop(t *testing.T, schedules ...config.Schedule) *desktop {
	d := &desktop{t: t, states: map[string]state{}, paused: map[string]bool{}}
	d.setConfig(schedules...)
	return d
}

// setConfig replaces the config.
func (d *desktop) setConfig(schedules ...config.Schedule) {
	d.t.Helper()
	d.table = nil
	for _, s := range schedules {
		if s.TimeZone == "" {
			s.TimeZone = "UTC"
		}
		if s.Missed == "" {
			s.Missed = config.MissedSkip
		}
		e, err := newEntry(s)
		if err != nil {
			d.t.Fatal(err)
		}
		d.table = append(d.table, e)
	}
}

func (d *desktop) plan(now time.Time) plan {
	d.t.Helper()
	if d.rolls == nil {
		d.rolls = map[string]*keyList{}
	}
	p := decide(inputs{table: d.table, states: d.states, lost: d.lost, rolls: d.rolls, paused: func(s string) bool { return d.paused[s] }, sent: d.sent, now: now})
	d.storeStates(p)
	for _, name := range p.idle {
		delete(d.rolls, name)
	}
	for _, q := range p.asks {
		if d.keys != nil {
			d.asked++
			c := q.collector(cmp.Or(d.most, maxRoll), now)
			for _, key := range d.keys() {
				c.add(key)
			}
			d.rolls[q.entry.Name] = c.list()
		}
	}
	for _, name := range p.gone {
		delete(d.states, name)
	}
	return p
}

// storeStates stores the plan's states after encoding them as marks do.
func (d *desktop) storeStates(p plan) {
	d.t.Helper()
	data, err := json.Marshal(p.states)
	if err != nil {
		d.t.Fatal(err)
	}
	states := map[string]state{}
	if err := json.Unmarshal(data, &states); err != nil {
		d.t.Fatal(err)
	}
	maps.Copy(d.states, states)
}

// runAll runs plans until no tick is due.
func (d *desktop) runAll(now time.Time) (ticks []tick) {
	d.t.Helper()
	for range 1000 {
		p := d.plan(now)
		ticks = append(ticks, p.ticks...)
		if !p.more && len(p.asks) == 0 {
			return ticks
		}
	}
	d.t.Fatalf("at %s the plans have no end", now)
	return nil
}

// runAt runs a plan for a time of day and shows the ticks: time, key, and the number missed before.
func (d *desktop) runAt(now string) string {
	d.t.Helper()
	return shown(d.plan(moment(d.t, now)).ticks)
}

func shown(ticks []tick) string {
	var all []string
	for _, t := range ticks {
		text := t.Scheduled.Format("15:04:05")
		if t.Scheduled.Second() == 0 {
			text = text[:5]
		}
		if t.Key != "" {
			text += "/" + t.Key
		}
		if t.Missed > 0 {
			text += fmt.Sprintf("(%d)", t.Missed)
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

func moment(t *testing.T, text string) time.Time {
	t.Helper()
	if strings.Contains(text, "T") {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	layout := "2006-01-02 15:04:05"
	if len(text) < len(layout)-5 {
		text = "2026-06-01 " + text
	}
	at, err := time.Parse(layout[:len(text)], text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// step is a time and the ticks that are sent then.
type step struct{ now, want string }

func minutely(missed config.Missed) config.Schedule {
	return config.Schedule{Name: "minutely", Cron: "* * * * *", Missed: missed}
}

func TestPlan(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		schedule config.Schedule
		steps    []step
	}{
		{"a new schedule starts from now", minutely("all"), []step{{"12:00:00", ""}, {"12:00:59", ""}, {"12:01:00", "12:01"}, {"12:01:30", ""}}},
		{"what is a little late is on time", minutely("skip"), []step{{"12:00", ""}, {"12:01:40", "12:01"}, {"12:03:00", "12:02 12:03"}}},
		{"skip", minutely("skip"), []step{{"12:00", ""}, {"12:10:30", "12:10(9)"}, {"12:11", "12:11"}}},
		{"skip, and nothing is on time", config.Schedule{Cron: "0 * * * *"}, []step{{"12:00", ""}, {"15:30", ""}, {"15:31", ""}, {"16:00", "16:00(3)"}, {"17:00", "17:00"}}},
		{"skip, twice before a tick is sent", config.Schedule{Cron: "0 * * * *"}, []step{{"12:00", ""}, {"13:30", ""}, {"14:30", ""}, {"15:00", "15:00(2)"}, {"16:00", "16:00"}}},
		{"skip, twice, and a tick between", config.Schedule{Cron: "0 * * * *"}, []step{{"12:00", ""}, {"13:30", ""}, {"14:00", "14:00(1)"}, {"16:30", ""}, {"17:00", "17:00(2)"}}},
		{"last", minutely("last"), []step{{"12:00", ""}, {"12:10:30", "12:09(8) 12:10"}, {"12:11", "12:11"}}},
		{"last of what comes rarely", config.Schedule{Cron: "0 * * * *", Missed: "last"}, []step{{"12:00", ""}, {"15:30", "15:00(2)"}, {"16:00", "16:00"}}},
		{"all", config.Schedule{Cron: "0 * * * *", Missed: "all"}, []step{{"12:00", ""}, {"15:30", "13:00 14:00 15:00"}, {"16:00", "16:00"}}},
		{"a clock that is set back ticks no time twice", minutely("all"), []step{{"12:00", ""}, {"12:02", "12:01 12:02"}, {"12:01:30", ""}, {"12:02", ""}, {"12:03", "12:03"}}},
		{"keys", config.Schedule{Cron: "0 * * * *", Keys: []string{"a", "b"}}, []step{{"12:00", ""}, {"13:00", "13:00/a 13:00/b"}}},
		{"every", config.Schedule{Cron: "@every 20s"}, []step{{"12:00", ""}, {"12:00:40", "12:00:20 12:00:40"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := newDesktop(t, c.schedule)
			for _, s := range c.steps {
				if got := d.runAt(s.now); got != s.want {
					t.Errorf("at %s: %q, want %q", s.now, got, s.want)
				}
			}
		})
	}
}

func TestAllIsBounded(t *testing.T) {
	t.Parallel()
	d := newDesktop(t, config.Schedule{Name: "s", Cron: "* * * * *", Missed: config.MissedAll, Keys: []string{"a", "b"}})
	d.runAt("2026-06-01 00:00:00")
	p := d.plan(moment(t, "2026-06-03 00:00:30"))
	if len(p.ticks) != mostMissed+2 || p.ticks[0].Missed != 2*24*60-mostMissed/2-1 || p.ticks[2].Missed != 0 {
		t.Errorf("%d ticks, %d missed before the first", len(p.ticks), p.ticks[0].Missed)
	}
	want := decisionNote{leftOut, "s", 2 * (2*24*60 - mostMissed/2 - 1)}
	if len(p.notes) != 1 || p.notes[0] != want {
		t.Errorf("notes %v, want %v", p.notes, want)
	}
}

func TestSpread(t *testing.T) {
	t.Parallel()
	s := config.Schedule{Name: "nightly", Cron: "0 3 * * *", Spread: 2 * time.Hour}
	for i := range 400 {
		s.Keys = append(s.Keys, fmt.Sprintf("bot-%d", i))
	}
	d := newDesktop(t, s)
	d.runAt("2026-06-01 02:00:00")
	quarters := make([]int, 8)
	now, seen := moment(t, "2026-06-01 02:30:00"), map[string]time.Time{}
	for now.Before(moment(t, "2026-06-01 06:00:00")) {
		p := d.plan(now)
		for _, tick := range p.ticks {
			if want := moment(t, "2026-06-01 03:00:00"); !tick.Scheduled.Equal(want) || tick.Missed != 0 || !seen[tick.Key].IsZero() {
				t.Fatalf("%+v", tick)
			}
			seen[tick.Key] = now
			quarters[now.Sub(tick.Scheduled)/(15*time.Minute)]++
		}
		now = p.wake
	}
	if len(seen) != 400 {
		t.Errorf("%d keys have ticked", len(seen))
	}
	for i, n := range quarters {
		if n < 30 || n > 70 {
			t.Errorf("quarter %d has %d ticks of 400: %v", i, n, quarters)
		}
	}
	// A key's slot does not depend on the other keys.
	s.Keys = s.Keys[200:]
	d.setConfig(s)
	for _, at := range d.table[0].seats {
		for _, key := range at.keys {
			if want := seen[key].Sub(moment(t, "2026-06-01 03:00:00")); at.offset != want {
				t.Fatalf("%s moved from %s to %s", key, want, at.offset)
			}
		}
	}
}

// spreadSchedule returns a schedule of two keys whose ticks come at 3:00 plus their offsets.
func spreadSchedule(t *testing.T, missed config.Missed) (s config.Schedule, early, late slot) {
	s = config.Schedule{Name: "s", Cron: "0 3 * * *", Missed: missed, Spread: 4 * time.Hour, Keys: []string{"a", "b"}}
	e := newDesktop(t, s).table[0]
	early, late = e.seats[0], e.seats[1]
	if early.offset > late.offset {
		early, late = late, early
	}
	if late.offset-early.offset < 10*time.Minute || early.offset < 10*time.Minute {
		t.Fatalf("the offsets of the keys do not fit the test: %v", e.seats)
	}
	return s, early, late
}

func TestAnOutageWithinASpread(t *testing.T) {
	t.Parallel()
	for _, missed := range []config.Missed{config.MissedSkip, config.MissedLast, config.MissedAll} {
		s, early, late := spreadSchedule(t, missed)
		d := newDesktop(t, s)
		three := moment(t, "2026-06-02 03:00:00")
		d.plan(three.Add(-time.Hour))
		if got := shown(d.plan(three.Add(early.offset)).ticks); got != "03:00/"+early.keys[0] {
			t.Errorf("%s: first %q", missed, got)
		}
		want, next := "03:00/"+late.keys[0], "03:00/"+late.keys[0]
		if missed == config.MissedSkip {
			want, next = "", next+"(1)"
		}
		if got := shown(d.plan(three.Add(7 * time.Hour)).ticks); got != want {
			t.Errorf("%s: after the outage %q, want %q", missed, got, want)
		}
		day := three.AddDate(0, 0, 1)
		if got := shown(d.plan(day.Add(early.offset)).ticks); got != "03:00/"+early.keys[0] {
			t.Errorf("%s: the next day %q: a key that missed nothing is reported as missed", missed, got)
		}
		if got := shown(d.plan(day.Add(late.offset)).ticks); got != next {
			t.Errorf("%s: the next day %q, want %q", missed, got, next)
		}
		if n := len(d.states["s"].Skipped); n != 0 {
			t.Errorf("%s: %d spans are left though all have been told", missed, n)
		}
	}
}

func TestPause(t *testing.T) {
	t.Parallel()
	for missed, want := range map[config.Missed]string{"skip": "12:10(9)", "last": "12:09(8) 12:10", "all": "12:01 12:02 12:03 12:04 12:05 12:06 12:07 12:08 12:09 12:10"} {
		d := newDesktop(t, minutely(missed))
		d.runAt("12:00")
		d.paused["minutely"] = true
		if p := d.plan(moment(t, "12:05")); len(p.ticks) > 0 || !p.wake.IsZero() {
			t.Errorf("%s: while paused: %q, wakes at %s", missed, shown(p.ticks), p.wake)
		}
		d.paused["minutely"] = false
		if got := d.runAt("12:10:30"); got != want {
			t.Errorf("%s: %q, want %q", missed, got, want)
		}
	}
}

func TestAChangedSchedule(t *testing.T) {
	t.Parallel()
	d := newDesktop(t, config.Schedule{Name: "s", Cron: "0 * * * *", Missed: config.MissedAll})
	for _, s := range []step{{"12:30", ""}, {"13:00", "13:00"}} {
		if got := d.runAt(s.now); got != s.want {
			t.Errorf("at %s: %q, want %q", s.now, got, s.want)
		}
	}
	d.setConfig(config.Schedule{Name: "s", Cron: "*/20 * * * *", Missed: config.MissedAll})
	if got := d.runAt("14:30"); got != "14:00" { // the old definition still owes its tick
		t.Errorf("at the change: %q", got)
	}
	if got := d.runAt("14:40"); got != "14:40" { // first tick of the new definition
		t.Errorf("after the change: %q", got)
	}
	if last := d.states["s"].Last; !last.Equal(moment(t, "14:40")) {
		t.Errorf("last is %s", last)
	}
}

// A controller takes over with another definition, and its clock shows an earlier time than that of its predecessor. The new
// definition begins after the ticks that are handled.
func TestAScheduleThatChangesWithAClockThatIsBehind(t *testing.T) {
	t.Parallel()
	d := newDesktop(t, config.Schedule{Name: "s", Cron: "0 * * * *"})
	d.runAt("12:30")
	if got := d.runAt("13:00"); got != "13:00" {
		t.Errorf("before the change: %q", got)
	}
	d.setConfig(config.Schedule{Name: "s", Cron: "*/20 * * * *"})
	for _, s := range []step{{"12:59:59", ""}, {"13:00:10", ""}, {"13:20", "13:20"}} {
		if got := d.runAt(s.now); got != s.want {
			t.Errorf("at %s: %q, want %q", s.now, got, s.want)
		}
	}
}

// A controller whose clock is a day ahead skips the ticks of that day. So none of them was sent, and the new definition has its
// ticks from the change on. It begins later only after ticks that were sent too early.
func TestAScheduleThatChangesAfterAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	d := newDesktop(t, config.Schedule{Name: "s", Cron: "0 * * * *"})
	steps := func(all ...step) {
		t.Helper()
		for _, s := range all {
			if got := d.runAt(s.now); got != s.want {
				t.Errorf("at %s: %q, want %q", s.now, got, s.want)
			}
		}
	}
	steps(step{"2026-06-01 12:30:00", ""}, step{"2026-06-01 13:00:00", "13:00"}, step{"2026-06-02 12:40:00", ""})
	d.setConfig(config.Schedule{Name: "s", Cron: "*/20 * * * *"})
	steps(step{"2026-06-01 13:10:00", ""}, step{"2026-06-01 13:20:00", "13:20"}, step{"2026-06-01 13:40:00", "13:40"})
	steps(step{"2026-06-01 16:00:00", "16:00(6)"})
	d.setConfig(config.Schedule{Name: "s", Cron: "*/30 * * * *"})
	steps(step{"2026-06-01 14:10:00", ""}, step{"2026-06-01 16:00:30", ""}, step{"2026-06-01 16:30:00", "16:30"})
}

func TestAChangedSpread(t *testing.T) {
	t.Parallel()
	s, early, late := spreadSchedule(t, config.MissedSkip)
	d := newDesktop(t, s)
	three := moment(t, "2026-06-02 03:00:00")
	d.plan(three.Add(-time.Hour))
	d.plan(three.Add(early.offset))
	s.Spread = 0
	d.setConfig(s)
	p := d.plan(three.Add(early.offset + time.Minute))
	if got := shown(p.ticks); got != "03:00/"+late.keys[0] {
		t.Errorf("at the change: %q, want the key that still waited", got)
	}
	if got := shown(d.plan(p.wake).ticks); got != "03:00/a 03:00/b" || !p.wake.Equal(three.AddDate(0, 0, 1)) {
		t.Errorf("at %s: %q", p.wake, got)
	}
}

func TestASpreadThatBeginsTicksFromNowOn(t *testing.T) {
	t.Parallel()
	s, early, _ := spreadSchedule(t, config.MissedAll)
	d := newDesktop(t, s)
	three := moment(t, "2026-06-02 03:00:00")
	p := d.plan(three.Add(time.Minute))
	if want := three.AddDate(0, 0, 1).Add(early.offset); !p.wake.Equal(want) {
		t.Errorf("a schedule that is new within its spread wakes at %s, want %s", p.wake, want)
	}
}

func TestAScheduleThatGoesAndComesBackIsNew(t *testing.T) {
	t.Parallel()
	d := newDesktop(t, minutely("all"))
	d.runAt("12:00")
	d.setConfig()
	if p := d.plan(moment(t, "12:01")); !slices.Equal(p.gone, []string{"minutely"}) {
		t.Errorf("gone: %v", p.gone)
	}
	d.setConfig(minutely("all"))
	if got := d.runAt("12:10"); got != "" {
		t.Errorf("%q", got)
	}
}

func TestMarksThatAreGone(t *testing.T) {
	t.Parallel()
	for missed, want := range map[config.Missed]string{"skip": "", "last": "03:00", "all": "03:00"} {
		d := newDesktop(t, config.Schedule{Name: "s", Cron: "0 3 * * *", Missed: missed})
		d.lost = true
		p := d.plan(moment(t, "2026-06-20 12:00:00"))
		if got := shown(p.ticks); got != want {
			t.Errorf("%s: %q, want %q", missed, got, want)
		}
		if forgotten := slices.Contains(p.notes, decisionNote{forgot, "s", 1}); forgotten != (want != "") {
			t.Errorf("%s: notes %v", missed, p.notes)
		}
		if got := shown(d.plan(moment(t, "2026-06-21 03:00:00")).ticks); got != "03:00" {
			t.Errorf("%s: the next day %q", missed, got)
		}
	}
	// A tick so rare that it was surely sent while there were marks.
	d := newDesktop(t, config.Schedule{Name: "s", Cron: "0 3 1 1 *", Missed: config.MissedAll})
	d.lost = true
	if got := d.runAt("2026-06-20 12:00:00"); got != "" {
		t.Errorf("%q", got)
	}
}

func TestWhatStandsOnTheStreamIsNotSentAgain(t *testing.T) {
	t.Parallel()
	d := newDesktop(t, config.Schedule{Name: "s", Cron: "* * * * *", Missed: config.MissedAll, Keys: []string{"a", "b"}})
	d.runAt("12:00")
	there := tick{Schedule: "s", Key: "a", Scheduled: moment(t, "12:01")}
	d.sent = map[string]bool{there.id(): true}
	if got := d.runAt("12:01"); got != "12:01/b" {
		t.Errorf("%q", got)
	}
	d.sent = nil
	if got := d.runAt("12:02"); got != "12:02/a 12:02/b" {
		t.Errorf("%q", got)
	}
}

func TestManyTicksAreSeveralTransactions(t *testing.T) {
	t.Parallel()
	var all []config.Schedule
	for _, name := range []string{"a", "b", "c"} {
		s := config.Schedule{Name: name, Cron: "0 * * * *"}
		for i := range 700 {
			s.Keys = append(s.Keys, fmt.Sprint("k", i))
		}
		all = append(all, s)
	}
	d := newDesktop(t, all...)
	d.runAt("12:30")
	if p := d.plan(moment(t, "13:00")); len(p.ticks) != 1400 || !p.more {
		t.Errorf("%d ticks, more: %v", len(p.ticks), p.more)
	}
	if p := d.plan(moment(t, "13:00")); len(p.ticks) != 700 || p.more {
		t.Errorf("%d ticks, more: %v", len(p.ticks), p.more)
	}
	if p := d.plan(moment(t, "13:00")); len(p.ticks) != 0 || p.more || !p.wake.Equal(moment(t, "14:00")) {
		t.Errorf("%d ticks, more: %v, wakes at %s", len(p.ticks), p.more, p.wake)
	}
}

// A year cut into random plans: each tick is sent once, and none too early.
func TestHoweverOftenOneLooks(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 7))
		s := config.Schedule{Name: "s", Cron: []string{"0 * * * *", "*/7 * * * *", "30 2 * * *", "@every 5m"}[r.IntN(4)],
			TimeZone: "Europe/Berlin", Missed: config.MissedAll, Keys: []string{"a", "b", "c"}}
		if r.IntN(2) == 0 {
			s.Spread = time.Duration(1+r.IntN(5)) * time.Hour
		}
		d := newDesktop(t, s)
		from := time.Date(2026, 3, 27, 22, 0, 0, 0, time.UTC)
		to := from.AddDate(0, 0, 4)
		got := map[string]int{}
		for now := from; ; {
			p := d.plan(now)
			for _, tick := range p.ticks {
				got[tick.Key+" "+stamp(tick.Scheduled)]++
				if tick.due.After(now) || tick.Missed > 0 {
					t.Fatalf("seed %d at %s: %+v", seed, now, tick)
				}
			}
			if !now.Before(to) {
				break
			}
			switch now = p.wake; r.IntN(3) {
			case 0:
				now = now.Add(time.Duration(r.IntN(5000)) * time.Second)
			case 1:
				now = now.Add(time.Duration(r.IntN(90)) * time.Second)
			}
			if now.After(to) {
				now = to
			}
		}
		want := 0
		for _, at := range d.table[0].seats {
			for _, scheduled := range d.table[0].timesBetween(from, to.Add(-at.offset), 1<<20) {
				for _, key := range at.keys {
					want++
					if name := key + " " + stamp(scheduled); got[name] != 1 {
						t.Fatalf("seed %d, %+v: %s was sent %d times", seed, s, name, got[name])
					}
				}
			}
		}
		if len(got) != want {
			t.Errorf("seed %d, %+v: %d ticks, want %d", seed, s, len(got), want)
		}
	}
}
