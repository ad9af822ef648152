package scheduler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/store"
)

func TestPausesGrow(t *testing.T) {
	t.Parallel()
	var l loop
	away := errors.New("redis is away")
	for i, want := range []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond} {
		if got := l.pause(away); got != want {
			t.Errorf("after failure %d it rests %s, want %s", i+1, got, want)
		}
	}
	for range 100 {
		l.pause(away)
	}
	if got := l.pause(away); got != lastPause {
		t.Errorf("after many it rests %s", got)
	}
	if got := l.pause(fmt.Errorf("read: %w", ledger.ErrCatchingUp)); got != shortestPause {
		t.Errorf("to catch up is no failure: it rests %s", got)
	}
	if got := l.pause(away); got != firstPause {
		t.Errorf("after a success it begins with %s", got)
	}
}

func TestWhenAWatcherWakes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		wake    time.Duration // from now; 0 if nothing is due
		changes time.Duration // from now
		want    time.Duration
		swept   time.Duration // from now
	}{
		{"nothing happens", 0, time.Hour, sweepEvery, 0},
		{"something is due", time.Second, time.Hour, time.Second, 0},
		{"something is due behind the next sweep", time.Minute, time.Hour, sweepEvery, 0},
		{"something was due", -time.Second, time.Hour, shortestPause, 0},
		{"a fact comes", 0, time.Second, time.Second, 0},
		{"a fact has come", 0, 0, shortestPause, 0},
		{"the clock was set back", 0, 2 * time.Hour, shortestPause + sweepEvery, time.Hour},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			l := loop{swept: began.Add(c.swept)}
			if c.wake != 0 {
				l.wake = began.Add(c.wake)
			}
			changed := make(chan struct{})
			time.AfterFunc(c.changes, func() { close(changed) })
			l.waitForWork(t.Context(), changed, shortestPause, time.Now)
			if got := time.Since(began); got != c.want {
				t.Errorf("%s: it wakes after %s, want %s", c.name, got, c.want)
			}
		})
	}
}

func TestKeptAttempts(t *testing.T) {
	t.Parallel()
	w := watcher{}
	run := *live("running", time.Time{}, tidemill.Attempt{Number: 1})
	w.updateSigns([]tidemill.Run{run}, nil, noon)
	w.updateSigns([]tidemill.Run{run, *live("committing", time.Time{}, tidemill.Attempt{Number: 1})}, nil, noon.Add(time.Second))
	if len(w.since) != 1 || w.since["live-1"] != noon {
		t.Errorf("it knows of %v", w.since)
	}
	run.Attempts = append(run.Attempts, tidemill.Attempt{Number: 2})
	w.updateSigns([]tidemill.Run{run}, nil, noon.Add(2*time.Second))
	if len(w.since) != 1 || w.since["live-2"] != noon.Add(2*time.Second) {
		t.Errorf("after the next attempt it knows of %v", w.since)
	}
}

func TestWhenAnAttemptWasHeardOf(t *testing.T) {
	t.Parallel()
	w := watcher{}
	all := []tidemill.Run{*live("running", time.Time{}, tidemill.Attempt{Number: 1})}
	at := func(seconds int) time.Time { return noon.Add(time.Duration(seconds) * time.Second) }
	for _, step := range []struct {
		name        string
		missedBeats bool
		beat        time.Time
		now, want   time.Time
	}{
		{"it is new, and was heard of before that", false, at(-3), at(0), at(0)},
		{"it beats", false, at(9), at(10), at(10)},
		{"a flush has forgotten its beat", false, time.Time{}, at(18), at(10)},
		{"it beats again", false, at(19), at(20), at(20)},
		{"it beats at a gateway whose clock is behind", false, at(-60), at(25), at(25)},
		{"it has not beaten again", false, at(-60), at(30), at(25)},
		{"it beats at a gateway whose clock is ahead", false, at(3600), at(35), at(35)},
		{"it has not beaten for long", false, at(3600), at(55), at(35)},
		{"nothing could be heard for a while", true, time.Time{}, at(60), at(60)},
		{"it is silent", false, time.Time{}, at(70), at(60)},
	} {
		beats := map[string]time.Time{}
		if !step.beat.IsZero() {
			beats["live-1"] = step.beat
		}
		w.missedBeats = w.missedBeats || step.missedBeats
		if w.updateSigns(all, beats, step.now); w.since["live-1"] != step.want {
			t.Errorf("%s: it was heard of at %s, want %s", step.name, w.since["live-1"], step.want)
		}
	}
}

