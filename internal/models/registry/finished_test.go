package registry

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/broker"
)

func TestARunsEndBecomesAChampion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.registrar()
	finished := w.runEndEvent(runEnd{model: "intent/bot-42", accuracy: 0.5, gate: []string{"metrics.accuracy >= 0.7"},
		files: map[string]string{"predictions.csv": "truth,predicted\na,a\nb,b\nb,a\na,a\n"}})
	w.must(r.Finished(w.ctx(), finished))
	m := w.model(r, "intent/bot-42")
	if m.Champion != 1 || m.Last != 1 || len(m.Owed) != 0 || m.Key != "bot-42" || m.Recipe != "intent" {
		t.Fatalf("the model is %+v", m)
	}
	v := w.versionRecord(r, "intent/bot-42", 1)
	if v.State != tidemill.VersionPromoted || v.Judgement == nil || !v.Judgement.Passed || !strings.Contains(v.Judgement.Sentence, "0.75") {
		t.Errorf("the version is %+v, judged %+v", v.Version, v.Judgement)
	}
	if v.Metrics["accuracy"] != 0.75 || v.Node != "node-1" || v.Files != 2 {
		t.Errorf("it was registered with %+v", v)
	}
	report, err := r.Report(w.ctx(), &v.Version)
	if err != nil || report.Measured == nil || report.Measured.Examples != 4 || report.Claimed["accuracy"] != 0.5 {
		t.Errorf("the report is %+v: %v", report, err)
	}
	w.checkChain(finished, "intent/bot-42")
}

// checkChain checks a version's facts from the run's end on.
func (w *world) checkChain(finished *broker.View, model string) {
	w.Helper()
	all := w.factsOf(model)
	if n := types(all); !maps.Equal(n, map[string]int{"registered": 1, "promotion-proposed": 1, "promoted": 1}) {
		w.Fatalf("the log tells of %v", n)
	}
	registered, proposed, promoted := one(all, tidemill.TypeModelRegistered), one(all, tidemill.TypeModelPromotionProposed), one(all, tidemill.TypeModelPromoted)
	for name, v := range map[string]*broker.View{"registered": registered, "proposed": proposed, "promoted": promoted} {
		cause := finished
		if name == "promoted" {
			cause = proposed
		}
		get := func(attribute string) string { text, _ := v.Attribute(attribute); return text }
		if get(tidemill.AttrCausationID) != cause.ID || get(tidemill.AttrCausationSource) != cause.Source || get(tidemill.AttrCorrelationID) != "the-first" ||
			!strings.HasPrefix(get(tidemill.AttrTraceParent), "00-0af7") {
			w.Errorf("%s does not follow from %s: %+v", name, cause.Type, v.Extensions)
		}
		if v.Source != "/tidemill/tidemill/promote" || v.Subject != "bot-42" || string(v.Key) != model || get(tidemill.AttrRecipe) != "intent" ||
			get(tidemill.AttrRun) == "" || v.DataSchema != tidemill.Schema(v.Type) {
			w.Errorf("%s is %+v", name, v)
		}
		if want := map[bool]string{true: "", false: "1"}[name == "registered"]; get(tidemill.AttrModelVersion) != want {
			w.Errorf("%s names version %q", name, get(tidemill.AttrModelVersion))
		}
	}
	var d tidemill.ModelAnnounced
	w.must(json.Unmarshal(promoted.Data, &d))
	if d.Proposal != proposed.ID || d.Version != 1 || d.Champion != 1 || d.Before != 0 || d.Judgement == nil || d.Origin == nil || d.Origin.Node != "node-1" || d.Artifact == "" {
		w.Errorf("the announcement is %+v", d)
	}
	entry, _ := tidemill.Lookup(tidemill.TypeModelPromoted)
	for _, name := range entry.Attrs {
		if _, there := promoted.Attribute(name); !there && name != tidemill.AttrAuthID {
			w.Errorf("the announcement has no %s, which the catalogue promises", name)
		}
	}
}

// A repeated event changes nothing, whichever registrar handles it and whatever Redis has lost.
func TestSaidAgainNothingChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, other := w.registrar(), w.registrar()
	v := w.runEndEvent(runEnd{model: "m", accuracy: 0.9})
	w.must(r.Finished(w.ctx(), v))
	before := len(w.factsOf("m"))
	w.must(r.Finished(w.ctx(), v))
	w.flush()
	w.must(other.o.Ledger.CaughtUp(w.ctx()))
	w.must(w.patiently(other, v))
	if after := w.factsOf("m"); len(after) != before {
		t.Errorf("the log tells of %v", types(after))
	}
}

