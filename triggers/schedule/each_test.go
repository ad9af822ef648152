package schedule

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev/config"
)

// eachSchedule returns a schedule with `each: key`.
func eachSchedule(cron string, missed config.Missed, spread time.Duration) config.Schedule {
	return config.Schedule{Name: "s", Cron: cron, TimeZone: "UTC", Missed: missed, Each: true, Spread: spread}
}

func TestEachKey(t *testing.T) {
	t.Parallel()
	keys := []string{"b", "a", "b"}
	d := newDesktop(t, eachSchedule("0 * * * *", config.MissedAll, 0))
	d.keys = func() []string { return keys }
	ask := func(now, want string, asked int) {
		t.Helper()
		if got := shown(d.runAll(moment(t, now))); got != want || d.asked != asked {
			t.Errorf("at %s: %q after asking %d times, want %q, %d", now, got, d.asked, want, asked)
		}
	}
	ask("12:30", "", 0)
	ask("12:50", "", 0)
	ask("13:00", "13:00/a 13:00/b", 1)
	ask("13:00:20", "", 1)
	keys = []string{"a", "b", "c"} // c is added between two ticks
	ask("13:30", "", 1)
	ask("14:00", "14:00/a 14:00/b 14:00/c", 2)
	keys = nil
	ask("15:00", "", 3)
	keys = []string{"d"}
	ask("15:30", "", 3)
	ask("16:00:10", "16:00/d", 4)
	if p := d.plan(moment(t, "16:10")); !p.wake.Equal(moment(t, "17:00")) || len(d.rolls) != 0 {
		t.Errorf("wakes at %s, and holds %d rolls", p.wake, len(d.rolls))
	}
	d.setConfig()
	if p := d.plan(moment(t, "16:20")); !slices.Equal(p.gone, []string{"s"}) {
		t.Errorf("gone: %q", p.gone)
	}
}

// A schedule whose keys are unknown sends nothing and forgets nothing, and does not delay
// the others.
func TestKeysThatAreNotKnown(t *testing.T) {
	t.Parallel()
	d := newDesktop(t, eachSchedule("0 * * * *", config.MissedSkip, 0), config.Schedule{Name: "other", Cron: "0 * * * *"})
	d.plan(moment(t, "12:30"))
	for _, now := range []string{"13:00", "13:00:10", "13:00:50"} {
		p := d.plan(moment(t, now))
		if want := map[bool]string{true: "13:00"}[now == "13:00"]; shown(p.ticks) != want || len(p.asks) != 1 || p.asks[0].entry.Name != "s" || p.more {
			t.Errorf("at %s %q is sent, and asked %d questions", now, shown(p.ticks), len(p.asks))
		}
	}
	d.keys = func() []string { return []string{"a"} }
	if got := shown(d.runAll(moment(t, "13:00:59"))); got != "13:00/a" {
		t.Errorf("then %q", got)
	}
}

// The larger tests here are not parallel: competing controllers next to them need the
// time.

// The keys are requested once for each scheduled time, however long its spread. Meanwhile
// the waiting ticks of earlier times are still sent.
func TestEachKeyInASpread(t *testing.T) {
	d := newDesktop(t, eachSchedule("0 * * * *", config.MissedSkip, 90*time.Minute))
	d.keys = func() []string { return keysOf(500) }
	got := map[string]time.Time{}
	to := moment(t, "18:30")
	for now := moment(t, "12:30"); now.Before(to); {
		p := d.plan(now)
		for _, tick := range p.ticks {
			name := stamp(tick.Scheduled) + tick.Key
			if !got[name].IsZero() || !tick.due.Equal(now) {
				t.Fatalf("at %s: %+v, which was sent at %s", now, tick, got[name])
			}
			got[name] = now
		}
		if len(p.asks) > 0 {
			continue // the keys arrive at once
		}
		now = p.wake
	}
	want := 0
	for _, key := range keysOf(500) {
		for at := moment(t, "13:00"); at.Add(offset("s", key, 90*time.Minute)).Before(to); at = at.Add(time.Hour) {
			want++
		}
	}
	if len(got) != want || d.asked != 6 {
		t.Errorf("%d ticks, want %d, after asking %d times", len(got), want, d.asked)
	}
}

