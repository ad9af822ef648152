package gateway

import (
	"net/http"
	"strings"
	"testing"

	"tidemill.dev"
)

// page fetches a page of the dashboard and checks that it is complete.
func (w *world) page(path string, headers ...string) string {
	w.Helper()
	r := w.do(http.MethodGet, path, "", headers...)
	if r.StatusCode != http.StatusOK || !strings.Contains(r.body, "</html>") || strings.Contains(r.body, `class="problem"`) {
		w.Errorf("%s: %d\n%s", path, r.StatusCode, r.body)
	}
	return r.body
}

func mustShow(t testing.TB, body string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(body, part) {
			t.Errorf("%q is missing in:\n%s", part, body)
		}
	}
}

func TestPagesOfRuns(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	w.startRuns("fraud", "<script>alert(1)</script>")
	ids := w.startRuns("intent", "bot-1")
	w.waitForState(ids["bot-1"], tidemill.RunRunning)
	body := w.page("/ui/runs")
	mustShow(t, body, ids["bot-1"], "bot-1", "small", "intent", "&lt;script&gt;", `href="/ui/runs/`+ids["bot-1"])
	if strings.Contains(body, "<script>alert") {
		t.Error("a key is markup")
	}
	mustShow(t, w.page("/ui/runs/"+ids["bot-1"]), "running", "Cancel", "intent/bot-1")
	w.endAttempt(ids["bot-1"], tidemill.OutcomeSucceeded, "")
	w.waitForState(ids["bot-1"], tidemill.RunSucceeded)
	mustShow(t, w.page("/ui/runs/"+ids["bot-1"]), "succeeded", "accuracy", "model.onnx")
	if r := w.do(http.MethodGet, "/ui/runs/"+strings.Repeat("0", 16), ""); r.StatusCode != http.StatusNotFound || !strings.Contains(r.body, "there is no such run") {
		t.Errorf("an unknown run: %d", r.StatusCode)
	}
}

// The page of a caller has exactly what the API answers to that caller.
func TestPagesHaveTheRightsOfTheirCaller(t *testing.T) {
	t.Parallel()
	guard := openGuard(t, "version: 1\ntokens:\n"+callerLine("ana", "role: read, keys: [bot-1]")+callerLine("max", "role: approve"))
	w := newRuns(t, func(o *Options) { o.Access = guard })
	r := w.post("/api/v1/runs", `{"recipe":"intent","keys":["bot-1","bot-2"]}`, tokenHeader("max")...)
	if r.StatusCode >= 300 {
		t.Fatal(r.body)
	}
	mine := w.page("/ui/runs", tokenHeader("ana")...)
	mustShow(t, mine, "bot-1", "ana", "needs the role operate")
	if strings.Contains(mine, "bot-2") {
		t.Error("a page shows a key that its caller may not see")
	}
	mustShow(t, w.page("/ui/runs", tokenHeader("max")...), "bot-2")
	if body := w.page("/ui/runs"); strings.Contains(body, "bot-1") || !strings.Contains(body, "tm-sign-in") {
		t.Errorf("without a token: %s", body)
	}
}

// A page of another site may not use the dashboard of a gateway without tokens.
func TestPagesRefuseOtherSites(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	for _, headers := range [][]string{{"Host", "evil.example"}, {"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"}} {
		method := http.MethodPost
		if headers[0] == "Host" {
			method = http.MethodGet
		}
		if r := w.do(method, "/ui/runs", "", headers...); r.StatusCode != http.StatusForbidden {
			t.Errorf("%v: %d", headers, r.StatusCode)
		}
	}
}
