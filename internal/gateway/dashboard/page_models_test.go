package dashboard

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/ledger/fold"
)

// shownModel is an entry of the list whose newest version waits for a person.
func shownModel(name string) api.ModelShown {
	at := testNow().Add(-2 * time.Hour)
	return api.ModelShown{Name: name, Key: name, Recipe: "intent", Champion: 6, Newest: 7, State: tidemill.VersionAwaiting, Versions: 3, Began: &at,
		Metrics: map[string]float64{"accuracy": 0.91, "examples": 4000001}, PinnedBy: name, Pinned: true, Hold: "it is frozen by " + name, Why: name}
}

func TestModelsShowWhatToDecide(t *testing.T) {
	t.Parallel()
	d := open(t, fakeAPI{"GET /api/v1/models": api.Models{Models: []api.ModelShown{shownModel("intent/bot-1")}, Next: "0.intent/bot-1", Total: 20000}})
	body := fetch(d, "/ui/models?awaiting=true").Body.String()
	mustHave(t, body, "20\u202f000 models", "awaiting", "it is frozen", "accuracy", "0.91", "2 h ago", "/ui/act/promote?basis=6&amp;model=intent%2Fbot-1&amp;version=7",
		"/ui/act/unpin?model=intent%2Fbot-1", "Retrain", `name="awaiting" value="true" checked`, "after=0.intent%2Fbot-1", "All models")
	if strings.Contains(body, "000\u202f001") {
		t.Error("the number of examples is no main metric")
	}
}

func TestModelsSayWhyThereAreNone(t *testing.T) {
	t.Parallel()
	d := open(t, fakeAPI{"GET /api/v1/models": api.Models{}})
	mustHave(t, fetch(d, "/ui/models").Body.String(), "No models yet", "tidemill runs start")
	mustHave(t, fetch(d, "/ui/models?pinned=true").Body.String(), "No model matches this filter")
}

// figures returns the figures of a classifier from a matrix of counts. Row i is true class i.
func figures(labels []string, cells ...[]int) *tidemill.Figures {
	f := &tidemill.Figures{Accuracy: tidemill.Estimate{Value: 0.8, Low: 0.75, High: 0.84}, MacroF1: tidemill.Estimate{Value: 0.7, Low: 0.6, High: 0.8}}
	for i, label := range labels {
		f.Classes = append(f.Classes, tidemill.Class{Label: label})
		for j, n := range cells[i] {
			f.Examples += n
			f.Classes[i].Support += n
			if n > 0 {
				f.Cells = append(f.Cells, tidemill.Cell{Truth: i, Predicted: j, Count: n})
			}
		}
	}
	return f
}

// modelAPI answers GET /api/v1/model with all versions, or with the requested one.
type modelAPI struct {
	fakeAPI
	whole api.ModelWhole
}

func (m modelAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	which := r.URL.Query().Get("version")
	answer := m.whole
	if which != "" {
		answer.All = nil
		n := m.whole.Which(which)
		if n == 0 {
			n, _ = strconv.Atoi(which)
		}
		for _, v := range m.whole.All {
			if v.Number == n {
				answer.All = append(answer.All, v)
			}
		}
	}
	all := fakeAPI{"GET /api/v1/model": answer}
	if which != "" && len(answer.All) == 0 {
		all["GET /api/v1/model"] = &api.Problem{Status: http.StatusNotFound, Title: "there is no such version", Detail: which}
	}
	for path, body := range m.fakeAPI {
		all[path] = body
	}
	all.ServeHTTP(w, r)
}