// Many random plans and takeovers within a pass, with changing keys: no tick is sent
// twice, and a key that was always there gets all its ticks.
func TestEachKeyHoweverOftenOneLooks(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 11))
		s := eachSchedule([]string{"0 * * * *", "*/7 * * * *", "@every 5m"}[r.IntN(3)], config.MissedAll, 0)
		if r.IntN(2) == 0 {
			s.Spread = time.Duration(1+r.IntN(100)) * time.Minute
		}
		always := keysOf(3)
		d := newDesktop(t, s)
		if s.Cron == "0 * * * *" { // of many keys only the last missed tick is sent
			d.most = r.IntN(4)
		}
		d.keys = func() []string {
			all := slices.Clone(always)
			for i := range 4 {
				if r.IntN(2) == 0 {
					all = append(all, fmt.Sprint("some-", i))
				}
			}
			return all
		}
		from := moment(t, "02:30")
		to := from.Add(8 * time.Hour)
		got := map[string]int{}
		for now := from; ; {
			for _, tick := range d.runAll(now) {
				got[tick.Key+" "+stamp(tick.Scheduled)]++
				if tick.due.After(now) {
					t.Fatalf("seed %d at %s: %+v", seed, now, tick)
				}
			}
			if !now.Before(to) {
				break
			}
			now = now.Add(time.Duration(1+r.IntN(900)) * time.Second)
			if r.IntN(4) == 0 {
				d.rolls = nil // simulates another controller
			}
			if now.After(to) {
				now = to
			}
		}
		e := d.table[0]
		for _, key := range always {
			for _, scheduled := range e.timesBetween(from, to.Add(-offset("s", key, s.Spread)), 1<<20) {
				if name := key + " " + stamp(scheduled); got[name] != 1 {
					t.Fatalf("seed %d, %+v: %s was sent %d times", seed, s, name, got[name])
				}
			}
		}
		for name, n := range got {
			if n != 1 {
				t.Errorf("seed %d, %+v: %s was sent %d times", seed, s, name, n)
			}
		}
	}
}

// Another controller ends a pass with other keys: no tick is sent twice, and a key that
// has gone gets none.
func TestAPassThatAnotherControllerEnds(t *testing.T) {
	keys := keysOf(2*part + part/2)
	d := newDesktop(t, eachSchedule("0 * * * *", config.MissedSkip, 0))
	d.keys = func() []string { return keys }
	d.plan(moment(t, "12:30"))
	d.plan(moment(t, "13:00"))
	first := d.plan(moment(t, "13:00"))
	if len(first.ticks) != part || !first.more || d.states["s"].Pass == nil {
		t.Fatalf("%d ticks, more %v, %+v", len(first.ticks), first.more, d.states["s"])
	}
	slices.Sort(keys)
	keys = append([]string{"0-comes-late"}, keys[:2*part]...) // this key sorts before the pass's position, and some keys are gone
	d.rolls = nil
	rest := d.runAll(moment(t, "13:20"))
	count := map[string]int{}
	for _, tick := range append(first.ticks, rest...) {
		count[tick.Key]++
	}
	if len(rest) != part || len(count) != 2*part || count["0-comes-late"] != 0 {
		t.Errorf("%d more ticks, of %d keys in all", len(rest), len(count))
	}
	if st := d.states["s"]; st.Pass != nil || !st.Through.Equal(moment(t, "13:00")) || len(st.Skipped) > 0 {
		t.Errorf("and then %+v", st)
	}
}

