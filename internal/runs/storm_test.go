package runs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/ledger"
)

// stubborn asks until it is answered, as a dispatcher does.
func (w *world) stubborn(f *Foreman, r Request) Answer {
	for {
		a, err := f.Request(w.ctx(), r)
		if err == nil {
			return a
		}
		if !errors.Is(err, ledger.ErrCatchingUp) {
			w.Errorf("ask: %v", err)
			return a
		}
		_ = f.ledger.CaughtUp(w.ctx())
	}
}

// agent tells of an attempt's end until it is heard, as agents do.
func (w *world) agent(f *Foreman, a Attempt, d tidemill.RunFinished) {
	for {
		run, err := f.ledger.Run(w.ctx(), a.Run)
		if err == nil {
			if at := run.Attempt(); at == nil || !w.tokens.Counts(a.Token, a.Run, *at) {
				return // superseded, or said before
			}
			_, err = f.Finish(w.ctx(), run, a.Number, d)
		}
		if err == nil {
			return
		}
		if !errors.Is(err, ledger.ErrCatchingUp) && !errors.Is(err, ledger.ErrUnknown) {
			w.Errorf("finish: %v", err)
			return
		}
		_ = f.ledger.CaughtUp(w.ctx())
	}
}

// Three foremen work on one log, and Redis is flushed at any moment: each attempt
// is launched once, no run lives twice at a time, and each ends.
func TestForemenAndFlushes(t *testing.T) {
	w := newWorld(t, plain("intent"), plain("churn"))
	foremen := []*Foreman{w.foreman(nil), w.foreman(nil), w.foreman(nil)}
	var alive sync.Map // of each recipe and key
	w.launch.does = func(a Attempt) {
		if _, two := alive.LoadOrStore(a.Recipe+"/"+a.Key, a.Name); two {
			t.Errorf("two attempts of %s/%s at once: %s", a.Recipe, a.Key, a.Name)
		}
		alive.Delete(a.Recipe + "/" + a.Key)
		d := succeeded
		if a.Recipe == "churn" && a.Number == 1 {
			d = broken
		}
		w.agent(foremen[rand.IntN(3)], a, d)
	}
	for _, f := range foremen {
		w.watch(f)
	}
	flushing, stop := context.WithCancel(w.ctx())
	var flushes sync.WaitGroup
	flushes.Go(func() {
		for sleep(flushing, nil, time.Duration(rand.IntN(80))*time.Millisecond) {
			if err := w.redis.FlushAll(flushing).Err(); err != nil && flushing.Err() == nil {
				t.Errorf("flush: %v", err)
			}
		}
	})
	const keys, wishes = 20, 5
	var asking sync.WaitGroup
	var answers sync.Map
	for k := range keys {
		for _, recipe := range []string{"intent", "churn"} {
			asking.Go(func() {
				for n := range wishes {
					r := wish(recipe, fmt.Sprint("k", k), fmt.Sprint(n))
					a, again := w.stubborn(foremen[n%3], r), w.stubborn(foremen[(n+1)%3], r)
					if a.Run != again.Run || again.Result != tidemill.Known {
						t.Errorf("asked twice for the same: %+v, then %+v", a, again)
					}
					answers.Store(a.Run, recipe)
				}
			})
		}
	}
	asking.Wait()
	stop()
	flushes.Wait()
	answers.Range(func(id, recipe any) bool {
		run := w.until(foremen[0], id.(string), tidemill.RunSucceeded)
		if all := w.launch.of(run.ID); len(all) != len(run.Attempts) {
			t.Errorf("of %d attempts of run %s %d were launched", len(run.Attempts), run.ID, len(all))
		}
		for _, a := range run.Attempts {
			if a.Outcome == tidemill.OutcomeLost {
				t.Errorf("an attempt was lost: %s", a.Reason)
			}
		}
		return true
	})
	names := map[string]bool{}
	for _, a := range w.launch.launched() {
		if names[a.Name] {
			t.Errorf("attempt %s was launched twice", a.Name)
		}
		names[a.Name] = true
	}
}

// A thousand events come for one key while each run takes as long as a hundred of
// them: a dozen runs at most, and the last one has seen the last event.
func TestManyEventsForOneKey(t *testing.T) {
	const events, during = 1000, 100
	w := newWorld(t, plain("intent"))
	f := w.foreman(nil)
	w.watch(f)
	var asked atomic.Int64
	w.launch.does = func(a Attempt) {
		until := min(asked.Load()+during, events)
		w.soon("a hundred events more", func() bool { return asked.Load() >= until })
		w.agent(f, a, succeeded)
	}
	seen := map[string]bool{}
	last := Answer{}
	for n := range events {
		last = w.ask(f, wish("intent", "bot-42", fmt.Sprint(n)))
		seen[last.Run] = true
		asked.Add(1)
	}
	run := w.until(f, last.Run, tidemill.RunSucceeded)
	if run.Newest.ID != fmt.Sprint(events-1) {
		t.Errorf("the last run is %+v", run)
	}
	m, err := f.ledger.Making(w.ctx(), "intent", "bot-42")
	w.must(err)
	if n := len(w.launch.launched()); n > 12 || n != len(seen) || m.Live != nil || m.Waiting != nil {
		t.Errorf("%d runs were launched and %d answered; the making is %+v", n, len(seen), m)
	}
}
