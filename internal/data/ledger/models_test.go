package ledger_test

import (
	"fmt"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
)

// This test checks all reads of a version, from its registration to its announcement.
func TestAVersionFromItsRunToItsAnnouncement(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	l, s := w.open(), &script{}
	other := w.open()
	m := w.addModel(l, s.registered("intent/bot-1", "run-1", 3))
	if m.Last != 1 || m.Key != "bot of intent/bot-1" || m.Recipe != "intent" {
		t.Fatalf("registered: %+v", m)
	}
	judged := s.ofModel(tidemill.TypeModelPromotionProposed, "intent/bot-1", "run-1", tidemill.PromotionProposed{Action: tidemill.ActionJudge, Version: 1, Run: "run-1",
		Judgement: &tidemill.Judgement{Passed: true, Sentence: "it is good"}})
	if m = w.addModel(other, judged); m.Champion != 1 || len(m.Owed) != 1 {
		t.Fatalf("judged: %+v", m)
	}
	for _, l := range []*ledger.Ledger{l, other} {
		waitUntil(t, l, "an announcement is due", func() bool {
			owed, err := l.Owed(t.Context())
			return err == nil && fmt.Sprint(owed) == "[intent/bot-1]"
		})
	}
	versions, err := l.Versions(t.Context(), "intent/bot-1", 1, 7)
	must(t, err)
	if len(versions) != 1 || versions[0].State != tidemill.VersionPromoted || versions[0].Judgement.Sentence != "it is good" || versions[0].Artifact != "made" {
		t.Errorf("versions %+v", versions)
	}
	m = w.addModel(l, s.ofModel(m.Owed[0].Type, "intent/bot-1", "run-1", tidemill.ModelAnnounced{Proposal: m.Owed[0].Proposal}))
	owed, err := l.Owed(t.Context())
	must(t, err)
	if len(m.Owed)+len(owed) != 0 {
		t.Errorf("announced, and owed are %v, %v", m.Owed, owed)
	}
	none, err := l.Model(t.Context(), "intent/none")
	must(t, err)
	if none.Name != "intent/none" || none.Next != 0 {
		t.Errorf("what is not known is %+v", none)
	}
}

// An invalid fact of a model is not put on the log.
func TestNoFactOfAModel(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	l, s := w.open(), &script{}
	for name, want := range map[string]string{"": "is empty", "intent//x": "intent//x", "two words": "two words"} {
		if _, _, err := l.AppendModel(t.Context(), s.registered(name, "run-1", 2)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("model %q: %v", name, err)
		}
	}
	if _, _, err := l.AppendModel(t.Context(), s.ofModel(tidemill.TypeScorerSwapped, "intent/x", "", nil)); err == nil || !strings.Contains(err.Error(), "swapped") {
		t.Errorf("a type of another fold: %v", err)
	}
	ends, err := w.broker.Ends(t.Context(), tidemill.StreamFacts)
	must(t, err)
	if ends[0].Offset != 0 {
		t.Errorf("%d facts are on the log", ends[0].Offset)
	}
}

// Facts with the wrong record key, or with an invalid name of a model, are skipped.
func TestTornFactsOfModels(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	l, s := w.open(), &script{}
	misplaced := s.registered("intent/bot-1", "run-1", 2)
	misplaced.Key = []byte("intent/bot-2")
	unnamed := s.registered("intent bot", "run-3", 2)
	for _, v := range []*broker.View{misplaced, unnamed} {
		_, err := w.produce.Publish(t.Context(), tidemill.StreamFacts, v)
		must(t, err)
	}
	m := w.addModel(l, s.registered("intent/bot-1", "run-4", 2))
	if m.Last != 1 || m.Versions[0].Run != "run-4" {
		t.Errorf("%+v", m)
	}
}
