package gateway

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/store"
)

// An attempt gets the champion at the start of its run, and may read its files.
func TestAnAttemptIsGivenTheChampion(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	w := &runWorld{world: m.world, ledger: m.ledger, store: m.store}
	artifact := w.keepFile("model.onnx", []byte("the champion"))
	w.judgedOf(madeVersion{model: "fit/bot-1", key: "bot-1", run: "r1", recipe: "fit", accuracy: 0.9, passed: true}, artifact)
	a := m.beginRun("fit", "bot-1")
	var order api.Order
	m.must(json.Unmarshal([]byte(a.get("").body), &order))
	if order.Champion == nil || *order.Champion != (api.TreeRef{Tree: artifact, Files: 1, Bytes: 12}) || order.Plan.Champion == nil || order.Plan.Champion.Version != 1 {
		t.Fatalf("the order is %+v with the champion %+v", order, order.Champion)
	}
	if r := a.get("/files?tree=" + order.Champion.Tree); r.StatusCode != http.StatusOK || !strings.Contains(r.body, "model.onnx") {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
}

// judgedOf registers and judges version 1 of a model, with the given artifact.
func (w *runWorld) judgedOf(of madeVersion, artifact string) {
	w.Helper()
	origin := tidemill.Origin{Run: of.run, Recipe: of.recipe, Key: of.key, Began: time.Unix(1, 0)}
	w.appendModel(tidemill.TypeModelRegistered, "registered "+of.run, of, tidemill.ModelRegistered{Artifact: artifact, Report: w.keepFile("report.json", []byte("{}"+of.run)), Judge: tidemill.Judge{Keep: 10}, Origin: origin})
	w.appendModel(tidemill.TypeModelPromotionProposed, "judged "+of.run, of, tidemill.PromotionProposed{Action: tidemill.ActionJudge, Version: 1, Run: of.run, Judgement: &tidemill.Judgement{Passed: true}})
}

// A collection keeps the artifacts and reports of model versions, even if the ledger no
// longer has the runs that made them.
func TestCollectLeavesVersions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := must1(store.Open(t.Context(), store.Options{URL: dir}))(t)
	w := newRuns(t, func(o *Options) { o.Store, o.Announce = s, (&commitRecorder{}).announce })
	w.store = s
	w.judgedOf(madeVersion{model: "m", key: "k", run: "r1", recipe: "fraud", passed: true}, w.keepFile("model.onnx", []byte("a model")))
	w.keepFile("garbage", []byte("garbage"))
	w.must(ageFiles(dir, 25*time.Hour))
	if done := sendDecoded[api.Collected](w.world, http.MethodPost, dataPath+"gc", "{}"); done.Removed != 2 || done.Kept != 4 { // an object and a tree each
		t.Errorf("%+v", done)
	}
	for text, there := range map[string]bool{"a model": true, "{}r1": true, "garbage": false} {
		if r := w.do(http.MethodGet, getPath(text), ""); (r.StatusCode == http.StatusOK) != there {
			t.Errorf("%s: %s", text, r.Status)
		}
	}
}
