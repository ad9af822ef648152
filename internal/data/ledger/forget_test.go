package ledger_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger"
)

// keys returns the keys of recipe intent, and their count.
func (w *world) keys(l *ledger.Ledger) string {
	w.t.Helper()
	var all []string
	must(w.t, l.Keys(w.t.Context(), "intent", func(key string) bool { all = append(all, key); return true }))
	counts, err := l.Counts(w.t.Context())
	must(w.t, err)
	return fmt.Sprint(all, counts["intent"].Keys)
}

// A removed key is in no list once its last attempt has ended.
func TestAKeyThatHasGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	l, s := w.open(), &script{}
	first, id := s.runRequest("intent", "bot-1", "1", nil)
	m := w.add(l, first)
	w.add(l, s.finish(w.add(l, s.start(m.Waiting, "gpu")).Live, tidemill.OutcomeSucceeded))
	second, live := s.runRequest("intent", "bot-1", "2", nil)
	m = w.add(l, s.start(w.add(l, second).Waiting, "gpu"))
	third, waiting := s.runRequest("intent", "bot-1", "3", nil)
	w.add(l, third)
	must(t, l.Beat(t.Context(), live, 1, "", time.Now()))
	must(t, l.Tell(t.Context(), live, []byte("half")))
	forget := func(cause string) {
		end := tidemill.RunForgotten{Cause: tidemill.Cause{Source: "/test", ID: cause}}
		m = w.add(l, s.view(tidemill.TypeRunForgotten, "intent", "bot-1", "", end))
	}
	forget("end")
	if m.Live == nil || m.Live.Cancel == nil || w.keys(l) != "[bot-1] 1" {
		t.Fatalf("keys %s while its attempt ends: %+v", w.keys(l), m)
	}
	m = w.add(l, s.finish(m.Live, tidemill.OutcomeCancelled))
	for _, run := range []string{id, live, waiting} {
		if r, err := l.Run(t.Context(), run); !errors.Is(err, ledger.ErrUnknown) {
			t.Errorf("run %s is %+v, %v", run, r, err)
		}
	}
	page, err := l.Runs(t.Context(), ledger.Query{})
	must(t, err)
	if len(page.Runs) != 0 || w.keys(l) != "[] 0" {
		t.Errorf("runs %+v, keys %s", page.Runs, w.keys(l))
	}
	w.nothingSays(live)
	again, _ := s.runRequest("intent", "bot-1", "4", nil)
	w.add(l, again)
	if w.keys(l) != "[bot-1] 1" {
		t.Errorf("asked for again, keys are %s", w.keys(l))
	}
	forget("end again")
	if w.keys(l) != "[] 0" {
		t.Errorf("gone again, keys are %s", w.keys(l))
	}
	w.checkSame(w.modelOf())
}

// nothingSays checks that a text is in no value of Redis. It skips the makings: they keep
// digests of causes, and the names of their runs.
func (w *world) nothingSays(what string) {
	w.t.Helper()
	for _, key := range w.redis.Keys(w.t.Context(), w.prefix()+"*").Val() {
		text := fmt.Sprint(key)
		switch w.redis.Type(w.t.Context(), key).Val() {
		case "hash":
			text += fmt.Sprint(w.redis.HGetAll(w.t.Context(), key).Val())
		case "set":
			text += fmt.Sprint(w.redis.SMembers(w.t.Context(), key).Val())
		case "zset":
			text += fmt.Sprint(w.redis.ZRange(w.t.Context(), key, 0, -1).Val())
		}
		if strings.Contains(text, what) && !strings.HasSuffix(key, "makings") {
			w.t.Errorf("%s still says %s: %s", key, what, text)
		}
	}
}

// A retired model is found by its name, but it is in no list.
func TestARetiredModel(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	l, s := w.open(), &script{}
	w.addModel(l, s.registered("intent/bot-1", "run-1", 2))
	w.addModel(l, s.registered("intent/bot-2", "run-2", 2))
	if got := fmt.Sprint(modelPages(t, l, ledger.ModelQuery{Limit: 1})); got != "[intent/bot-1 intent/bot-2]" {
		t.Errorf("listed are %s", got)
	}
	m := w.addModel(l, s.ofModel(tidemill.TypeModelRetired, "intent/bot-1", "", tidemill.ModelRetired{Asked: time.Now()}))
	if m.Retired.IsZero() {
		t.Errorf("retired: %+v", m)
	}
	if got := fmt.Sprint(modelPages(t, l, ledger.ModelQuery{Limit: 1})); got != "[intent/bot-2]" {
		t.Errorf("listed are %s", got)
	}
	m, err := l.Model(t.Context(), "intent/bot-1")
	must(t, err)
	versions, err := l.Versions(t.Context(), "intent/bot-1")
	must(t, err)
	if m.Retired.IsZero() || len(versions) != 0 {
		t.Errorf("%+v, versions %+v", m, versions)
	}
	w.checkSame(w.modelOf())
}