// A schedule that is changed within a pass ends the pass with its old definition.
func TestAScheduleThatChangesWithinAPass(t *testing.T) {
	for _, back := range []bool{false, true} {
		s := eachSchedule("0 * * * *", config.MissedAll, time.Hour)
		d := newDesktop(t, s)
		d.keys = func() []string { return keysOf(3 * part) }
		d.plan(moment(t, "12:30"))
		got := d.runAll(moment(t, "13:20"))
		d.setConfig(eachSchedule("30 * * * *", config.MissedSkip, 0))
		d.rolls = nil
		d.plan(moment(t, "13:20"))
		p := d.plan(moment(t, "13:20")) // ticks that wait in the spread are sent at once
		got = append(got, p.ticks...)
		if len(p.ticks) != part || !p.more {
			t.Fatalf("%d ticks at the change, more %v", len(p.ticks), p.more)
		}
		if back {
			d.setConfig(s)
		}
		got = append(got, d.runAll(moment(t, "13:25"))...)
		want := 3 * part
		if back { // the schedule counts as new, and its first time is 14:00
			got = append(got, d.runAll(moment(t, "13:59"))...)
		} else {
			got = append(got, d.runAll(moment(t, "13:30"))...)
			want *= 2
		}
		count := map[string]int{}
		for _, tick := range got {
			count[tick.id()]++
		}
		if len(count) != want || len(got) != want {
			t.Errorf("back %v: %d ticks, %d different, want %d", back, len(got), len(count), want)
		}
	}
}

// keySource returns keys, fails or hangs.
type keySource struct {
	mu    sync.Mutex
	keys  []string
	err   error
	hangs chan struct{}
	asked []string
}

func (k *keySource) list(ctx context.Context, schedule string, fn func(string) bool) error {
	k.mu.Lock()
	keys, err, hangs := slices.Clone(k.keys), k.err, k.hangs
	k.asked = append(k.asked, time.Now().UTC().Format("15:04:05"))
	k.mu.Unlock()
	if hangs != nil {
		select {
		case <-hangs:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	for _, key := range keys {
		fn(key)
	}
	return err
}

func (k *keySource) is(err error, hangs chan struct{}, keys ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err, k.hangs, k.keys = err, hangs, keys
}

func (k *keySource) requests() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := strings.Join(k.asked, " ")
	k.asked = nil
	return all
}

// keyed shows and forgets the sent ticks with their keys.
func (m *memory) keyed() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []string
	for _, t := range m.ticks {
		all = append(all, t.Scheduled.Format("15:04")+"/"+t.Key+"@"+t.at.UTC().Format("15:04:05"))
	}
	m.ticks = nil
	return strings.Join(all, " ")
}

// If the keys of a schedule fail or take long, only that schedule is delayed.
func TestKeysThatFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, who := &memory{t: t}, &keySource{}
		k := m.controller(Options{Keys: who.list}, eachSchedule("*/10 * * * *", config.MissedSkip, 0),
			config.Schedule{Name: "other", Cron: "*/10 * * * *", TimeZone: "UTC", Missed: config.MissedSkip})
		defer shut(t, k)
		see := func(sent, asked string, delayed bool) {
			t.Helper()
			synctest.Wait()
			if got, requests := m.keyed(), who.requests(); got != sent || requests != asked {
				t.Errorf("at %s %q was sent and asked at %q, want %q and %q", time.Now().UTC().Format("15:04:05"), got, requests, sent, asked)
			}
			if s := k.Status(); !s.Active || (s.Delayed["s"] != nil) != delayed {
				t.Errorf("at %s: %+v", time.Now().UTC().Format("15:04:05"), s)
			}
		}
		who.is(nil, nil, "a", "b")
		sleepUntil(t, "2000-01-01T00:10:00Z")
		see("00:10/@00:10:00 00:10/a@00:10:00 00:10/b@00:10:00", "00:10:00", false)
		who.is(errors.New("Redis is away"), nil)
		sleepUntil(t, "2000-01-01T00:20:10Z")
		see("00:20/@00:20:00", "00:20:00 00:20:01 00:20:03 00:20:07", true)
		who.is(nil, nil, "a")
		sleepUntil(t, "2000-01-01T00:20:40Z")
		see("00:20/a@00:20:15", "00:20:15", false)
		hangs := make(chan struct{})
		who.is(nil, hangs, "a", "c")
		sleepUntil(t, "2000-01-01T00:30:20Z")
		see("00:30/@00:30:00", "00:30:00", false)
		close(hangs)
		see("00:30/a@00:30:20 00:30/c@00:30:20", "", false)
		who.is(nil, make(chan struct{})) // the request never returns
		sleepUntil(t, "2000-01-01T00:41:00Z")
		see("00:40/@00:40:00", "00:40:00", true)
	})
}

