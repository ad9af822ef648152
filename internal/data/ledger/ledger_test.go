package ledger_test

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
)

// add appends a fact and returns the making after it.
func (w *world) add(l *ledger.Ledger, v *broker.View) *fold.Making {
	w.t.Helper()
	_, m, err := l.Append(w.t.Context(), v)
	must(w.t, err)
	return m
}

// This test checks all reads of a run, from its first cause to its end.
func TestARunFromItsCauseToItsEnd(t *testing.T) { aWholeRun(t, newWorld(t, 3)) }

func aWholeRun(t *testing.T, w *world) {
	l, s := w.open(), &script{}
	v, id := s.runRequest("intent", "bot-1", "cause-1", nil)
	m := w.add(l, v)
	if m.Waiting == nil || m.Waiting.ID != id || m.Recipe != "intent" || m.Key != "bot-1" {
		t.Fatalf("asked: %+v", m)
	}
	slot, ok, err := l.Claim(t.Context(), ledger.Ask{Pool: "gpu", Slots: 1, Recipes: []ledger.Admission{{Recipe: "intent"}}}, time.Now())
	must(t, err)
	if want := (ledger.Slot{Pool: "gpu", Recipe: "intent", Key: "bot-1", Run: id}); !ok || slot != want {
		t.Fatalf("claimed %+v, %v", slot, ok)
	}
	m = w.add(l, s.start(m.Waiting, "gpu"))
	if m.Live == nil || m.Live.State != tidemill.RunRunning || m.Waiting != nil {
		t.Fatalf("started: %+v", m)
	}
	live, err := l.Live(t.Context())
	must(t, err)
	running, due, err := l.Used(t.Context())
	must(t, err)
	if len(live) != 1 || live[0].ID != id || running["gpu"] != 1 || len(due) != 0 {
		t.Errorf("live %+v, running %v, due %v", live, running, due)
	}
	must(t, l.Beat(t.Context(), id, 1, "", time.Now()))
	must(t, l.Tell(t.Context(), id, []byte("7")))
	beats, err := l.Beats(t.Context())
	must(t, err)
	some, err := l.BeatsOf(t.Context(), []string{"other-1", tidemill.AttemptName(id, 1)})
	must(t, err)
	told, err := l.Told(t.Context(), []string{id, "other"})
	must(t, err)
	if len(beats) != 1 || !maps.Equal(some, beats) || string(told[id]) != "7" || len(told) != 1 {
		t.Errorf("beats %v, some %v, told %v", beats, some, told)
	}
	m = w.add(l, s.finish(m.Live, tidemill.OutcomeSucceeded))
	if m.Live != nil || len(m.Ended) != 1 {
		t.Fatalf("finished: %+v", m)
	}
	r, err := l.Run(t.Context(), id)
	must(t, err)
	if r.State != tidemill.RunSucceeded || r.Result.Metrics["accuracy"] != 0.93 {
		t.Errorf("ended: %+v", r)
	}
	if _, err := l.Run(t.Context(), "nobody"); !errors.Is(err, ledger.ErrUnknown) {
		t.Error(err)
	}
	beats, err = l.Beats(t.Context())
	must(t, err)
	told, err = l.Told(t.Context(), []string{id})
	must(t, err)
	page, err := l.Runs(t.Context(), ledger.Query{})
	must(t, err)
	counts, err := l.Counts(t.Context())
	must(t, err)
	if len(beats)+len(told) != 0 || len(page.Runs) != 1 || page.Runs[0].ID != id || counts["intent"] != (ledger.Counts{Keys: 1}) {
		t.Errorf("beats %v, told %v, runs %+v, counts %v", beats, told, page, counts)
	}
}

// A curve grows ever more slowly, so that it stays small without a removal.
func TestPointsOfARun(t *testing.T) {
	w := newWorld(t, 1)
	l := w.open()
	at := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	for i := range 7200 { // an hour, with two steps a second
		must(t, l.AddPoint(t.Context(), "r", at.Add(time.Duration(i)*500*time.Millisecond), fmt.Append(nil, i)))
	}
	must(t, l.AddPoint(t.Context(), "r", at, []byte("late")))
	points, err := l.Points(t.Context(), "r")
	must(t, err)
	if n := len(points); n < 400 || n > 700 || string(points[0]) != "0" || string(points[90]) != "90" {
		t.Fatalf("%d points, from %s", n, points[0])
	}
	for i := 1; i < len(points); i++ {
		was, _ := strconv.Atoi(string(points[i-1]))
		is, err := strconv.Atoi(string(points[i]))
		if err != nil || is <= was || is-was > 1+is/99 {
			t.Fatalf("point %d is after point %d", is, was)
		}
	}
	must(t, l.ForgetPoints(t.Context(), "r"))
	if points, err := l.Points(t.Context(), "r"); err != nil || len(points) != 0 {
		t.Errorf("%d points, %v", len(points), err)
	}
}