// oneModel is a model with a refused version 3, the champion 2 and its predecessor 1.
func oneModel(name string) modelAPI {
	labels := []string{"greet", "order " + name}
	var all []api.ModelVersion
	var held []fold.Held
	for n := 3; n > 0; n-- {
		v := tidemill.Version{Model: name, Number: n, At: testNow().Add(-time.Duration(n) * time.Hour), Metrics: map[string]float64{"accuracy": 0.7 + 0.05*float64(n)},
			Judge: tidemill.Judge{Gate: []string{"metrics.accuracy >= 0.75"}}}
		v.Run = "run" + strconv.Itoa(n)
		report := &tidemill.Report{Metrics: v.Metrics, Measured: figures(labels, []int{8, 2}, []int{n, 10 - n}), Notes: []string{name}}
		if n == 3 {
			report.Champion = &tidemill.Beside{Version: 2, Metrics: map[string]float64{"accuracy": 0.81}, Measured: figures(labels, []int{9, 1}, []int{1, 9}),
				Lead: &tidemill.Estimate{Value: 0.04, Low: -0.01, High: 0.09}}
		}
		all = append(all, api.ModelVersion{Version: v, State: tidemill.VersionPromoted, Measured: report, Judgement: &tidemill.Judgement{Passed: n < 3, Sentence: "judged " + name,
			Clauses: []tidemill.Clause{{Text: "metrics.accuracy >= 0.75", Passed: n < 3, Values: map[string]float64{"metrics.accuracy": 0.83}, Note: "note of " + name}}}})
		held = append([]fold.Held{{Number: n, Run: v.Run}}, held...)
	}
	all[0].State = tidemill.VersionRefused
	m := fold.Model{Name: name, Key: "bot-1", Recipe: "intent", Last: 3, Champion: 2, Previous: 1, Versions: held, Pin: &fold.Pin{At: testNow(), By: "ana", Reason: name},
		Changes: []fold.Change{{At: testNow(), Action: tidemill.ActionPromote, Version: 2, Before: 1, By: "ana", Reason: name}}}
	return modelAPI{fakeAPI{"GET /api/v1/caller": everyRole(), "GET /api/v1/model/files": api.ArtifactFiles{Model: name, Version: 3, Files: []api.File{{Path: "model.onnx", Digest: strings.Repeat("ab", 32), Size: 10}}}},
		api.ModelWhole{Model: m, All: all}}
}

func openModel(t *testing.T, m modelAPI) *Dashboard {
	t.Helper()
	d := New(Options{API: m, Install: func() string { return "acme-lab" }, Now: testNow})
	return d
}

func TestModelShowsItsVersionsAndJudgement(t *testing.T) {
	t.Parallel()
	d := openModel(t, oneModel("intent/bot-1"))
	body := fetch(d, "/ui/model?name=intent/bot-1").Body.String()
	mustHave(t, body, "Version 2 is the champion", "The newest, version 3, is", "judged intent/bot-1", "metrics.accuracy &gt;= 0.75", "note of", "pinned", ">ana</bdi>",
		"/ui/act/promote?basis=2&amp;model=intent%2Fbot-1&amp;version=3", "Promote version 3", "Roll back to version 1", "Unpin", "Forget the key", "/ui/act/start-runs?key=bot-1&amp;recipe=intent",
		"Lead in accuracy: <strong>+0.04</strong>", "between −0.01 and +0.09", "same examples", "0.75 to 0.84", "the gate asks for &gt;= 0.75", "(0.75 to 0.84)",
		"Rows: true class. Columns: predicted class.", "abababab", `href="/ui/lineage?of=model%2Fintent%2Fbot-1%403"`, "signature=1")
}

// A running trial is on the page with its bounds, and so is a canary.
func TestModelShowsItsTrialAndCanary(t *testing.T) {
	t.Parallel()
	m := oneModel("intent/bot-1")
	m.whole.All[0].State, m.whole.All[0].OnTrial = tidemill.VersionTrial, &api.Trial{Version: 3, Champion: 2, Scorer: "intents", Began: testNow(), Text: "412 of 500 labelled, lead 0.8 points (-0.4 to 2.1)", Error: "the store is <away>"}
	m.whole.Canary = &fold.Canary{Version: 1, At: testNow(), Canary: tidemill.Canary{Share: 0.1}}
	mustHave(t, fetch(openModel(t, m), "/ui/model?name=intent/bot-1").Body.String(), "on-trial", "Version 3 answers the events of", `href="/ui/scorers/intents"`, "412 of 500 labelled", "next to version 2", `href="/ui/trial?model=intent%2Fbot-1&amp;version=3"`,
		"the store is &lt;away&gt;", "Version 1 answers 10 % of the events since", "/ui/act/rollback?model=intent%2Fbot-1&amp;version=1")
}