// deadline is a context whose deadline passes when a plan is made.
type deadline struct {
	context.Context
	passed chan struct{}
}

func (d *deadline) Done() <-chan struct{} { return d.passed }

func (d *deadline) Err() error {
	select {
	case <-d.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// The plan of one key meets an error again and again, for example because its partition of Kafka has no leader. The other
// keys of its recipe start.
func TestAKeyInTroubleDoesNotKeepOthersWaiting(t *testing.T) {
	r := plain("intent")
	r.Inputs = []config.InputFrom{{Name: "history", Outcomes: "bots", Last: time.Hour}}
	w := newWorld(t, r)
	w.change(func(c *config.Config) { c.Scorers = []config.Scorer{{Name: "bots"}} })
	f := w.foreman(func(o *Options) {
		o.Outcomes = func(_ context.Context, _ config.Scorer, key string, _ time.Duration) (tidemill.Input, error) {
			if key == "bad" {
				return tidemill.Input{}, errors.New("its partition has no leader")
			}
			return tidemill.Input{Outcomes: "bots"}, nil
		}
	})
	w.watch(f)
	bad := w.ask(f, wish("intent", "bad", "1"))
	w.begun(f, wish("intent", "good", "2"))
	w.begun(f, wish("intent", "better", "3"))
	err := f.troubles.err(f.now())
	if err == nil || !strings.Contains(err.Error(), "begin run "+bad.Run+" of recipe intent: make the input history: its partition has no leader") {
		t.Errorf("the status says %v", err)
	}
}

// Watch takes the time that a plan needs, because an input may have the outcomes of months. Meanwhile other runs of the
// recipe start, no other call plans the run, and the round ends.
func TestALongPlanDoesNotKeepOthersWaiting(t *testing.T) {
	r := plain("intent")
	r.Inputs = []config.InputFrom{{Name: "history", Outcomes: "bots", Last: time.Hour}}
	w := newWorld(t, r)
	w.change(func(c *config.Config) { c.Scorers = []config.Scorer{{Name: "bots"}} })
	planning, ready := make(chan time.Duration, 10), make(chan struct{})
	f := w.foreman(func(o *Options) {
		o.Outcomes = func(ctx context.Context, _ config.Scorer, key string, _ time.Duration) (tidemill.Input, error) {
			if short, ok := ctx.(*deadline); ok {
				close(short.passed)
			} else if key == "busy" {
				by, _ := ctx.Deadline()
				planning <- time.Until(by)
				select {
				case <-ready:
				case <-ctx.Done():
				}
			}
			return tidemill.Input{Outcomes: "bots"}, ctx.Err()
		}
	})
	busy := w.ask(f.withoutLauncher(), wish("intent", "busy", "1"))
	slot := ledger.Slot{Pool: "default", Recipe: "intent", Key: "busy", Run: busy.Run}
	isLeft := func(ctx context.Context, patient bool) {
		t.Helper()
		if begun, err := f.begin(ctx, slot, patient); begun || err != nil || len(planning) > 0 {
			t.Errorf("it is planned: %t, %v", begun, err)
		}
	}
	isLeft(&deadline{w.ctx(), make(chan struct{})}, false) // the plan takes too long for a request
	isLeft(w.ctx(), false)
	if err := f.troubles.err(f.now()); err != nil {
		t.Errorf("the recipe is left out: %v", err)
	}
	w.watch(f)
	if left := <-planning; left <= steadyFor {
		t.Fatalf("the plan may take %v", left)
	}
	isLeft(w.ctx(), true) // this process plans it
	w.begun(f, wish("intent", "other", "2"))
	close(ready)
	w.waitUntil("the run is launched", func() bool { return len(w.launch.of(busy.Run)) == 1 })
	w.run(f, busy.Run)
}

// cutOff makes a commit whose announcement was cut off by a crash.
func (w *world) cutOff(text string) string {
	w.Helper()
	c, err := w.store.Commit(w.ctx(), store.CommitRequest{CommitAsked: api.CommitAsked{Dataset: "d", Branch: "main"}, Time: time.Now(),
		Announce: func(context.Context, api.Commit) error { return errAway }}, []api.Change{{File: w.file("a.csv", text)}})
	if !errors.Is(err, errAway) || c.ID == "" {
		w.Fatalf("the commit is %+v, %v", c, err)
	}
	return "d@" + c.ID
}

var errAway = errors.New("it does not answer")

// The announcement of a commit that was cut off has no end, for example because the store does not answer. Runs start meanwhile.
func TestARecoveryWithoutEndHoldsNoStart(t *testing.T) {
	w := newWorld(t, plain("intent"))
	commit, answered := w.cutOff("1"), make(chan struct{})
	answer := sync.OnceFunc(func() { close(answered) })
	defer answer()
	f := w.foreman(func(o *Options) {
		o.Announce = func(ctx context.Context, c api.Commit) error {
			<-answered
			return w.announce(ctx, c)
		}
	})
	a := w.ask(f.withoutLauncher(), wish("intent", "k", "1"))
	w.watch(f)
	w.waitUntil("the run starts", func() bool { return len(w.launch.of(a.Run)) == 1 })
	answer()
	w.waitUntil("the commit is announced", func() bool { return w.announcements()[commit] == 1 })
}

// A recovery that fails is reported until another one succeeds. The next one is a minute later.
func TestARecoveryIsTriedAgain(t *testing.T) {
	w := newWorld(t)
	commit, tries := w.cutOff("1"), 0
	f := w.foreman(func(o *Options) {
		o.Announce = func(ctx context.Context, c api.Commit) error {
			if tries++; tries == 1 {
				return errAway
			}
			return w.announce(ctx, c)
		}
	})
	watching, began := &watcher{Foreman: f}, time.Now()
	var l loop
	look := func(after time.Duration, fails bool, want int) {
		t.Helper()
		err := watching.recover(w.ctx(), &l, began.Add(after))
		watching.starting.Wait()
		if errors.Is(err, errAway) != fails || tries != want {
			t.Errorf("after %s and %d tries, its error is %v", after, tries, err)
		}
	}
	look(0, false, 1)
	look(sweepEvery, true, 2)
	look(2*sweepEvery, false, 2)
	again := w.cutOff("2")
	look(recoverEvery, false, 2)
	look(recoverEvery+2*sweepEvery, false, 3)
	if got := w.announcements(); got[commit] != 1 || got[again] != 1 {
		t.Errorf("announced is %v", got)
	}
}

// The same errors have the same text in any order, because a changed text is logged. Thousands of runs may have an error.
func TestManyFaultsAreReportedShortly(t *testing.T) {
	var one, other faults
	const many = 1000
	for i := range many {
		one.add(fmt.Errorf("run %d: %w", i, store.ErrNotFound))
		other.add(fmt.Errorf("run %d: %w", many-1-i, store.ErrNotFound))
		other.add(nil)
	}
	text := one.err().Error()
	if text != other.err().Error() || len(text) > 1000 || !strings.HasSuffix(text, "and 990 more") || !errors.Is(one.err(), store.ErrNotFound) {
		t.Errorf("they are reported as %d and %d bytes, the first as %.1000s", len(text), len(other.err().Error()), text)
	}
	if new(faults).err() != nil {
		t.Error("no fault is an error")
	}
}
