package dashboard

import (
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
)

func runFor(t testing.TB, id, commit string, accuracy float64, memory int64) api.RunWhole {
	t.Helper()
	plan := &tidemill.Plan{Command: []string{"python", "train.py"}, Image: "trainer:1", Memory: memory, Env: map[string]string{"LR": "0.1"}, Deadline: time.Hour,
		Inputs: []tidemill.Input{{Name: "examples", Dataset: "chat", Branch: "main", Commit: commit}, {Name: "words", Dataset: "words", Commit: "c0"}}}
	r := api.RunWhole{Plan: plan}
	r.ID, r.Recipe, r.Key, r.State, r.GateMetrics = id, "intent", "bot-1", tidemill.RunSucceeded, []string{"accuracy"}
	r.Asking, r.End = testNow().Add(-time.Hour), testNow().Add(-time.Minute)
	r.Attempts = []tidemill.Attempt{{Number: 1, Started: testNow().Add(-time.Hour)}}
	r.Result = &tidemill.Result{GPUSeconds: 60, Metrics: map[string]float64{"accuracy": accuracy, "a": 1}}
	return r
}

func curvesFor(t testing.TB, id, text string) api.RunCurves {
	t.Helper()
	c := api.RunCurves{Run: id, Source: "progress"}
	if err := json.Unmarshal([]byte(text), &c.Curves); err != nil {
		t.Fatal(err)
	}
	return c
}

func twoRuns(t testing.TB) fakeAPI {
	one, two := runFor(t, "aaaaaaaaaaaaaaaa", "c1", 0.9, 1<<30), runFor(t, "bbbbbbbbbbbbbbbb", "c2", 0.8, 2<<30)
	two.Plan.Env["LR"] = "0.2"
	return fakeAPI{"GET /api/v1/runs/" + one.ID: one, "GET /api/v1/runs/" + two.ID: two,
		"GET /api/v1/runs":                       api.Runs{Runs: []api.RunShown{one.RunShown, two.RunShown}},
		"GET /api/v1/runs/" + one.ID + "/curves": curvesFor(t, one.ID, `[{"name":"f1","gate":true,"points":[[1,0.5],[2,null],[3,0.7],[4,0.9]]},{"name":"loss","points":[[1,3]]}]`),
		"GET /api/v1/runs/" + two.ID + "/curves": curvesFor(t, two.ID, `[{"name":"f1","gate":true,"points":[[1,0.4],[2,0.6]]},{"name":"only","points":[[1,3]]}]`),
	}
}

// A run's page has the chart of the gate's metric. A gap is no line, and the chart is live.
func TestRunHasItsCurves(t *testing.T) {
	t.Parallel()
	d := open(t, twoRuns(t))
	body := fetch(d, "/ui/runs/aaaaaaaaaaaaaaaa").Body.String()
	mustHave(t, body, `data-live="run:aaaaaaaaaaaaaaaa"`, "Learning curves", "<strong>f1</strong>", "0.9 at step 4, between 0.5 and 0.9", "metric=loss",
		`<option value="bbbbbbbbbbbbbbbb">bbbbbbbbbb · bot-1 · succeeded · 1 h ago</option>`)
	if n := strings.Count(body, `<polyline class="curve c0"`); n != 2 {
		t.Errorf("%d lines, want two around the gap", n)
	}
	if strings.Contains(body, "Compared with") {
		t.Error("a run alone is compared")
	}
	region := fetch(d, "/ui/runs/aaaaaaaaaaaaaaaa?metric=loss", headerRegion, "curves").Body.String()
	mustHave(t, region, "<strong>loss</strong>", "3 at step 1")
}

// The second attempt of a run has metrics of its own.
func TestLiveRunHasItsNewestMetrics(t *testing.T) {
	t.Parallel()
	answers := twoRuns(t)
	run := answers["GET /api/v1/runs/aaaaaaaaaaaaaaaa"].(api.RunWhole)
	run.State, run.Result.Metrics, run.Progress = tidemill.RunRunning, nil, &api.Progress{Step: 3, Metrics: map[string]float64{"loss": 0.125}}
	answers["GET /api/v1/runs/aaaaaaaaaaaaaaaa"] = run
	d := open(t, answers)
	mustHave(t, fetch(d, "/ui/runs/aaaaaaaaaaaaaaaa", headerRegion, "run").Body.String(), "<dd>0.125</dd>")
	mustHave(t, fetch(d, "/ui/runs/aaaaaaaaaaaaaaaa?against=bbbbbbbbbbbbbbbb", headerRegion, "comparison").Body.String(), `<td class="num">0.125</td>`)
}

