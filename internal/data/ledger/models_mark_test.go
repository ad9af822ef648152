package ledger_test

import (
	"testing"

	"tidemill.dev"
)

// The mark grows when a champion changes, and stays the same if no model changes.
func TestTheMarkOfModelsMovesWithChampions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	l, s := w.open(), &script{}
	caughtUp(t, l)
	mark := func() int64 {
		n, err := l.ModelsMark(t.Context())
		must(t, err)
		return n
	}
	w.addModel(l, s.registered("intent/bot-1", "run-1", 3))
	registered := mark()
	v, _ := s.runRequest("intent", "bot-9", "1", nil)
	if _, _, err := l.Append(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	if got := mark(); got != registered {
		t.Errorf("a run is asked for, and the mark of models moves from %d to %d", registered, got)
	}
	w.addModel(l, s.ofModel(tidemill.TypeModelPromotionProposed, "intent/bot-1", "run-1", tidemill.PromotionProposed{Action: tidemill.ActionJudge, Version: 1, Run: "run-1",
		Judgement: &tidemill.Judgement{Passed: true, Sentence: "it is good"}}))
	if got := mark(); got <= registered {
		t.Errorf("a version is the champion, and the mark is %d after %d", got, registered)
	}
}
