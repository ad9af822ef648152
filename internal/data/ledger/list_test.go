package ledger_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
)

// allRuns returns the runs that a simple fold of the log names, the newest first.
func (w *world) allRuns() []tidemill.Run {
	w.t.Helper()
	m := w.modelOf()
	var all []tidemill.Run
	for id, value := range m["runs"] {
		where := strings.SplitN(value, " ", 4)[3]
		r := &tidemill.Run{}
		if strings.HasPrefix(where, "{") {
			must(w.t, json.Unmarshal([]byte(where), r))
		} else {
			making := &fold.Making{}
			must(w.t, json.Unmarshal([]byte(m["makings"][where]), making))
			r = making.Find(id)
		}
		all = append(all, *r)
	}
	slices.SortFunc(all, func(a, b tidemill.Run) int {
		return cmp.Or(cmp.Compare(b.Asking.UnixMilli(), a.Asking.UnixMilli()), cmp.Compare(b.ID, a.ID))
	})
	return all
}

// livedLedger returns a ledger with many runs in all states. Some of them were requested within
// the same millisecond.
func livedLedger(t *testing.T, w *world, steps int) *ledger.Ledger {
	r := rand.New(rand.NewPCG(7, 7))
	c := &chance{Rand: r, script: &script{at: time.Now().Add(-24 * time.Hour).UTC()}, keys: 12, recipes: []string{"intent", "fraud", "demand"}}
	l := w.open()
	for range steps {
		switch r.IntN(20) {
		case 0:
			c.at = c.at.Add(time.Duration(r.IntN(3600)) * time.Second)
		case 1, 2, 3:
			c.at = c.at.Add(-time.Millisecond)
		}
		v := c.view(r)
		if _, m, err := l.Append(t.Context(), v); err == nil {
			c.known.Store(m.Recipe+"/"+m.Key, m)
		}
	}
	return l
}

func TestListsAgreeWithThePlainFold(t *testing.T) { listsAgree(t, newWorld(t, 4)) }

func listsAgree(t *testing.T, w *world) {
	l := livedLedger(t, w, 700)
	w.waitSettled(l)
	all := w.allRuns()
	states := []tidemill.RunState{tidemill.RunWaiting, tidemill.RunRunning, tidemill.RunRetrying, tidemill.RunCommitting, tidemill.RunSucceeded, tidemill.RunFailed, tidemill.RunCancelled}
	r := rand.New(rand.NewPCG(8, 8))
	for range 60 {
		q := ledger.Query{Limit: 1 + r.IntN(len(all)/2)}
		for _, s := range states {
			if r.IntN(3) == 0 {
				q.States = append(q.States, s)
			}
		}
		if r.IntN(2) == 0 {
			q.Recipe = []string{"intent", "fraud", "other"}[r.IntN(3)]
		}
		if r.IntN(3) == 0 {
			q.Key = fmt.Sprint("bot-", r.IntN(14))
		}
		if r.IntN(2) == 0 {
			q.Since = all[r.IntN(len(all))].Asking.Add(time.Duration(r.IntN(3)) * time.Microsecond)
		}
		var want []string
		for _, r := range all {
			if (len(q.States) == 0 || slices.Contains(q.States, r.State)) && (q.Recipe == "" || q.Recipe == r.Recipe) &&
				(q.Key == "" || q.Key == r.Key) && !r.Asking.Before(q.Since.Truncate(time.Millisecond)) {
				want = append(want, r.ID)
			}
		}
		if got := readPages(t, l, q); !slices.Equal(got, want) {
			t.Fatalf("%+v:\n have %v\n want %v", q, got, want)
		}
	}
	w.counts(l, all)
	if len(all) < 50 {
		t.Errorf("only %d runs were listed", len(all))
	}
}

// readPages reads all pages.
func readPages(t *testing.T, l *ledger.Ledger, q ledger.Query) (ids []string) {
	t.Helper()
	for {
		p, err := l.Runs(t.Context(), q)
		must(t, err)
		if len(p.Runs) > q.Limit || len(p.Runs) == 0 && p.Next != "" {
			t.Fatalf("a page of %d, and %q", len(p.Runs), p.Next)
		}
		for _, r := range p.Runs {
			ids = append(ids, r.ID)
		}
		if q.After = p.Next; q.After != "" {
			continue
		}
		total := len(ids)
		if !q.Since.IsZero() && q.Key == "" {
			total = -1
		}
		if p.Total != total {
			t.Errorf("%+v has %d runs by its count, want %d", q, p.Total, total)
		}
		return ids
	}
}

func (w *world) counts(l *ledger.Ledger, all []tidemill.Run) {
	w.t.Helper()
	want, keys := map[string]ledger.Counts{}, map[string]map[string]bool{}
	live := 0
	for _, r := range all {
		c := want[r.Recipe]
		switch r.State {
		case tidemill.RunWaiting:
			c.Waiting++
		case tidemill.RunRunning, tidemill.RunRetrying, tidemill.RunCommitting:
			c.Live++
		}
		if r.State == tidemill.RunRunning || r.State == tidemill.RunCommitting {
			live++
		}
		if keys[r.Recipe] == nil {
			keys[r.Recipe] = map[string]bool{}
		}
		keys[r.Recipe][r.Key] = true
		c.Keys = len(keys[r.Recipe])
		want[r.Recipe] = c
	}
	got, err := l.Counts(w.t.Context())
	must(w.t, err)
	watched, err := l.Live(w.t.Context())
	must(w.t, err)
	if fmt.Sprint(got) != fmt.Sprint(want) || len(watched) != live {
		w.t.Errorf("counts %v, want %v; %d are watched, want %d", got, want, len(watched), live)
	}
	underWay := map[string]bool{}
	for i := range watched {
		if a := watched[i].Attempt(); a != nil {
			underWay[tidemill.AttemptName(watched[i].ID, a.Number)] = true
		}
	}
	named, err := l.UnderWay(w.t.Context())
	must(w.t, err)
	if !maps.Equal(named, underWay) {
		w.t.Errorf("under way are %v, want %v", named, underWay)
	}
}

func TestNoPlaceInTheList(t *testing.T) {
	l := newWorld(t, 1).open()
	for _, after := range []string{"x", "12", "a.b"} {
		if _, err := l.Runs(t.Context(), ledger.Query{After: after}); err == nil || !strings.Contains(err.Error(), "first page") {
			t.Errorf("after %q: %v", after, err)
		}
	}
}

// pageCost counts the reads of sorted sets for a page in the middle.
func pageCost(t *testing.T, runs int) int64 {
	w, m := newMiniWorld(t, 4)
	s := &script{at: time.Now().Add(-48 * time.Hour)}
	w.publish(runs, func(i int) *broker.View {
		s.at = s.at.Add(time.Second)
		v, _ := s.runRequest([]string{"a", "b", "c"}[i%3], fmt.Sprint("bot-", i), "c", nil)
		return v
	})
	l := w.open()
	page, err := l.Runs(t.Context(), ledger.Query{Limit: runs / 2})
	must(t, err)
	var calls atomic.Int64
	noteCommands(m.Server().SetPreHook, func(command string, _ []string) {
		if strings.HasPrefix(command, "Z") {
			calls.Add(1)
		}
	})
	page, err = l.Runs(t.Context(), ledger.Query{Limit: 20, After: page.Next})
	must(t, err)
	if len(page.Runs) != 20 || page.Next == "" {
		t.Fatalf("%+v", page)
	}
	return calls.Load()
}