// sentWithMissed shows and forgets the sent ticks with their keys and the number of missed ticks before.
func (m *memory) sentWithMissed() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []string
	for _, t := range m.ticks {
		all = append(all, shown([]tick{t.tick})+"@"+t.at.UTC().Format("15:04:05"))
	}
	m.ticks = nil
	return strings.Join(all, " ")
}

// A tick that is due while its keys cannot be read is sent once they can, however long that takes. If several are due
// meanwhile, the newest is sent. A tick that was too late before, because no controller ran, is not.
func TestATickWaitsForItsKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, who := &memory{t: t}, &keySource{}
		away := errors.New("Redis is away")
		hourly := eachSchedule("0 * * * *", config.MissedSkip, 0)
		see := func(at, want string) {
			t.Helper()
			sleepUntil(t, at)
			if got := m.sentWithMissed(); got != want {
				t.Errorf("at %s %q was sent, want %q", at, got, want)
			}
		}
		who.is(away, nil)
		k := m.controller(Options{Keys: who.list}, hourly)
		see("2000-01-01T01:05:00Z", "")
		who.is(nil, nil, "a", "b")
		see("2000-01-01T02:30:00Z", "01:00/a@01:05:03 01:00/b@01:05:03 02:00/a@02:00:00 02:00/b@02:00:00")
		who.is(away, nil)
		see("2000-01-01T05:30:00Z", "")
		who.is(nil, nil, "a")
		see("2000-01-01T06:10:00Z", "05:00/a(2)@05:30:07 06:00/a@06:00:00")
		shut(t, k)
		sleepUntil(t, "2000-01-01T07:30:00Z")
		who.is(away, nil)
		k = m.controller(Options{Keys: who.list}, hourly)
		defer shut(t, k)
		see("2000-01-01T07:40:00Z", "")
		who.is(nil, nil, "a")
		see("2000-01-01T08:10:00Z", "08:00/a(1)@08:00:00")
	})
}

// The same holds for a spread, and for more ticks than one transaction or one list has.
func TestManyTicksWaitForTheirKeys(t *testing.T) {
	for _, most := range []int{maxRoll, part} {
		synctest.Test(t, func(t *testing.T) {
			m, who := &memory{t: t}, &keySource{}
			keys := keysOf(3 * part)
			who.is(errors.New("Redis is away"), nil)
			k := m.controller(Options{Keys: who.list, most: most}, eachSchedule("0 * * * *", config.MissedSkip, 10*time.Minute))
			defer shut(t, k)
			sleepUntil(t, "2000-01-01T01:05:00Z")
			who.is(nil, nil, keys...)
			sleepUntil(t, "2000-01-01T01:30:00Z")
			count := map[string]int{}
			m.mu.Lock()
			defer m.mu.Unlock()
			for _, tick := range m.ticks {
				count[tick.Key]++
			}
			if len(count) != len(keys) || len(m.ticks) != len(keys) {
				t.Errorf("lists of %d keys: %d ticks for %d keys, want %d", most, len(m.ticks), len(count), len(keys))
			}
		})
	}
}

