//go:build slow

package scheduler

import (
	"fmt"
	"sync/atomic"
	"testing"

	"tidemill.dev"
)

// A thousand events come for one key, and a hundred of them during each run. There are at most
// twelve runs, and the last one has seen the last event.
func TestManyEventsForOneKey(t *testing.T) {
	const events, during = 1000, 100
	w := newWorld(t, plain("intent"))
	f := w.foreman(nil)
	w.watch(f)
	var asked atomic.Int64
	w.launch.does = func(a Attempt) {
		until := min(asked.Load()+during, events)
		w.waitUntil("a hundred events more", func() bool { return asked.Load() >= until })
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
