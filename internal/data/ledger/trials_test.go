package ledger_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
)

// The ended trials are listed by pages, the newest end first, each with its verdict.
func TestEndedTrials(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	l, s := w.open(), &script{}
	for i := range 5 {
		model := fmt.Sprint("intent/bot-", i)
		propose := func(action tidemill.Action, version int, j tidemill.Judgement) *fold.Model {
			m, err := l.Model(t.Context(), model)
			must(t, err)
			run := fmt.Sprint("run-", version, "-", i)
			return w.addModel(l, s.ofModel(tidemill.TypeModelPromotionProposed, model, run, tidemill.PromotionProposed{Action: action, Version: version, Run: run, Basis: m.Champion, Turn: m.Turn, Judgement: &j}))
		}
		w.addModel(l, s.registered(model, fmt.Sprint("run-1-", i), 1))
		propose(tidemill.ActionJudge, 1, tidemill.Judgement{Passed: true})
		w.addModel(l, s.registered(model, fmt.Sprint("run-2-", i), 2))
		propose(tidemill.ActionTry, 2, tidemill.Judgement{Passed: true})
		if i == 4 {
			continue // its trial has not ended
		}
		verdict := tidemill.TrialVerdict{Recipe: "intent", Outcome: tidemill.TrialRefused, TrialCounts: tidemill.TrialCounts{Labelled: i}}
		m := propose(tidemill.ActionConclude, 2, tidemill.Judgement{Sentence: "it is worse", Trial: &verdict})
		if len(m.Trials) != 1 || m.Find(2).State != tidemill.VersionRefused {
			t.Fatalf("its trial has not ended: %+v", m)
		}
	}
	caughtUp(t, l)
	list := func(q ledger.TrialQuery) (names []string) {
		t.Helper()
		for {
			p, err := l.EndedTrials(t.Context(), q)
			must(t, err)
			for i := range p.Trials {
				e := &p.Trials[i]
				if r := e.Record; r == nil || r.Judgement.Trial == nil || fmt.Sprint("intent/bot-", r.Judgement.Trial.Labelled) != e.Model || r.State != tidemill.VersionRefused || e.Version != 2 || e.Key != "bot of "+e.Model {
					t.Errorf("the trial of %s is %+v", e.Model, e)
				}
				names = append(names, e.Model)
			}
			if q.After = p.Next; q.After == "" {
				return names
			}
		}
	}
	want := []string{"intent/bot-3", "intent/bot-2", "intent/bot-1", "intent/bot-0"}
	for _, limit := range []int{0, 1, 3} {
		got := list(ledger.TrialQuery{Recipe: "intent", Limit: limit})
		slices.SortFunc(got, func(a, b string) int { return strings.Compare(b, a) }) // two may end in one millisecond
		if !slices.Equal(got, want) {
			t.Errorf("with a limit of %d they are %v", limit, got)
		}
	}
	one := list(ledger.TrialQuery{Key: "bot of intent/bot-1"})
	if other := list(ledger.TrialQuery{Model: "intent/bot-1"}); !slices.Equal(one, want[2:3]) || !slices.Equal(other, one) {
		t.Errorf("of one key they are %v, and of its model %v", one, other)
	}
	if none := list(ledger.TrialQuery{Seen: func(recipe, key string) bool { return false }}); len(none)+len(list(ledger.TrialQuery{Recipe: "churn"})) > 0 {
		t.Errorf("a caller that may see none gets %v", none)
	}
	for _, after := range []string{"x", "1.2", "1.x.y"} {
		if _, err := l.EndedTrials(t.Context(), ledger.TrialQuery{After: after}); !errors.Is(err, ledger.ErrNoPlace) {
			t.Errorf("after %q: %v", after, err)
		}
	}
}
