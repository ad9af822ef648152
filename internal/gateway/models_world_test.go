package gateway

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger/fold"
)

// madeVersion is a version as a run would have made it.
type madeVersion struct {
	model, key, run string
	recipe          string // intent if empty
	began           time.Time
	accuracy        float64
	report          *tidemill.Report // nil means a report that is not in the store
	passed          bool
	hold            string
}

// appendModel publishes a fact of a model.
func (w *runWorld) appendModel(typ, id string, of madeVersion, data any) *fold.Model {
	w.Helper()
	recipe := orElse(of.recipe, "intent")
	v := broker.View{ID: id, Source: must1(w.config.Names())(w).Source("promote"), Type: typ, Subject: of.key, Time: time.Now().UTC().Format(time.RFC3339Nano),
		DataContentType: "application/json", Data: must1(json.Marshal(data))(w),
		Extensions: []broker.Attribute{{Name: tidemill.AttrModel, Value: of.model}, {Name: tidemill.AttrRecipe, Value: recipe}, {Name: tidemill.AttrRun, Value: of.run}}}
	_, m, err := w.ledger.AppendModel(w.Context(), &v)
	w.must(err)
	return m
}

// judgedVersion registers and judges a version.
func (w *runWorld) judgedVersion(of madeVersion) *fold.Model {
	w.Helper()
	if of.began.IsZero() {
		of.began = time.Now().Add(-time.Minute)
	}
	report := strings.Repeat("0", 64)
	if of.report != nil {
		report = w.keepFile("report.json", must1(json.Marshal(of.report))(w))
	}
	origin := tidemill.Origin{Run: of.run, Recipe: orElse(of.recipe, "intent"), Key: of.key, Attempt: 1, Began: of.began, Ended: of.began.Add(time.Second), Causes: 1,
		Inputs: []tidemill.Input{{Name: "examples", Dataset: "bots/" + of.key, Branch: "main", Commit: "c"}}, Mark: tidemill.Mark{Partition: 999, Offset: of.began.UnixMilli()}}
	m := w.appendModel(tidemill.TypeModelRegistered, "registered "+of.run, of, tidemill.ModelRegistered{Artifact: w.keepFile("model.onnx", []byte(of.run)), Bytes: 10, Files: 1, Report: report,
		Metrics: map[string]float64{"accuracy": of.accuracy}, Judge: tidemill.Judge{Gate: []string{"metrics.accuracy >= 0.5"}, On: tidemill.GateOnSame, Promote: tidemill.PromoteAuto, Keep: 10}, Origin: origin})
	h := m.OfRun(of.run)
	if h == nil {
		w.Fatalf("model %s has no version of run %s", of.model, of.run)
	}
	return w.appendModel(tidemill.TypeModelPromotionProposed, "judged "+of.run, of, tidemill.PromotionProposed{Action: tidemill.ActionJudge, Version: h.Number, Run: of.run, Basis: m.Champion, Turn: m.Turn, Hold: of.hold,
		Judgement: &tidemill.Judgement{Passed: of.passed, Sentence: "of run " + of.run, Against: m.Champion, Hold: of.hold,
			Clauses: []tidemill.Clause{{Text: "metrics.accuracy >= 0.5", Passed: of.passed, Values: map[string]float64{"metrics.accuracy": of.accuracy}}}}, Origin: &origin})
}

// keepFile puts a file into the store, as a tree with one file.
func (w *runWorld) keepFile(name string, text []byte) (tree string) {
	w.Helper()
	return w.keepFiles(map[string]string{name: string(text)})
}

// keepFiles puts files into the store, as one tree.
func (w *runWorld) keepFiles(texts map[string]string) (tree string) {
	w.Helper()
	var files []api.File
	for path, text := range texts {
		f := api.File{Path: path, Digest: digestOf(text), Size: int64(len(text))}
		w.must(w.store.PutObject(w.Context(), f.Digest, f.Size, strings.NewReader(text)))
		files = append(files, f)
	}
	return must1(w.store.Tree(w.Context(), files))(w).Tree
}

// makeChampions makes a model with n versions, each promoted by its gate.
func (w *runWorld) makeChampions(model, key string, n int) {
	w.Helper()
	for i := range n {
		w.judgedVersion(madeVersion{model: model, key: key, run: model + "." + strconv.Itoa(i+1), began: time.Now().Add(time.Duration(i-n) * time.Minute), accuracy: 0.9, passed: true, report: reportOfTests()})
	}
}

// reportOfTests has a value in every field.
func reportOfTests() *tidemill.Report {
	e := tidemill.Estimate{Value: 0.9, Low: 0.8, High: 0.95}
	f := &tidemill.Figures{Examples: 2, Accuracy: e, MacroF1: e, Classes: []tidemill.Class{{Label: "a", Support: 2, Predicted: 1, Precision: e, Recall: e, F1: 0.9}}, Cells: []tidemill.Cell{{Count: 2}}}
	return &tidemill.Report{Metrics: map[string]float64{"accuracy": 0.9}, Claimed: map[string]float64{"accuracy": 0.99}, Measured: f, Notes: []string{"a note"},
		Champion: &tidemill.Beside{Version: 1, Metrics: map[string]float64{"accuracy": 0.9}, Measured: f, Lead: &e}}
}

func (w *runWorld) model(name string, headers ...string) api.ModelWhole {
	w.Helper()
	return sendDecoded[api.ModelWhole](w.world, http.MethodGet, "/api/v1/model?model="+name, "", headers...)
}

// sendModelRequest sends a request about a model.
func (w *runWorld) sendModelRequest(action, body string, headers ...string) api.PromotionDone {
	w.Helper()
	return sendDecoded[api.PromotionDone](w.world, http.MethodPost, "/api/v1/model/"+action, body, headers...)
}

func (w *runWorld) listModels(query string, headers ...string) []api.ModelShown {
	w.Helper()
	return sendDecoded[api.Models](w.world, http.MethodGet, "/api/v1/models"+query, "", headers...).Models
}
