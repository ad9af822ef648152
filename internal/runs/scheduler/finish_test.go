package scheduler

import (
	"errors"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/store"
)

func cleaner() config.Recipe {
	r := plain("clean")
	r.Makes = config.Makes{Dataset: "clean/{key}", Branch: "main"}
	return r
}

func (w *world) made(tree string) tidemill.RunFinished {
	d := succeeded
	d.Artifact = tree
	return d
}

func (w *world) committed(f *Foreman, run *tidemill.Run) {
	w.Helper()
	head, err := w.store.Head(w.ctx(), "clean/k", "main")
	w.must(err)
	if run.State != tidemill.RunSucceeded || run.Commit != head.ID || head.Run != run.ID || head.Number != 1 {
		w.Errorf("the run is %+v, the head %+v", run, head)
	}
	if got := w.announcements(); len(got) != 1 || got["clean/k@"+head.ID] == 0 {
		w.Errorf("announced is %v", got)
	}
}

// announcedOnce checks that each commit was announced once. This holds only if one process commits
// outputs at a time: several processes may each announce the commit with the same event.
func (w *world) announcedOnce() {
	w.Helper()
	for commit, n := range w.announcements() {
		if n != 1 {
			w.Errorf("%s was announced %d times", commit, n)
		}
	}
}

func TestWhatARunMakesIsCommitted(t *testing.T) {
	w := newWorld(t, cleaner())
	f := w.foreman(nil)
	a := w.ask(f, wish("clean", "k", "1"))
	w.committed(f, w.finish(f, w.launch.of(a.Run)[0], w.made(w.tree("a.csv", "1"))))
	w.announcedOnce()
}

func TestNothingMadeIsAFailure(t *testing.T) {
	w := newWorld(t, cleaner())
	f := w.foreman(nil)
	a := w.ask(f, wish("clean", "k", "1"))
	if run := w.finish(f, w.launch.of(a.Run)[0], succeeded); run.State != tidemill.RunFailed || !strings.Contains(run.Reason, "it made nothing for the dataset clean/k") {
		t.Errorf("the run is %+v", run)
	}
}

// A process may be stopped after the success is on the log and before the commit, or between the
// commit and its fact.
func TestACrashBeforeASuccessIsSettled(t *testing.T) {
	for name, further := range map[string]func(*world, *tidemill.Run){
		"before the commit": func(*world, *tidemill.Run) {},
		"behind the commit": func(w *world, run *tidemill.Run) {
			r, err := commitRequest(run)
			w.must(err)
			r.Announce = w.announce
			_, err = w.store.Commit(w.ctx(), r, nil)
			w.must(err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, cleaner())
			f := w.foreman(nil)
			a := w.ask(f, wish("clean", "k", "1"))
			next := w.ask(f, wish("clean", "k", "2"))
			d := w.made(w.tree("a.csv", "1"))
			d.Attempt = 1
			_, m, err := f.appendFact(w.ctx(), finishedFact(w.run(f, a.Run), byGateway, d, time.Now()), time.Now())
			if w.must(err); m.Live == nil || m.Live.State != tidemill.RunCommitting {
				t.Fatalf("the making is %+v", m)
			}
			if got, err := f.Cancel(w.ctx(), m.Live, "ada", "too late"); err != nil || got.Cancel != nil {
				t.Errorf("cancelled while it settles it is %+v, %v", got, err)
			}
			further(w, m.Live)
			w.watch(w.foreman(nil))
			w.watch(w.foreman(nil))
			w.committed(f, w.until(f, a.Run, tidemill.RunSucceeded))
			w.waitUntil("the next begins", func() bool { return len(w.launch.of(next.Run)) == 1 })
		})
	}
}

func TestAdvanceSettles(t *testing.T) {
	w := newWorld(t, cleaner())
	f := w.foreman(nil)
	a := w.ask(f, wish("clean", "k", "1"))
	d := w.made(w.tree("a.csv", "1"))
	d.Attempt = 1
	_, _, err := f.appendFact(w.ctx(), finishedFact(w.run(f, a.Run), byGateway, d, time.Now()), time.Now())
	w.must(err)
	for range 3 {
		w.must(f.Advance(w.ctx(), "clean", "k"))
	}
	w.committed(f, w.run(f, a.Run))
	w.announcedOnce()
}

// A run's output that is not in the store may come, because a bucket may lag. If it does
// not, the run fails, and the key's next run can start.
func TestWhatWasMadeIsGone(t *testing.T) {
	w := newWorld(t, cleaner())
	f := w.foreman(nil)
	a := w.ask(f, wish("clean", "k", "1"))
	next := w.ask(f, wish("clean", "k", "2"))
	nowhere, later := strings.Repeat("ab", 32), 20*time.Minute // the store was away until then
	f.now = func() time.Time { return wholeMilliseconds().Add(later) }
	run := w.finish(f, w.launch.of(a.Run)[0], w.made(nowhere))
	if run.State != tidemill.RunCommitting {
		t.Errorf("at first the run is %+v", run)
	}
	later += outputArrives
	w.must(f.Advance(w.ctx(), "clean", "k"))
	run = w.run(f, a.Run)
	if run.State != tidemill.RunFailed || !strings.Contains(run.Reason, nowhere) || !strings.Contains(run.Reason, "dataset clean/k") {
		t.Errorf("the run is %+v", run)
	}
	if len(w.launch.of(next.Run)) != 1 {
		t.Error("the key does not go on")
	}
}

// If a key is deleted before a run's output is committed, there is no commit.
func TestAKeyThatGoesMakesNoCommit(t *testing.T) {
	w := newWorld(t, cleaner())
	f := w.foreman(nil)
	a := w.ask(f, wish("clean", "k", "1"))
	d := w.made(w.tree("a.csv", "1"))
	d.Attempt = 1
	_, m, err := f.appendFact(w.ctx(), finishedFact(w.run(f, a.Run), byGateway, d, time.Now()), time.Now())
	if w.must(err); m.Live == nil || m.Live.State != tidemill.RunCommitting {
		t.Fatalf("the making is %+v", m)
	}
	_, m, err = f.Forget(w.ctx(), Forgetting{Recipe: "clean", Key: "k", Cause: tidemill.Cause{Source: "/crm", ID: "end"}, Reason: "it has gone"})
	if w.must(err); m.Live == nil || m.Live.Cancel == nil {
		t.Fatalf("the making is %+v", m)
	}
	m, err = f.commitOutput(w.ctx(), m.Live)
	if w.must(err); m.Live != nil || len(m.Ended) > 0 || !m.Gone {
		t.Errorf("the making is %+v", m)
	}
	if _, err := w.store.Head(w.ctx(), "clean/k", "main"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the dataset has a head: %v", err)
	}
}