// A schedule that needs no keys any more is not reported as delayed: it has keys of its own, is paused or is gone.
func TestKeysThatAreNoLongerNeeded(t *testing.T) {
	fixed := eachSchedule("*/10 * * * *", config.MissedSkip, 0)
	fixed.Each, fixed.Keys = false, []string{"a"}
	for name, change := range map[string]func(k *Controller, paused *atomic.Bool) error{
		"keys of its own": func(k *Controller, _ *atomic.Bool) error {
			return k.Apply(&config.Config{Schedules: []config.Schedule{fixed}})
		},
		"paused": func(_ *Controller, paused *atomic.Bool) error { paused.Store(true); return nil },
		"gone":   func(k *Controller, _ *atomic.Bool) error { return k.Apply(&config.Config{}) },
	} {
		for _, hangs := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, a request hangs %v", name, hangs), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m, who, paused := &memory{t: t}, &keySource{}, atomic.Bool{}
					k := m.controller(Options{Keys: who.list, Paused: func(string) bool { return paused.Load() }}, eachSchedule("*/10 * * * *", config.MissedSkip, 0))
					defer shut(t, k)
					who.is(errors.New("Redis is away"), nil)
					sleepUntil(t, "2000-01-01T00:10:05Z")
					if hangs {
						who.is(nil, make(chan struct{}))
						sleepUntil(t, "2000-01-01T00:10:10Z")
					}
					if len(k.Status().Delayed) != 1 {
						t.Fatalf("it is not delayed: %+v", k.Status())
					}
					if err := change(k, &paused); err != nil {
						t.Fatal(err)
					}
					sleepUntil(t, "2000-01-01T00:12:00Z")
					if s := k.Status(); len(s.Delayed) > 0 {
						t.Errorf("%+v", s)
					}
				})
			})
		}
	}
}

func TestNobodyKnowsKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{t: t}
		k := m.controller(Options{}, eachSchedule("* * * * *", config.MissedAll, 0))
		defer shut(t, k)
		sleepUntil(t, "2000-01-01T01:00:00Z")
		if s := k.Status(); m.keyed() != "" || len(s.Delayed) > 0 {
			t.Errorf("%+v", s)
		}
	})
}

// listing returns a source of keys.
func listing(keys ...string) func(context.Context, string, func(string) bool) error {
	return func(_ context.Context, _ string, fn func(string) bool) error {
		for _, key := range keys {
			fn(key)
		}
		return nil
	}
}

// A schedule with more keys than a list may have sends its ticks by several lists, without a tick too
// many or too few, and skips late ones of all keys together.
func TestMoreKeysThanAListHas(t *testing.T) {
	t.Parallel()
	for _, spread := range []time.Duration{0, 40 * time.Minute} {
		keys := keysOf(50)
		d := newDesktop(t, eachSchedule("0 * * * *", config.MissedSkip, spread))
		d.most = 7
		d.keys = func() []string { return append(slices.Clone(keys), keys...) }
		d.plan(moment(t, "12:30"))
		count, missed := map[string]int{}, map[int]int{}
		run := func(now time.Time) {
			for _, tick := range d.runAll(now) {
				count[tick.id()]++
				missed[tick.Missed]++
			}
			if r := d.rolls["s"]; r != nil && (len(r.keys) > d.most || r.piece == nil) {
				t.Fatalf("at %v a list has %d keys", now, len(r.keys))
			}
		}
		for now := moment(t, "12:45"); now.Before(moment(t, "13:50")); now = now.Add(30 * time.Second) {
			run(now)
		}
		if len(count) != 50 || d.states["s"].Pass != nil || len(d.states["s"].Skipped) > 0 {
			t.Errorf("spread %v: %d keys ticked, %+v", spread, len(count), d.states["s"])
		}
		run(moment(t, "14:50")) // all ticks of 14:00 are too late
		if len(count) != 50 || len(d.states["s"].Skipped) != 1 {
			t.Errorf("spread %v: with those that are too late %d ticked, %+v", spread, len(count), d.states["s"])
		}
		for now := moment(t, "15:00"); now.Before(moment(t, "15:50")); now = now.Add(30 * time.Second) {
			run(now)
		}
		if len(count) != 100 || missed[0] != 50 || missed[1] != 50 {
			t.Errorf("spread %v: %d ticks, by the missed ones before %v", spread, len(count), missed)
		}
		for id, n := range count {
			if n != 1 {
				t.Errorf("spread %v: tick %s was sent %d times", spread, id, n)
			}
		}
		if p := d.plan(moment(t, "15:55")); len(p.asks) > 0 || len(d.rolls) > 0 || !p.wake.Equal(moment(t, "16:00")) {
			t.Errorf("spread %v: then %d lists are kept, and it wakes at %v", spread, len(d.rolls), p.wake)
		}
	}
}

