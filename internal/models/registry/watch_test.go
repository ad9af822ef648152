package registry

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger/fold"
)

// Watch announces the proposal of a dead registrar, with the same facts.
func TestWatchAnnouncesWhatIsOwed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dying, r := w.registrar(), w.registrar()
	v := w.runEndEvent(runEnd{model: "m", accuracy: 0.9})
	dead := w.racer(dying, v)
	for range stages - 1 {
		dead.proceed()
	}
	if m := w.model(r, "m"); m.Champion != 1 || len(m.Owed) != 1 {
		t.Fatalf("the model is %+v", m)
	}
	watching, stop := context.WithCancel(w.ctx())
	var watch sync.WaitGroup
	watch.Go(func() { _ = r.Watch(watching) })
	for ctx := w.ctx(); ; {
		changed := r.o.Ledger.Changed()
		if len(w.model(r, "m").Owed) == 0 {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatal("nobody announces it")
		}
	}
	stop()
	watch.Wait()
	w.checkChain(v, "m")
	for !dead.done { // the first registrar was not dead, but slow
		dead.proceed()
	}
	w.must(dead.err)
	w.checkChain(v, "m")
}

// A version of a forgotten key is too late, and no other version is.
func TestRetired(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.registrar()
	w.finish(r, runEnd{model: "m", accuracy: 0.9})
	late := w.runEndEvent(runEnd{model: "m", accuracy: 0.9})
	cause := tidemill.Cause{Source: "/crm", ID: "gone"}
	retire := func() {
		w.must(r.Retire(w.ctx(), "m", "bot-42", "ada", "it has gone", cause, time.Now(), []tidemill.Mark{{Partition: 1, Offset: 2}}))
	}
	retire()
	m := w.model(r, "m")
	if m.Champion != 0 || len(m.Versions) != 0 || m.Retired.IsZero() {
		t.Errorf("the model is %+v", m)
	}
	retire()
	if n := types(w.factsOf("m")); n["retired"] != 1 || w.model(r, "m").Turn != m.Turn {
		t.Errorf("said again the log tells of %v", n)
	}
	w.must(r.Finished(w.ctx(), late))
	if m := w.model(r, "m"); len(m.Versions) != 0 {
		t.Errorf("a late version is there: %+v", m)
	}
	w.finish(r, runEnd{model: "m", accuracy: 0.9})
	if m := w.model(r, "m"); m.Champion != 2 {
		t.Errorf("the bot has come again, and its model is %+v", m)
	}
}

// A success that came after a controller reported its attempt as lost makes no version. The success
// of the attempt that counts makes one.
func TestAnAttemptThatDoesNotCountMakesNoVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.registrar()
	run := w.lostAndFound(r)
	of := func(attempt int) {
		v := w.runEndEvent(runEnd{model: "m", accuracy: 0.9, run: run})
		var d tidemill.RunFinished
		w.must(json.Unmarshal(v.Data, &d))
		d.Attempt, d.Candidate.Attempt = attempt, attempt
		w.must(r.Finished(w.ctx(), w.view(d)))
	}
	of(1)
	if m := w.model(r, "m"); m.Last != 0 {
		t.Errorf("of the lost attempt there is a version: %+v", m)
	}
	of(2)
	if m := w.model(r, "m"); m.Champion != 1 {
		t.Errorf("of the attempt that counts there is none: %+v", m)
	}
}

// lostAndFound publishes a run whose first attempt was lost, and whose second has succeeded.
func (w *world) lostAndFound(r *Registrar) string {
	w.Helper()
	c := tidemill.Cause{Source: "/s", ID: "1"}
	run := tidemill.RunID("intent", "bot-42", c)
	say := func(typ string, data any) *fold.Making {
		f := fact{typ: typ, id: tidemill.ID(typ, run), source: "/s", key: "bot-42", recipe: "intent", run: run, data: data}
		v, err := f.view(r.now())
		w.must(err)
		_, m, err := r.o.Ledger.Append(w.ctx(), &v)
		w.must(err)
		return m
	}
	asked := say(tidemill.TypeRunRequested, tidemill.RunRequested{Cause: c}).Waiting.LastAsked()
	plan := &tidemill.Plan{Dir: "/", Attempts: 3, Model: "m"}
	say(tidemill.TypeRunStarted, tidemill.RunStarted{Attempt: 1, Seen: asked, Plan: plan})
	say(tidemill.TypeRunFinished, tidemill.RunFinished{Attempt: 1, Outcome: tidemill.OutcomeLost})
	say(tidemill.TypeRunStarted, tidemill.RunStarted{Attempt: 2})
	if m := say(tidemill.TypeRunFinished, tidemill.RunFinished{Attempt: 2, Outcome: tidemill.OutcomeSucceeded, Result: tidemill.Result{Artifact: "x"}}); m.Live != nil {
		w.Fatalf("the run is %+v", m.Live)
	}
	return run
}

// Finished waits for the end of a run that is not folded yet, and fails so that the event comes
// again.
func TestARunThatHasNotEndedIsWaitedFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		state     tidemill.RunState
		attempts  []int
		is, known bool
	}{
		"waits":       {tidemill.RunWaiting, nil, false, false},
		"is at it":    {tidemill.RunRunning, []int{1, 2}, false, false},
		"an older":    {tidemill.RunRunning, []int{1}, false, false},
		"a newer":     {tidemill.RunRunning, []int{1, 2, 3}, false, true},
		"rests":       {tidemill.RunRetrying, []int{1, 2}, false, true},
		"has ended":   {tidemill.RunSucceeded, []int{1, 2}, true, true},
		"by another":  {tidemill.RunSucceeded, []int{1, 2, 3}, false, true},
		"has failed":  {tidemill.RunFailed, []int{1, 2}, false, true},
		"was stopped": {tidemill.RunCancelled, []int{1, 2}, false, true},
	} {
		r := &tidemill.Run{State: c.state}
		for _, n := range c.attempts {
			r.Attempts = append(r.Attempts, tidemill.Attempt{Number: n})
		}
		if is, known := hasSucceeded(r, 2); is != c.is || known != c.known {
			t.Errorf("%s: %v, %v", name, is, known)
		}
	}
}

func TestHopelessErrors(t *testing.T) {
	t.Parallel()
	if Hopeless(errors.New("x")) || Hopeless(nil) || !Hopeless(hopelessf("x: %w", ErrUnknown)) || !errors.Is(hopelessf("x: %w", ErrUnknown), ErrUnknown) {
		t.Error("an error is marked as it should not be")
	}
}