// The page compares with the champion as the run measured it. Any other version is compared by its own report.
func TestModelComparesTwoVersions(t *testing.T) {
	t.Parallel()
	d := openModel(t, oneModel("intent/bot-1"))
	region := func(query string) string {
		return fetch(d, "/ui/model?name=intent/bot-1"+query, headerRegion, "judged").Body.String()
	}
	mustHave(t, region(""), "Version 3 against version 2", ">−1<", ">+2<", `class="bad4"`) // 8-9 and 3-1
	mustHave(t, region("&version=3&against=1"), "Version 3 against version 1", "by its own run")
	mustHave(t, region("&version=champion"), "Version 2 against version 1")
	if got := fetch(d, "/ui/model?name=intent/bot-1&version=9").Code; got != http.StatusNotFound {
		t.Errorf("an unknown version: %d", got)
	}
	if to := fetch(d, "/ui/model?name="+url.QueryEscape("intent/bot-1@2")).Header().Get("Location"); to != "/ui/model?name=intent%2Fbot-1&version=2" {
		t.Errorf("the name of a version leads to %q", to)
	}
}

// The buttons and links of a model whose name ends like that of a version are about this model.
func TestModelWhoseNameEndsLikeAVersion(t *testing.T) {
	t.Parallel()
	d := openModel(t, oneModel("intent/ana@3"))
	mustHave(t, fetch(d, modelURL("intent/ana@3")).Body.String(), "/ui/act/promote?basis=2&amp;model=intent%2Fana%403%40&amp;version=3", "/ui/act/unpin?model=intent%2Fana%403%40",
		`href="/ui/lineage?of=model%2Fintent%2Fana%403%40"`)
	if model, version := splitVersion(arguments{url.Values{"model": {"intent/ana@3@"}, "version": {"1"}}}); model != "intent/ana@3" || version != "1" {
		t.Errorf("version %s of %s", version, model)
	}
	if got := versionOf(arguments{url.Values{"model": {"intent/ana@3@"}}}); got != "intent/ana@3@" {
		t.Errorf("the command is about %s", got)
	}
}

// The inputs and outputs need the model to be loaded, so a page shows them only on demand.
func TestModelShowsItsSignatureOnDemand(t *testing.T) {
	t.Parallel()
	m := oneModel("intent/bot-1")
	m.fakeAPI["GET /v2/models/intent/bot-1/versions/3"] = map[string]any{"name": "x", "inputs": []any{map[string]any{"name": "text", "datatype": "BYTES", "shape": []int{-1}}}}
	d := openModel(t, m)
	mustHave(t, fetch(d, "/ui/model?name=intent/bot-1&signature=1", headerRegion, "files").Body.String(), ">text</bdi>", "BYTES", "[-1]")
	delete(m.fakeAPI, "GET /v2/models/intent/bot-1/versions/3")
	mustHave(t, fetch(d, "/ui/model?name=intent/bot-1&signature=1", headerRegion, "files").Body.String(), "/v2/models/intent/bot-1", "model.onnx")
}

func TestModelsWithHostileNamesAreText(t *testing.T) {
	t.Parallel()
	for _, name := range hostile() {
		m := oneModel(name)
		m.fakeAPI["GET /api/v1/models"] = api.Models{Models: []api.ModelShown{shownModel(name)}}
		d := openModel(t, m)
		for _, path := range []string{"/ui/models", "/ui/model?name=x"} {
			body := fetch(d, path).Body.String()
			mustBeText(t, body)
			mustHave(t, body, "</html>")
		}
	}
}

// A model may answer without a label. Its class has a name in the tables, too.
func TestAnswersWithoutALabelHaveAName(t *testing.T) {
	t.Parallel()
	c := confusionOf(figures([]string{"", "refund"}, []int{0, 0}, []int{3, 0}), nil)
	var b strings.Builder
	if err := c.Own.node("This version", true).Render(&b); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(b.String(), "no label"); n != 2 {
		t.Errorf("%d headers name it: %s", n, b.String())
	}
}

// A model with many classes shows those with the most wrong examples.
func TestConfusionOfManyClassesIsLimited(t *testing.T) {
	t.Parallel()
	const n = 40
	labels, cells := make([]string, n), make([][]int, n)
	for i := range n {
		labels[i], cells[i] = "class-"+strconv.Itoa(100+i), make([]int, n)
		cells[i][i] = 10
	}
	cells[30][31] = 7
	c := confusionOf(figures(labels, cells...), nil)
	if len(c.Own.Labels) != mostClasses || !c.Limited || c.Classes != n || c.Theirs != nil {
		t.Fatalf("it is %+v", c)
	}
	if c.Pairs[0] != (confusedPair{"class-130", "class-131", 7, 0}) || !strings.Contains(strings.Join(c.Own.Labels, " "), "class-130 class-131") {
		t.Errorf("pairs %v, labels %v", c.Pairs, c.Own.Labels)
	}
}