// A schedule with more keys than a list may have, that is changed while ticks wait in its spread,
// sends all of them at once.
func TestManyKeysOfAScheduleThatChanges(t *testing.T) {
	t.Parallel()
	keys := keysOf(50)
	d := newDesktop(t, eachSchedule("0 * * * *", config.MissedSkip, 40*time.Minute))
	d.most = 7
	d.keys = func() []string { return keys }
	d.plan(moment(t, "12:30"))
	count := map[string]int{}
	run := func(now string) {
		for _, tick := range d.runAll(moment(t, now)) {
			count[tick.id()]++
		}
	}
	run("13:00:30")
	run("13:01:20")
	early := len(count)
	d.setConfig(eachSchedule("30 * * * *", config.MissedSkip, 0))
	run("13:01:30")
	if early >= 50 || len(count) != 50 {
		t.Errorf("%d ticks were sent before the change, and %d in all", early, len(count))
	}
	run("13:30")
	if len(count) != 100 {
		t.Errorf("after the change there were %d ticks", len(count))
	}
}

// A schedule with more keys than the controller keeps ticks for all of them, in passes.
func TestMoreKeysThanAControllerKeeps(t *testing.T) {
	t.Parallel()
	keys := make([]string, 100_000)
	want := 0
	for i := range keys {
		keys[i] = strconv.Itoa(i)
		if offset("s", keys[i], 24*time.Hour) <= time.Minute {
			want++
		}
	}
	synctest.Test(t, func(t *testing.T) {
		m := &memory{t: t}
		k := m.controller(Options{Keys: listing(keys...), most: 50}, eachSchedule("1 0 * * *", config.MissedSkip, 24*time.Hour))
		defer shut(t, k)
		sleepUntil(t, "2000-01-01T00:02:20Z")
		count := map[string]int{}
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, tick := range m.ticks {
			if count[tick.Key]++; tick.at.Sub(tick.due) > pieceEvery {
				t.Errorf("the tick of %s is sent at %v, and is due at %v", tick.Key, tick.at, tick.due)
			}
		}
		if err := k.Status().Delayed["s"]; err != nil || len(count) < want || len(m.ticks) != len(count) {
			t.Errorf("%d keys of %d have %d ticks: %v", len(count), want, len(m.ticks), err)
		}
	})
}

// Competing controllers get different keys: every common key ticks once a second, and no
// tick is sent twice.
func TestControllersThatGetOtherKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	both := keysOf(20)
	keysWith := func(own string) func(context.Context, string, func(string) bool) error {
		return listing(append(slices.Clone(both), own)...)
	}
	s := eachSchedule("* * * * * *", config.MissedAll, 0)
	a := w.controller(Options{Keys: keysWith("a")}, s)
	b := w.controller(Options{Keys: keysWith("b")}, s)
	w.poll("there are ticks of both", func() bool {
		of := map[string]bool{}
		for name := range w.firings() {
			of[name[21:]] = true
		}
		return of["a"] && of["b"]
	})
	w.close(a)
	w.close(b)
	for name, n := range w.firings() {
		if n != 1 {
			t.Errorf("%s is there %d times", name, n)
		}
	}
	w.wholeOf(func(key string) bool { return key != "a" && key != "b" }, both...)
}
