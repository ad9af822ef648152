package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker/retry"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
)

func TestTroublesPass(t *testing.T) {
	t.Parallel()
	var s troubles
	away := errors.New("the store is away")
	a, b := &tidemill.Run{ID: "1", Recipe: "a", Asking: noon}, &tidemill.Run{ID: "2", Recipe: "a", Asking: noon}
	if s.aside("a", noon) || s.err(noon) != nil {
		t.Error("there is trouble before any")
	}
	if !s.add(a, away, noon) || s.add(b, away, noon) || s.aside("a", noon) {
		t.Error("two runs in trouble leave their recipe out, or the second one is new")
	}
	s.add(a, away, noon)
	for _, c := range []struct {
		after       time.Duration
		aside, told bool
	}{{0, true, true}, {asideFor - 1, true, true}, {asideFor, false, true}, {2 * asideFor, false, true}, {2*asideFor + 1, false, false}} {
		if at := noon.Add(c.after); s.aside("a", at) != c.aside || (s.err(at) != nil) != c.told || s.aside("b", at) {
			t.Errorf("after %s: aside %t, told %v", c.after, s.aside("a", at), s.err(at))
		}
	}
	for range mostTroubles {
		s.add(a, away, noon)
		s.notePlanned(b)
	}
	if err := s.err(noon); !errors.Is(err, away) || !strings.Contains(err.Error(), "run 1 of recipe a") || s.aside("a", noon) {
		t.Errorf("beside runs that begin, it is told as %v", err)
	}
	if s.notePlanned(a); s.err(noon) != nil {
		t.Error("what is over goes on")
	}
	hour := noon.Add(time.Hour)
	if got := asideUntil(a, hour); !got.Equal(hour.Add(asideMost)) {
		t.Errorf("a run that waits for an hour is tried again at %v", got)
	}
}

func TestCrowds(t *testing.T) {
	t.Parallel()
	var c waitingRecipes
	c.note("a", "gpu", noon)
	c.note("b", "cpu", noon)
	if !c.at("a", noon) || !c.at("b", noon) || c.at("c", noon) || c.at("a", noon.Add(crowdedFor)) {
		t.Errorf("the crowds are %v", c.of)
	}
	if c.noteEmpty("gpu"); c.at("a", noon) || !c.at("b", noon) {
		t.Errorf("after a slot became free the crowds are %v", c.of)
	}
}

// If one recipe's data cannot be read for now, the fault is reported, and the other recipes of the
// pool go on.
func TestATroubleIsInNobodysWay(t *testing.T) {
	r := plain("blocked")
	r.Inputs = []config.InputFrom{{Name: "examples", Dataset: "bots/{key}", Branch: "main"}}
	r.Run.Priority = 100
	w := newWorld(t, r, plain("intent"))
	w.putFile("bots/k", "a.csv", "1")
	dir := w.block("bots")
	f := w.foreman(nil)
	stop := w.watch(f)
	blocked := w.ask(f, wish("blocked", "k", "1"))
	free := w.ask(f, wish("intent", "k", "1"))
	w.waitUntil("the other begins", func() bool { return len(w.launch.of(free.Run)) == 1 })
	w.waitUntil("it is told", func() bool { return f.Status().Err != nil })
	if err := f.Status().Err; !strings.Contains(err.Error(), "of recipe blocked: look the input examples up") {
		t.Errorf("it is told as %v", err)
	}
	stop() // else it could look between Remove and Rename, and find no data
	w.must(os.Remove(dir))
	w.must(os.Rename(dir+".aside", dir))
	w.watch(f)
	w.waitUntil("it begins", func() bool { return len(w.launch.of(blocked.Run)) == 1 })
	w.waitUntil("all is well", func() bool { s := f.Status(); return s.Err == nil && s.Watching })
}

// block replaces a folder of the store by a file, so that a dataset can neither be read nor found
// missing.
func (w *world) block(name string) (dir string) {
	w.Helper()
	err := filepath.WalkDir(w.dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == name && dir == "" {
			dir = path
		}
		return err
	})
	if w.must(err); dir == "" {
		w.Fatalf("the store has no folder %s", name)
	}
	w.must(os.Rename(dir, dir+".aside"))
	w.must(os.WriteFile(dir, nil, 0o600))
	return dir
}

// stubborn repeats a request until it is answered, as a dispatcher does.
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

// agent reports an attempt's end until the report succeeds, as agents do.
func (w *world) agent(f *Foreman, a Attempt, d tidemill.RunFinished) {
	for {
		run, err := f.ledger.Run(w.ctx(), a.Run)
		if err == nil {
			if at := run.Attempt(); at == nil || !w.tokens.Counts(a.Token, a.Run, *at) {
				return // superseded, or reported before
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

// Three Foremen work on one log while Redis is flushed at random moments. Each attempt is
// launched once, no key has two live runs at a time, and each run ends.
func TestForemenAndFlushes(t *testing.T) {
	w := newWorld(t, plain("intent"), plain("churn"))
	foremen := []*Foreman{w.foreman(nil), w.foreman(nil), w.foreman(nil)}
	var alive sync.Map // name of the attempt at work, by recipe and key
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
		for retry.Sleep(flushing, time.Duration(rand.IntN(80))*time.Millisecond) == nil {
			if err := w.redis.FlushAll(flushing).Err(); err != nil && flushing.Err() == nil {
				t.Errorf("flush: %v", err)
			}
		}
	})
	const keys, wishes = 7, 5
	var asking sync.WaitGroup
	var answers sync.Map
	for k := range keys {
		for _, recipe := range []string{"intent", "churn"} {
			asking.Go(func() {
				for n := range wishes {
					r := wish(recipe, fmt.Sprint("k", k), fmt.Sprint(n))
					a, again := w.stubborn(foremen[n%3], r), w.stubborn(foremen[(n+1)%3], r)
					if a.Run != again.Run || again.Result != fold.Known {
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
