package gateway

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"tidemill.dev"
)

func TestPageOfAKey(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	const key = "bot <i>1"
	ids := w.startRuns("fraud", key)
	w.judgedVersion(madeVersion{model: "fraud/odd", key: key, run: "r1", recipe: "fraud", accuracy: 0.9, passed: true, report: reportOfTests()})
	w.writeLetter("tell-crm", key, nil)
	w.waitForLetters("?key="+url.QueryEscape(key), 1)
	body := w.page("/ui/key?key=" + url.QueryEscape(key))
	mustShow(t, body, "Key bot &lt;i&gt;1", "1 run<", "1 open dead letter<", ids[key], "fraud/odd@1", "of run r1", "tell-crm", "/ui/act/forget")
	if strings.Contains(body, "<i>") {
		t.Error("a key is markup")
	}
	if r := w.do(http.MethodGet, "/ui/key?key=bot-9", ""); r.StatusCode != http.StatusNotFound || !strings.Contains(r.body, "there is no such key") {
		t.Errorf("an unknown key: %d", r.StatusCode)
	}
}

func TestPagesOfModels(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	w.makeChampions("intent/bot-1", "bot-1", 2)
	w.judgedVersion(madeVersion{model: "intent/bot-1", key: "bot-1", run: "bad", accuracy: 0.3, report: reportOfTests()})
	w.judgedVersion(madeVersion{model: "fraud/shop-1", key: "shop-1", run: "r4", recipe: "fraud", accuracy: 0.9, passed: true, hold: "it is frozen"})
	w.sendModelRequest("pin", `{"model":"intent/bot-1","reason":"<b>until Friday</b>"}`)
	w.appendModel(tidemill.TypeModelDrifted, "drifted", madeVersion{model: "intent/bot-1", key: "bot-1"},
		tidemill.ModelDrifted{Scorer: "intents", Version: 2, Figure: tidemill.FigureLabels, Value: "<i>refund", Before: 0.1, Now: 0.4, Values: 64, Since: "scored/0/17", Evidence: 1e6, Needed: 4000, Alarm: 1})
	mustShow(t, w.page("/ui/model?name=intent/bot-1"), "drifting", "&lt;i&gt;refund", "was 10 %", "is 40 % in the last 64", "scored/0/17")
	mustShow(t, w.page("/ui/key?key=bot-1"), "drifting", "labels: &lt;i&gt;refund was 10 % and is 40 %")
	mustShow(t, w.page("/"), "drifting")
	mustShow(t, w.page("/ui/models"), "drifting", "intent/bot-1", "fraud/shop-1", "it is frozen", "/ui/act/promote")
	if body := w.page("/ui/models?pinned=true"); strings.Contains(body, "fraud/shop-1") || !strings.Contains(body, "intent/bot-1") {
		t.Errorf("the pinned models are:\n%s", body)
	}
	body := w.page("/ui/model?name=intent/bot-1")
	mustShow(t, body, "Version 2 is the champion", "of run bad", "&lt;b&gt;until Friday", "Unpin", "model.onnx", "metrics.accuracy &gt;= 0.5", "Version 3 against version 2", "the gate asks for", "Confusion")
	mustShow(t, w.page("/ui/model?name="+url.QueryEscape("intent/bot-1")+"&version=2&against=1"), "Version 2 against version 1")
	for _, path := range []string{"/ui/model?name=intent/bot-9", "/ui/model?name=intent/bot-1&version=9"} {
		if r := w.do(http.MethodGet, path, ""); r.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %d", path, r.StatusCode)
		}
	}
}
