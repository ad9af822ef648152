package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
)

func (w *world) curves(run, query string, headers ...string) api.RunCurves {
	w.Helper()
	return sendDecoded[api.RunCurves](w, http.MethodGet, "/api/v1/runs/"+run+"/curves"+query, "", headers...)
}

func curvesText(t testing.TB, c api.RunCurves) string {
	t.Helper()
	return string(must1(json.Marshal(c.Curves))(t))
}

// The curves of a live run grow with its progress. Those of a success come from its metrics.jsonl, and
// then Redis has no points any more.
func TestCurvesOfARun(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("fit", "bot-1")
	if c := m.curves(a.run, ""); c.Source != "progress" || len(c.Curves) != 0 || c.Run != a.run {
		t.Errorf("before the first step: %+v", c)
	}
	for i := range 3 {
		at := time.Now().Add(time.Duration(i-10) * time.Second).UTC().Format(time.RFC3339)
		if r := a.post("/progress", fmt.Sprintf(`{"time":%q,"step":%d,"metrics":{"loss":0.%d,"<b>":1}}`, at, i+1, 9-i)); r.StatusCode != http.StatusNoContent {
			t.Fatal(r.body)
		}
	}
	c := m.curves(a.run[:shortestID], "?points=10")
	if got := curvesText(t, c); got != `[{"name":"\u003cb\u003e","points":[[1,1],[2,1],[3,1]]},{"name":"loss","points":[[1,0.9],[2,0.8],[3,0.7]]}]` || c.Source != "progress" || c.Steps != 3 {
		t.Errorf("%s of %s, %d steps", got, c.Source, c.Steps)
	}
	a.post("/progress", `{"step":4,"metrics":{"loss":0.1}}`)
	if got := curvesText(t, m.curves(a.run, "")); !strings.Contains(got, "[4,0.1]") {
		t.Errorf("the newest step is missing in %s", got)
	}
	var done api.Finished
	a.postJSON("/finish", api.Finish{Outcome: tidemill.OutcomeSucceeded, Files: []api.File{a.putObject("model.onnx", "m"),
		a.putObject("metrics.jsonl", `{"step":1,"loss":5}`+"\n"+`{"step":2,"loss":NaN}`)}}, &done)
	c = m.curves(a.run, "")
	if got := curvesText(t, c); got != `[{"name":"loss","points":[[1,5],[2,null]]}]` || c.Source != "metrics.jsonl" || c.Steps != 2 {
		t.Errorf("%s of %s, %d steps", got, c.Source, c.Steps)
	}
	if points := must1(m.ledger.Points(t.Context(), a.run))(t); len(points) != 0 {
		t.Errorf("Redis still has %d points", len(points))
	}
}

// A failed run has stored no files. The curves of its progress say how it failed.
func TestCurvesOfAFailure(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("fit", "bot-1")
	a.post("/progress", `{"step":1,"metrics":{"loss":7}}`)
	var done api.Finished
	a.postJSON("/finish", api.Finish{Outcome: tidemill.OutcomeFailed, Permanent: true, Reason: "no", Files: []api.File{}}, &done)
	if got := curvesText(t, m.curves(a.run, "")); done.State != tidemill.RunFailed || got != `[{"name":"loss","points":[[1,7]]}]` {
		t.Errorf("%s: %s", done.State, got)
	}
}

// Only a caller that may see the run gets its curves. For others it does not exist.
func TestCurvesOfSomeKeys(t *testing.T) {
	t.Parallel()
	line, reader := tokenLine("reader", "r", "role: read, keys: [shop-1]")
	w := newRuns(t, nil)
	ids := w.startRuns("fraud", "shop-1", "shop-2")
	for _, id := range ids {
		w.waitForState(id, tidemill.RunRunning)
		w.must(w.ledger.AddPoint(t.Context(), id, time.Now(), []byte(`{"step":1,"metrics":{"loss":1}}`)))
	}
	w.limitTo(line)
	if c := w.curves(ids["shop-1"], "", reader...); len(c.Curves) != 1 {
		t.Errorf("%+v", c)
	}
	if r := w.do(http.MethodGet, "/api/v1/runs/"+ids["shop-2"]+"/curves", "", reader...); r.StatusCode != http.StatusNotFound || strings.Contains(r.body, "loss") {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
}

// A step with very many metrics or long names leaves a small point, with the metrics of the gate.
func TestPointsAreBounded(t *testing.T) {
	t.Parallel()
	step := api.Progress{Step: 1, Metrics: map[string]float64{strings.Repeat("a", 5000): 1, "recall": 0.5}}
	for i := range 200 {
		step.Metrics[fmt.Sprintf("m%03d", i)] = 1.0 / 3
	}
	p := pointOf(&step, []string{"recall"})
	if text := must1(json.Marshal(p))(t); len(p.Metrics) != 20 || p.Metrics["recall"] != 0.5 || len(text) > mostPoint {
		t.Errorf("%s", text)
	}
}

// A large metrics.jsonl is not read into memory, and not all of it is parsed. The answer says so.
func TestCurvesOfALargeFile(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	id := w.startRuns("fraud", "shop-1")["shop-1"]
	w.waitForState(id, tidemill.RunRunning)
	line := `{"loss":0.5,"text":"` + strings.Repeat("x", 1000) + `"}` + "\n"
	tree := w.keepFiles(map[string]string{"metrics.jsonl": strings.Repeat(line, 20_000)})
	run := must1(w.ledger.Run(t.Context(), id))(t)
	must1(w.foreman.Finish(t.Context(), run, 1, tidemill.RunFinished{Attempt: 1, Outcome: tidemill.OutcomeSucceeded, Result: tidemill.Result{Artifact: tree}}))(t)
	c := w.curves(id, "?points=1000")
	if c.Note != "metrics.jsonl has 19 MiB, so only about one line in 3 is shown" || c.Steps > 8000 || len(c.Curves[0].Points) > 1000 {
		t.Errorf("%d steps, note %q", c.Steps, c.Note)
	}
}