func TestTwoRunsAreCompared(t *testing.T) {
	t.Parallel()
	d := open(t, twoRuns(t))
	body := fetch(d, "/ui/runs/aaaaaaaaaaaaaaaa?against=bbbbbbbbbbbbbbbb").Body.String()
	mustHave(t, body, `data-live="run:aaaaaaaaaaaaaaaa run:bbbbbbbbbbbbbbbb"`, "run bbbbbbbbbb: 0.6 at step 2", `<polyline class="curve c1"`, `class="legend"`,
		"1 of 2 inputs differ. 2 settings differ.", "+0.1 (+12.5 %)", "env.LR", "0.2", "memory", "1 GiB", "2 GiB", `>c2</bdi>`, "metric=only", `selected>bbbbbbbbbb`)
	for _, same := range []string{"train.py</td>", "trainer:1</td>", ">c0</bdi>"} {
		if strings.Contains(body, same) {
			t.Errorf("%s is the same in both, and is listed", same)
		}
	}
	same := fetch(d, "/ui/runs/aaaaaaaaaaaaaaaa?against=aaaaaaaaaaaaaaaa").Body.String()
	mustHave(t, same, "The inputs are the same. Command, image and limits are the same.")
	unknown := fetch(d, "/ui/runs/aaaaaaaaaaaaaaaa?against=cccccccc")
	if unknown.Code != http.StatusNotFound || !strings.Contains(unknown.Body.String(), "bot-1") {
		t.Errorf("an unknown run is compared with %d", unknown.Code)
	}
}

func TestSelectedRunsAreCompared(t *testing.T) {
	t.Parallel()
	d := open(t, twoRuns(t))
	w := fetch(d, "/ui/compare?run=a%2Fa&run=b%26b")
	if w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/ui/runs/a%2Fa?against=b%26b" {
		t.Errorf("%d to %s", w.Code, w.Header().Get("Location"))
	}
	if w := fetch(d, "/ui/compare?run=a"); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "1 runs are selected") {
		t.Errorf("%d", w.Code)
	}
	mustHave(t, fetch(d, "/ui/runs").Body.String(), `<input type="checkbox" name="run" value="aaaaaaaaaaaaaaaa"`, `action="/ui/compare"`)
}

func TestComparedNamesAreText(t *testing.T) {
	t.Parallel()
	for _, name := range hostile() {
		answers := twoRuns(t)
		one := answers["GET /api/v1/runs/aaaaaaaaaaaaaaaa"].(api.RunWhole)
		one.Key, one.Result.Metrics = name, map[string]float64{name: 1}
		one.Plan.Env, one.Plan.Inputs[0] = map[string]string{name: name}, tidemill.Input{Name: name, Dataset: name, Branch: name, Commit: name}
		answers["GET /api/v1/runs/aaaaaaaaaaaaaaaa"] = one
		answers["GET /api/v1/runs"] = api.Runs{Runs: []api.RunShown{one.RunShown}}
		c := answers["GET /api/v1/runs/aaaaaaaaaaaaaaaa/curves"].(api.RunCurves)
		c.Curves[0].Name, c.Note = name, name
		answers["GET /api/v1/runs/aaaaaaaaaaaaaaaa/curves"] = c
		d := open(t, answers)
		for _, region := range []string{"curves", "comparison", "choice"} {
			mustBeText(t, fetch(d, "/ui/runs/aaaaaaaaaaaaaaaa?against=bbbbbbbbbbbbbbbb", headerRegion, region).Body.String())
		}
	}
}

func TestDifferences(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		this, other float64
		want        string
	}{{0.9, 0.9, "same"}, {2, 1, "+1 (+100.0 %)"}, {1, 2, "−1 (−50.0 %)"}, {1, 0, "+1"}, {-1, -2, "+1 (+50.0 %)"}, {1, math.NaN(), ""}, {0, 1e-6, "−1e-06 (−100.0 %)"}} {
		if got := comparedNumbers("x", c.this, c.other).Difference; got != c.want {
			t.Errorf("%g less %g is %q, want %q", c.this, c.other, got, c.want)
		}
	}
	all := []api.RunCurves{{Curves: []api.Curve{{Name: "a"}, {Name: "train.loss"}}}, {Curves: []api.Curve{{Name: "f1", Gate: true}}}}
	for choice, want := range map[string]string{"a": "a", "": "f1", "unknown": "f1"} {
		if got := chosenMetric(choice, all); got != want {
			t.Errorf("%q chooses %q", choice, got)
		}
	}
	if got := chosenMetric("", slices.Delete(all, 1, 2)); got != "train.loss" {
		t.Errorf("without a gate %q is chosen", got)
	}
}