// patiently repeats a run's end while the ledger is catching up, as its delivery does.
func (w *world) patiently(r *Registrar, v *broker.View) (err error) {
	ctx := w.ctx()
	for ctx.Err() == nil {
		changed := r.o.Ledger.Changed()
		if err = r.Finished(ctx, v); err == nil || Hopeless(err) {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return err
}

func TestWhatMakesNoVersionIsPassedOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.registrar()
	for name, change := range map[string]func(*tidemill.RunFinished){
		"a failure": func(d *tidemill.RunFinished) { d.Outcome = tidemill.OutcomeFailed },
		"a dataset": func(d *tidemill.RunFinished) { d.Candidate = nil },
	} {
		var d tidemill.RunFinished
		v := w.runEndEvent(runEnd{model: "m", accuracy: 1})
		w.must(json.Unmarshal(v.Data, &d))
		change(&d)
		data, err := json.Marshal(d)
		w.must(err)
		if v.Data = data; r.Finished(w.ctx(), v) != nil || len(w.factsOf("m")) > 0 {
			t.Errorf("%s makes %v", name, types(w.factsOf("m")))
		}
	}
}

// An event that cannot be judged fails at once, and is not retried for hours.
func TestHopeless(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.registrar()
	change := func(set func(*tidemill.RunFinished)) *broker.View {
		var d tidemill.RunFinished
		v := w.runEndEvent(runEnd{model: "m", accuracy: 1})
		w.must(json.Unmarshal(v.Data, &d))
		set(&d)
		return w.view(d)
	}
	for name, c := range map[string]struct {
		v    *broker.View
		says string
	}{
		"no JSON":        {&broker.View{ID: "1", Data: []byte("{")}, "read the end of a run"},
		"no name":        {change(func(d *tidemill.RunFinished) { d.Candidate.Model = "a b" }), `"a b"`},
		"nothing made":   {change(func(d *tidemill.RunFinished) { d.Artifact = "" }), "it made nothing"},
		"a strange gate": {change(func(d *tidemill.RunFinished) { d.Candidate.Judge.Gate = []string{"metrics."} }), "read the gate"},
	} {
		if err := r.Finished(w.ctx(), c.v); !Hopeless(err) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if m := w.model(r, "m"); m.Champion != 0 {
		t.Errorf("there is a champion: %+v", m)
	}
}

// A tree that is not in the store may come, because a bucket may lag: the event is
// delivered again, and its dead letter says what to do.
func TestAVersionWaitsForItsTree(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	v := w.runEndEvent(runEnd{model: "m", accuracy: 1})
	var d tidemill.RunFinished
	w.must(json.Unmarshal(v.Data, &d))
	show := w.hideTree(d.Artifact)
	r := w.registrar()
	if err := r.Finished(w.ctx(), v); err == nil || Hopeless(err) || !strings.Contains(err.Error(), "ask for the run again") {
		t.Errorf("without its tree: %v", err)
	}
	show()
	if err := r.Finished(w.ctx(), v); err != nil || w.model(r, "m").Champion != 1 {
		t.Errorf("with its tree: %v, %+v", err, w.model(r, "m"))
	}
}

// Predictions that cannot be counted are noted, and the trainer's figures count.
func TestPredictionsThatCannotBeCountedAreNoted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.registrar()
	w.finish(r, runEnd{model: "m", accuracy: 0.9, gate: []string{"metrics.accuracy > 0.8"}, files: map[string]string{"predictions.csv": "nonsense\n"}})
	v := w.versionRecord(r, "m", 1)
	report, err := r.Report(w.ctx(), &v.Version)
	if err != nil || v.State != tidemill.VersionPromoted || report.Measured != nil || len(report.Notes) != 1 {
		t.Errorf("the version is %s, the report %+v: %v", v.State, report, err)
	}
}

// A version whose model cannot be served is refused, also without a gate. A version whose model
// needs something that is not installed waits, and a person can promote it once that is there.
func TestAVersionThatCannotBeServed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.registrar()
	w.finish(r, runEnd{model: "m", accuracy: 0.6})
	w.trial = &tidemill.ServingCheck{Scorer: "intents", Error: "it is cut off, or is no ONNX file"}
	w.finish(r, runEnd{model: "m", accuracy: 0.9, files: map[string]string{"predictions.csv": "truth,predicted\na,b\nb,b\nb,\n"}})
	if ask := w.tried[1]; ask.Model != "m" || ask.Key != "bot-42" || ask.Artifact == "" || !slices.Equal(ask.Labels, []string{"b"}) {
		t.Errorf("tried was %+v", ask)
	}
	v := w.versionRecord(r, "m", 2)
	if want := "version 2 of m is refused: scorer intents cannot serve it: it is cut off, or is no ONNX file"; v.State != tidemill.VersionRefused || v.Judgement.Sentence != want {
		t.Errorf("the version is %s: %+v", v.State, v.Judgement)
	}
	for by, trial := range map[string]*tidemill.ServingCheck{"scorer intents": {Scorer: "intents", Missing: "ONNX Runtime is not installed"}, "Tidemill": {Missing: "ONNX Runtime is not installed"}} {
		w.trial = trial
		model := strings.ReplaceAll(by, " ", "-")
		w.finish(r, runEnd{model: model, accuracy: 0.9})
		v = w.versionRecord(r, model, 1)
		if want := by + " cannot run its model yet: ONNX Runtime is not installed"; v.State != tidemill.VersionAwaiting || v.Judgement.Hold != want || !v.Judgement.Lacks {
			t.Errorf("a version that needs something is %s: %+v", v.State, v.Judgement)
		}
	}
	w.finish(r, runEnd{model: "m", accuracy: 0.9})
	if _, err := r.Wish(w.ctx(), Wish{Model: "m", Action: tidemill.ActionPromote, DryRun: true}); !errors.Is(err, ErrRefused) {
		t.Errorf("a dry run before that is installed: %v", err)
	}
	if _, err := r.Wish(w.ctx(), Wish{Model: "m", Action: tidemill.ActionPromote}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "ONNX Runtime is not installed") {
		t.Errorf("promoted before that is installed: %v", err)
	}
	w.trial = &tidemill.ServingCheck{Scorer: "intents", Engine: "onnxruntime", Rows: 8}
	if a, err := r.Wish(w.ctx(), Wish{Model: "m", Action: tidemill.ActionPromote}); err != nil || a.Version != 3 {
		t.Errorf("promoted after that is installed: %+v, %v", a, err)
	}
	w.trial = &tidemill.ServingCheck{Error: "it is cut off"}
	if a, err := r.Wish(w.ctx(), Wish{Model: "m", Action: tidemill.ActionPromote, Version: 2, Force: true}); err != nil || a.Version != 2 {
		t.Errorf("forced: %+v, %v", a, err)
	}
}
