package registry

import (
	"errors"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
)

var trialTerms = &tidemill.TrialTerms{Scorer: "intents", Last: time.Hour, Until: time.Hour, Pass: []string{"stream.lead.low > 0"}, AtLeast: 1, Alpha: 0.05}

func concluded(outcome tidemill.TrialOutcome, champion int) Conclusion {
	return Conclusion{Verdict: tidemill.TrialVerdict{Scorer: "intents", Recipe: "intent", Champion: champion, Outcome: outcome, Budget: tidemill.TrialBudget{Level: 0.05}},
		Clauses: []tidemill.Clause{{Text: "stream.lead.low > 0", Passed: outcome == tidemill.TrialPassed}}, Sentence: "it was so"}
}

// A version that passes its gate goes on trial if there is a champion. The end of the trial promotes or
// refuses it, once, and only against the champion that it was compared with.
func TestTrialsBeginAndEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.registrar()
	const model = "intent/bot-42"
	w.finish(r, runEnd{model: model, accuracy: 0.9, trial: trialTerms})
	if m := w.model(r, model); m.Champion != 1 || m.OnTrial() != nil {
		t.Fatalf("without a champion: %+v", m)
	}
	w.finish(r, runEnd{model: model, accuracy: 0.2, gate: []string{"metrics.accuracy > 0.5"}, trial: trialTerms})
	if h := w.model(r, model).Find(2); h.State != tidemill.VersionRefused {
		t.Fatalf("refused by its gate: %+v", h)
	}
	w.finish(r, runEnd{model: model, accuracy: 0.9, gate: []string{"metrics.accuracy > 0.5"}, trial: trialTerms})
	w.finish(r, runEnd{model: model, accuracy: 0.9, gate: []string{"metrics.accuracy > 0.5"}, trial: trialTerms})
	three, four := w.versionRecord(r, model, 3), w.versionRecord(r, model, 4)
	if three.State != tidemill.VersionRefused || !strings.Contains(three.Judgement.Sentence, "the trial of version 4") || four.State != tidemill.VersionTrial {
		t.Fatalf("%+v, %+v\n%+v", three, three.Judgement, four)
	}
	refused := 0
	for _, f := range w.factsOf(model) {
		if n, _ := f.Attribute(tidemill.AttrModelVersion); f.Type == tidemill.TypeModelRefused && n == "3" {
			refused++
			if run, _ := f.Attribute(tidemill.AttrRun); run != three.Run || !strings.Contains(string(f.Data), "the trial of version 4") {
				t.Errorf("%s %s", run, f.Data)
			}
		}
	}
	if refused != 1 {
		t.Errorf("version 3 was refused %d times", refused)
	}
	if _, err := r.Conclude(w.ctx(), &three, concluded(tidemill.TrialPassed, 1)); !errors.Is(err, ErrNoTrial) {
		t.Errorf("a trial that has ended: %v", err)
	}
	if _, err := r.Conclude(w.ctx(), &four, concluded(tidemill.TrialPassed, 2)); !errors.Is(err, ErrMoved) {
		t.Errorf("another champion: %v", err)
	}
	for range 2 { // the second is too late
		m, err := r.Conclude(w.ctx(), &four, concluded(tidemill.TrialPassed, 1))
		if err == nil && (m.Champion != 4 || len(m.Owed) != 0) {
			t.Errorf("%+v", m)
		}
	}
	if n := types(w.factsOf(model)); n["promoted"] != 2 || n["tidemill.trial.begun"] != 2 || n["refused"] != 2 {
		t.Errorf("facts: %v", n)
	}
	again := w.versionRecord(r, model, 4)
	if j := again.Judgement; j.Trial == nil || j.Trial.Champion != 1 || j.Sentence != "it was so" || len(j.Clauses) != 2 || j.Against != 1 {
		t.Errorf("%+v", j)
	}
	w.flush()
	if m := w.model(r, model); m.Champion != 4 || len(m.Trials) != 2 || m.Trials[1].Level != 0.05 {
		t.Errorf("after a flush: %+v", m)
	}
}

// A trial of a recipe whose versions people promote ends with a version that waits, and a refused trial
// requests no other run.
func TestTrialsOfManualRecipes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.registrar()
	const model = "intent/bot-42"
	w.finish(r, runEnd{model: model})
	w.finish(r, runEnd{model: model, promote: tidemill.PromoteManual, trial: trialTerms})
	v := w.versionRecord(r, model, 2)
	m, err := r.Conclude(w.ctx(), &v, concluded(tidemill.TrialPassed, 1))
	if err != nil || m.Champion != 1 || m.Find(2).State != tidemill.VersionAwaiting {
		t.Fatalf("%+v, %v", m, err)
	}
	w.finish(r, runEnd{model: model, trial: trialTerms})
	v = w.versionRecord(r, model, 3)
	m, err = r.Conclude(w.ctx(), &v, concluded(tidemill.TrialRefused, 1))
	if err != nil || m.Champion != 1 || m.Find(3).State != tidemill.VersionRefused || len(w.again) != 0 {
		t.Errorf("%+v, %v", m, err)
	}
	// A person may promote a version on trial by force alone.
	w.finish(r, runEnd{model: model, trial: trialTerms})
	if _, err := r.Wish(w.ctx(), Wish{Model: model, Action: tidemill.ActionPromote, Version: 4}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "on-trial") {
		t.Errorf("%v", err)
	}
	a, err := r.Wish(w.ctx(), Wish{Model: model, Action: tidemill.ActionPromote, Version: 4, Force: true})
	if err != nil || a.Model.Champion != 4 || a.Model.OnTrial() != nil {
		t.Errorf("%+v, %v", a, err)
	}
}
