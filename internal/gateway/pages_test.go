package gateway

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

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
	mustShow(t, w.page("/ui/runs/"+ids["bot-1"]), "running", "Cancel", "intent/bot-1", "reported no metrics")
	w.must(w.ledger.AddPoint(t.Context(), ids["bot-1"], time.Now(), []byte(`{"step":7,"metrics":{"loss":0.25}}`)))
	other := w.startRuns("fraud", "<i>")["<i>"]
	w.waitForState(other, tidemill.RunRunning)
	mustShow(t, w.page("/ui/runs/"+ids["bot-1"]+"?against="+other), "0.25 at step 7", "Compared with run", "The inputs are the same", "no values", "&lt;i&gt;")
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

// A page shows answers of unknown length too, such as the events of a stream.
func TestPagesOfStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.post("/events", `{"n": 1}`, eventHeaders("one", "ce-subject", `"><img src=x>`, "Content-Type", "application/json")...)
	mustShow(t, w.page("/ui/streams"), "messages", "events", "/ui/act/publish")
	body := w.page("/ui/streams/events?from=beginning")
	mustShow(t, body, "one", "&#34;&gt;&lt;img", "Partitions"[1:])
	if strings.Contains(body, "<img") {
		t.Error("a subject is markup")
	}
	r := w.do(http.MethodPost, "/ui/act/publish", "type=bot-created&subject=bot-9&data=%7B%22a%22%3A1%7D&request=r1", "Content-Type", "application/x-www-form-urlencoded", "Origin", w.url, "Sec-Fetch-Site", "same-origin")
	mustShow(t, r.body, "The event is stored")
	mustShow(t, w.page("/ui/streams/events?from=beginning"), "bot-created", "bot-9", "/dashboard")
}

func TestPagesOfTriggersAndLetters(t *testing.T) {
	t.Parallel()
	w := newDesk(t, nil)
	id := w.writeLetter("tell-crm", "<script>alert(1)</script>", nil)
	odd := w.writeUndecodable("\u202eodd")
	w.waitUntil("both dead letters are listed", func() bool {
		body := w.do(http.MethodGet, "/ui/dead-letters", "").body
		return strings.Contains(body, id) && strings.Contains(body, odd)
	})
	letters := w.page("/ui/dead-letters")
	mustShow(t, letters, "500 Internal Server Error", "&lt;script&gt;", "/ui/act/drop-letters?all=true")
	whole := w.page("/ui/dead-letters/" + id)
	mustShow(t, whole, "no room", "Ada", "Publish an edited copy", "/ui/act/replay-letters?id="+id)
	strange := w.page("/ui/dead-letters/" + odd)
	for _, body := range []string{letters, whole, strange} {
		if strings.Contains(body, "<script>alert") || strings.Contains(body, "\u202e") {
			t.Errorf("a name is no text:\n%s", body)
		}
	}
	mustShow(t, w.page("/ui/triggers"), "tell-crm", "tell-erp", "nightly", "0 3 * * *", "/ui/act/pause-trigger?trigger=tell-crm")
	mustShow(t, w.page("/ui/triggers/tell-crm"), "exponential", "subject LIKE", id)
	if body := w.page("/ui/triggers/tell-crm"); strings.Contains(body, "hunter2") {
		t.Error("a page shows a secret of a URL")
	}
	mustShow(t, w.page("/ui/act/drop-letters?id="+id), "1 of 1 selected")
	form := "id=" + id + "&reason=a+test&request=r"
	mustShow(t, w.do(http.MethodPost, "/ui/act/drop-letters", form, "Content-Type", "application/x-www-form-urlencoded").body, "Done.", id)
	mustShow(t, w.page("/ui/dead-letters/"+id), "dropped", "a test")
}

// A command on a page acts, and its undo undoes it.
func TestPagesAct(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	act := func(path, form string) string {
		return w.do(http.MethodPost, path, form, "Content-Type", "application/x-www-form-urlencoded").body
	}
	mustShow(t, act("/ui/act/pause-pool", "pool=small"), "It is paused.", `href="/ui/act/resume-pool?pool=small"`)
	mustShow(t, w.page("/ui/runs"), "/ui/act/resume-pool?pool=small", "paused")
	mustShow(t, act("/ui/act/pause-pool", "pool=small"), "nothing has changed")
	mustShow(t, w.page("/ui/act/start-runs?recipe=intent&key=bot-1&key=bot-2"), "2 of 2 runs", "tidemill runs start intent --key bot-1 --key bot-2")
	if all := w.list(""); len(all) != 0 {
		t.Errorf("a dry run has started %d runs", len(all))
	}
	started := act("/ui/act/start-runs", "recipe=intent&key=bot-1%0D%0Abot-2&request=r1")
	mustShow(t, started, "requested", "/ui/act/cancel-runs?run=")
	act("/ui/act/start-runs", "recipe=intent&key=bot-1%0D%0Abot-2&request=r1")
	if all := w.list(""); len(all) != 2 {
		t.Errorf("a form that was sent twice has started %d runs", len(all))
	}
	mustShow(t, act("/ui/act/start-runs", "recipe=none&key=bot-1"), "there is no such recipe", "<form")
	mustShow(t, w.page("/ui/search?q=e"), "results for", "/ui/streams/events", "Recipe")
	mustShow(t, w.page("/ui/search?q=bot-"), "/ui/key?key=bot-1", "/ui/key?key=bot-2")
}

// 64 KiB keys make no page long, and no page fails because of one.
func TestPagesClipLongNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	long := strings.Repeat("k", 60<<10)
	w.post("/events", `{"specversion":"1.0","id":"long","source":"/test","type":"test","subject":"`+long+`"}`, "Content-Type", "application/cloudevents+json")
	if body := w.page("/ui/streams/events?from=beginning"); strings.Count(body, long) > 1 {
		t.Error("a long name is shown outside of its event")
	}
}

// The live connection knows the topics of every page, or the page would never be live.
func TestPagesHaveKnownTopics(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	ids := w.startRuns("intent", "bot-1")
	for _, path := range []string{"/", "/?recipe=intent", "/ui/runs", "/ui/runs/" + ids["bot-1"], "/ui/runs/" + ids["bot-1"] + "?against=" + ids["bot-1"], "/ui/triggers", "/ui/triggers/promote", "/ui/dead-letters", "/ui/streams", "/ui/streams/events"} {
		body := w.do(http.MethodGet, path, "").body
		topics := regexp.MustCompile(`data-live="([^/"]+)"`).FindAllStringSubmatch(body, -1)
		if len(topics) == 0 {
			t.Errorf("%s has no live region", path)
		}
		for _, m := range topics {
			r := w.do(http.MethodGet, "/api/v1/live?follow=false&topics="+url.QueryEscape(strings.ReplaceAll(m[1], " ", ",")), "")
			if r.StatusCode != http.StatusOK {
				t.Errorf("%s: topics %s: %s", path, m[1], r.body)
			}
		}
	}
}