// Counts of different examples cannot be subtracted, so the difference is in percentage points.
func TestConfusionOfOtherExamplesIsInPoints(t *testing.T) {
	t.Parallel()
	labels := []string{"a", "b"}
	c := confusionOf(figures(labels, []int{10, 0}, []int{0, 10}), figures(labels, []int{15, 5}, []int{0, 10}))
	if got := c.Difference.Rows[0].Cells; !c.Points || got[0] != (matrixCell{"+25.0", "good4"}) || got[1] != (matrixCell{"−25.0", "good4"}) {
		t.Errorf("%+v", got)
	}
	if same := confusionOf(figures(labels, []int{10, 0}, []int{0, 10}), figures(labels, []int{9, 1}, []int{0, 10})); same.Points || same.Difference.Rows[0].Cells[0].Text != "+1" {
		t.Errorf("%+v", same.Difference)
	}
}

func TestThresholdOfAGate(t *testing.T) {
	t.Parallel()
	gate := []string{"metrics.accuracy >= champion.metrics.accuracy - 0.01", "metrics.accuracy >= 0.85", "metrics.loss < 1"}
	if limit, _, ok := threshold(gate, "accuracy"); !ok || limit != 0.85 {
		t.Errorf("%v, %v", limit, ok)
	}
	if _, _, ok := threshold(gate, "f1"); ok {
		t.Error("a metric without a clause has a limit")
	}
}

// goneAPI answers for one version as the gateway does if the version is removed during the answer: with the model, and
// without the version.
type goneAPI struct{ modelAPI }

func (g goneAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/api/v1/model" && r.URL.Query().Has("version") {
		answer := g.whole
		answer.All = nil
		fakeAPI{"GET /api/v1/model": answer}.ServeHTTP(w, r)
		return
	}
	g.modelAPI.ServeHTTP(w, r)
}

// A version may be removed while a page asks for it. The page says so, and the process goes on.
func TestVersionIsRemovedMeanwhile(t *testing.T) {
	t.Parallel()
	m := approvalsAPI("intent/bot-1")
	m.fakeAPI["GET /api/v1/caller"] = everyRole()
	d := New(Options{API: goneAPI{m}, Install: func() string { return "acme-lab" }, Now: testNow})
	mustHave(t, fetch(d, "/ui/approvals").Body.String(), "No versions on this page.", "pool small paused")
	mustHave(t, fetch(d, "/ui/model?name=intent/bot-1&version=3").Body.String(), "was removed meanwhile", "Changes of the champion")
}

// A panic in one of the parts that are asked at once ends this request alone.
func TestPanicOfAPartEndsItsRequest(t *testing.T) {
	t.Parallel()
	answers := oneDataset("bots/bot-1")
	answers["GET /api/v1/caller"] = everyRole()
	d := New(Options{API: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/data/commit" {
			panic("a fault")
		}
		answers.ServeHTTP(w, r)
	}), Install: func() string { return "" }})
	defer func() {
		if cause := recover(); cause != "a fault" {
			t.Errorf("the request ends with %v", cause)
		}
	}()
	fetch(d, "/ui/data")
}

// The files of a page are not all files, so their number and size are called those of the page.
func TestFilesOfAPageAreCalledSo(t *testing.T) {
	t.Parallel()
	m := oneModel("intent/bot-1")
	all := m.fakeAPI["GET /api/v1/model/files"].(api.ArtifactFiles)
	mustHave(t, fetch(openModel(t, m), "/ui/model?name=intent/bot-1", headerRegion, "files").Body.String(), ">1, 10 B<")
	all.Next = "model.onnx"
	m.fakeAPI["GET /api/v1/model/files"], m.fakeAPI["GET /api/v1/runs/r/files"] = all, all
	for _, path := range []string{"/ui/model?name=intent/bot-1", "/ui/runs/r", "/ui/runs/r?after=a"} {
		mustHave(t, fetch(openModel(t, m), path, headerRegion, "files").Body.String(), ">1 on this page, 10 B<", "after=model.onnx")
	}
	mustHave(t, fetch(openModel(t, m), "/ui/runs/r?after=a", headerRegion, "files").Body.String(), "First page")
}
