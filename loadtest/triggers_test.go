package main

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"tidemill.dev/config"
	"tidemill.dev/loadtest/internal/load"
)

func TestOnlyTheFirstArrivalCounts(t *testing.T) {
	h := newHeat(100, 2)
	h.left.left(0)
	h.left.left(1)
	for _, number := range []int{99, 102, 101, 101} {
		h.countArrival(number)
	}
	took := h.took[1].Load()
	h.countArrival(101)
	if h.missing.Load() != 1 || h.took[1].Load() != took || h.took[0].Load() != 0 {
		t.Errorf("%d are missing", h.missing.Load())
	}
	h.countArrival(100)
	<-h.done
	if r := h.result().Came; r.Events != 2 || r.P50 <= 0 || r.Max < r.P50 {
		t.Errorf("%+v", r)
	}
}

// The bare client's requests are accepted by the subscriber, and each is counted once.
func TestTheBareClientPostsWhatTheSubscriberTakes(t *testing.T) {
	l := &hookSubscriber{credits: make(chan struct{}, inFlight), refused: make(chan error, 1)}
	s := httptest.NewServer(l.handler())
	defer s.Close()
	l.bare = newPoster(strings.TrimPrefix(s.URL, "http://"), 4)
	r, err := l.run(t.Context(), lapHop, 50*time.Millisecond)
	if a, ok := r.(arrivals); !ok || err != nil || a.Came.Events != 100 || a.Came.P50 <= 0 || l.came.Load() != 100 {
		t.Errorf("%+v, %d came: %v", r, l.came.Load(), err)
	}
	s.Config.Handler = nil
	if _, err := l.run(t.Context(), lapHop, 50*time.Millisecond); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("a subscriber that is not there: %v", err)
	}
	if _, err := l.run(t.Context(), "dance", 0); err == nil {
		t.Error("it dances")
	}
}

func TestLatenessIsComparedWithinARound(t *testing.T) {
	of := func(p99 time.Duration) arrivals { return arrivals{Came: load.Result{P99: p99}} }
	a, b := []arrivals{of(30), of(10)}, []arrivals{of(20), of(20)}
	if d := compareDelays(a, b); d[0] != 1.5 || d[1] != 0.5 {
		t.Error(d)
	}
}

func TestDispatchersGetAConfigThatParses(t *testing.T) {
	for _, dead := range []bool{false, true} {
		c, err := config.Parse("load", []byte(loadConfig("load-1", "127.0.0.1:1", dead)))
		if want := 1 + 2*min(1, strings.Count(loadConfig("", "x", dead), "hanging")); err != nil || len(c.Triggers) != want {
			t.Errorf("%v", err)
		}
	}
	if c, err := config.Parse("load", []byte(loadConfig("load-1", "", true))); err != nil || len(c.Triggers) != 1 {
		t.Error(err)
	}
}
