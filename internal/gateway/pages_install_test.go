package gateway

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker/embedded"
)

func TestPagesOfScorers(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, testConfig+scorersOfTests, embedded.Options{}, func(o *Options) { o.Score = echoScore })
	mustShow(t, w.page("/ui/scorers"), `href="/ui/scorers/intents"`, "intent/{key}", "messages")
	mustShow(t, w.page("/ui/scorers/intents"), "No values yet", "data.age", "No swap is known")
	form := url.Values{"key": {"bot-1"}, "data": {`{"text":"tracking"}`}}.Encode()
	asked := w.do(http.MethodPost, "/ui/scorers/intents", form, "Content-Type", "application/x-www-form-urlencoded")
	mustShow(t, asked.body, "tracking", "intent/bot-1@7", "tidemill score intents")
	if r := w.do(http.MethodGet, "/ui/scorers/intent", ""); r.StatusCode != http.StatusNotFound {
		t.Errorf("an unknown scorer: %d", r.StatusCode)
	}
}

func TestPagesOfDatasets(t *testing.T) {
	t.Parallel()
	w := newRuns(t, withStore(t, &commitRecorder{}))
	w.committed(api.CommitAsked{Dataset: "bots/bot-1"}, map[string]string{"a.csv": "text,label\nhello,<script>alert(1)</script>\n"})
	done := w.committed(api.CommitAsked{Dataset: "bots/bot-1", Message: "<b>second"}, map[string]string{"b.json": `{"a":1}`})
	mustShow(t, w.page("/ui/data"), "bots/bot-1", done.ID[:12], `href="/ui/data?dataset=bots%2Fbot-1"`)
	mustShow(t, w.page("/ui/data?dataset=bots/bot-1"), done.ID[:12], "&lt;b&gt;second", "Made by")
	mustShow(t, w.page("/ui/data?dataset=bots/bot-1&commit="+done.ID), "a.csv", "b.json", "added", done.Parent[:12])
	table := w.page("/ui/data?dataset=bots/bot-1&commit=" + done.ID + "&path=a.csv")
	mustShow(t, table, "hello</bdi></td>", "&lt;script&gt;")
	if strings.Contains(table, "<script>alert") {
		t.Error("a file is markup")
	}
	if r := w.do(http.MethodGet, "/ui/data?dataset=bots/bot-1&path=c", ""); r.StatusCode != http.StatusNotFound || !strings.Contains(r.body, "a.csv") {
		t.Errorf("an unknown file: %d", r.StatusCode)
	}
}

func TestPagesOfLineage(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	plan := w.page("/ui/lineage")
	mustShow(t, plan, `class="box recipe"`, "recipe intent", "model intent/{key}", "stream events", "starts")
	id := w.startRuns("intent", "bot-1")["bot-1"]
	w.waitForState(id, tidemill.RunRunning)
	mustShow(t, w.page("/ui/lineage?of=run/"+id), `class="box run subject"`, "requested by", `href="/ui/runs/`+id, "No effect is known")
	if r := w.do(http.MethodGet, "/ui/lineage?of=run/zzzzzzzz", ""); r.StatusCode != http.StatusNotFound || !strings.Contains(r.body, `name="of"`) {
		t.Errorf("an unknown run: %d", r.StatusCode)
	}
}

func TestPagesOfHealth(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	body := w.page("/ui/health")
	mustShow(t, body, "gateway", "Version of this gateway", `href="/ui/health/runbooks/scorer-stops"`, "TidemillNothingStarts", "runs wait")
	mustShow(t, w.page("/ui/health/runbooks/scorer-stops"), "TidemillScorerStops")
}
