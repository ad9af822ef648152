package gateway

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
)

func TestARunFromItsStartToItsEnd(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	ids := w.startRuns("intent", "bot-1", "bot-2")
	first, second := ids["bot-1"], ids["bot-2"]
	w.waitUntil("one of them runs", func() bool { return len(w.list("?state=running")) == 1 })
	if w.list("?state=running")[0].ID != first {
		first, second = second, first
	}
	waits := w.waitForState(second, tidemill.RunWaiting)
	if waits.Waits != "for a slot of pool small (1 of 1 in use)" || waits.Plan != nil || waits.Progress != nil {
		t.Errorf("%+v", waits)
	}
	w.must(w.ledger.Tell(t.Context(), first, []byte(`{"time":"2026-11-20T12:00:00Z","attempt":1,"step":3,"total":10,"metrics":{"loss":0.5}}`)))
	runs := w.show(first[:8])
	if runs.ID != first || runs.State != tidemill.RunRunning || runs.Plan == nil || runs.Plan.Pool != "small" || runs.Plan.Model != "intent/"+runs.Key || runs.Waits != "" ||
		runs.Progress == nil || runs.Progress.Step != 3 || runs.Progress.Metrics["loss"] != 0.5 {
		t.Errorf("%+v %+v", runs, runs.Progress)
	}
	var event struct{ Type, Subject, Recipe, ID, Source string }
	w.must(json.Unmarshal(runs.Events[0], &event))
	if len(runs.Events) != 1 || event.Type != tidemill.TypeRunRequested || event.Subject != runs.Key || event.Recipe != "intent" || event.ID != runs.First.ID || event.Source != runs.First.Source {
		t.Errorf("what asked is %s of %+v", runs.Events, runs.First)
	}
	w.endAttempt(first, tidemill.OutcomeSucceeded, "")
	ended := w.waitForState(first, tidemill.RunSucceeded)
	if ended.Plan == nil || ended.Plan.Model != "intent/"+ended.Key || len(ended.Events) != 1 || ended.Result.Metrics["accuracy"] != 0.9 || ended.End.IsZero() || ended.Progress != nil {
		t.Errorf("%+v", ended)
	}
	w.waitForState(second, tidemill.RunRunning)
	w.endAttempt(second, tidemill.OutcomeFailed, "no room")
	if failed := w.waitForState(second, tidemill.RunFailed); failed.Reason != "no room" || len(failed.Attempts) != 1 {
		t.Errorf("%+v", failed)
	}
}

func TestRunsAreListed(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	w.startRuns("fraud", "shop-1", "shop-2", "shop-3")
	other := w.startRuns("intent", "shop-1")["shop-1"]
	w.waitUntil("all run", func() bool { return len(w.list("?state=running")) == 4 })
	w.endAttempt(other, tidemill.OutcomeFailed, "x")
	for query, want := range map[string][]string{
		"":                                   {"shop-1", "shop-1", "shop-2", "shop-3"},
		"?recipe=fraud":                      {"shop-1", "shop-2", "shop-3"},
		"?key=shop-1":                        {"shop-1", "shop-1"},
		"?key=shop-1&recipe=intent":          {"shop-1"},
		"?state=failed,cancelled":            {"shop-1"},
		"?state=running&since=-1h&limit=100": {"shop-1", "shop-2", "shop-3"},
		"?state=waiting":                     nil,
		"?recipe=none":                       nil,
		"?since=2200-01-01T00:00:00Z":        nil,
	} {
		if got := keysOf(w.list(query)); !slices.Equal(got, want) {
			t.Errorf("%s lists %v, not %v", query, got, want)
		}
	}
	if got := w.list("?recipe=intent")[0].GateMetrics; !slices.Equal(got, []string{"recall", "accuracy"}) {
		t.Errorf("its gate names the metrics %q", got)
	}
	var paged []api.RunShown
	for after, pages := "", 1; ; pages++ {
		page := sendDecoded[api.Runs](w.world, http.MethodGet, "/api/v1/runs?limit=3&after="+after, "")
		if paged = append(paged, page.Runs...); page.Total == nil || *page.Total != 4 {
			t.Errorf("the total is %v", page.Total)
		}
		if after = page.Next; after == "" {
			if pages != 2 {
				t.Errorf("%d pages", pages)
			}
			break
		}
	}
	if recent := sendDecoded[api.Runs](w.world, http.MethodGet, "/api/v1/runs?limit=3&since=-1h", ""); recent.Total != nil || recent.Next == "" {
		t.Errorf("there is a total of recent runs, which have no count: %+v", recent)
	}
	if len(paged) != 4 || paged[0].ID != other {
		t.Errorf("the newest of %d is %+v", len(paged), paged[0])
	}
	for query, says := range map[string]string{"?limit=0": "limit", "?limit=1001": "limit", "?state=runing": "runing", "?since=x": "since", "?after=x": "after", "?colour=red": "colour"} {
		wantProblem(t, w.do(http.MethodGet, "/api/v1/runs"+query, ""), http.StatusBadRequest, api.InvalidRequest, says)
	}
	wantProblem(t, w.do(http.MethodGet, "/api/v1/runs/abc", ""), http.StatusBadRequest, api.InvalidRequest, "six letters")
	for _, id := range []string{"aaaaaaaa", strings.Repeat("a", 26), "********", strings.Repeat("a", 300)} {
		wantProblem(t, w.do(http.MethodGet, "/api/v1/runs/"+id, ""), http.StatusNotFound, api.UnknownRun, id[:8])
	}
}

func TestTheSameStartIsDoneOnce(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	w.pauseTarget("/api/v1/recipes/fraud/pause")
	const body = `{"recipe":"fraud","keys":["a","b","a"]}`
	name := []string{api.HeaderIdempotencyKey, "of a test"}
	first := w.asks("/api/v1/runs", body, name...)
	if want := map[string]string{"a": "requested", "b": "requested"}; len(first.Runs) != 2 || !maps.Equal(doneOf(first), want) {
		t.Errorf("%+v", first)
	}
	again := w.asks("/api/v1/runs", body, name...)
	if want := map[string]string{"a": "requested before", "b": "requested before"}; !maps.Equal(doneOf(again), want) || again.Runs[0].Run != first.Runs[0].Run {
		t.Errorf("%+v", again)
	}
	more := w.asks("/api/v1/runs", body)
	if want := map[string]string{"a": "merged", "b": "merged"}; !maps.Equal(doneOf(more), want) || more.Runs[0].Run != first.Runs[0].Run {
		t.Errorf("%+v", more)
	}
	if r := w.show(first.Runs[0].Run); r.Causes != 2 || len(r.Events) != 2 || !strings.HasPrefix(r.Waits, "recipe fraud is paused since ") {
		t.Errorf("%+v", r)
	}
	for after, want := range map[string]map[string]string{"a": {"b": "requested before"}, "aa": {"b": "requested before"}, "b": {}} { // aa was forgotten since the request before
		if rest := w.asks("/api/v1/runs", `{"recipe":"fraud","all":true,"after":"`+after+`"}`, name...); !maps.Equal(doneOf(rest), want) {
			t.Errorf("after %s: %+v", after, rest)
		}
	}
	dry := w.asks("/api/v1/runs", `{"recipe":"fraud","keys":["c"],"dryRun":true}`)
	if doneOf(dry)["c"] != "would be requested" || len(w.list("?key=c")) != 0 {
		t.Errorf("%+v", dry)
	}
}

func TestRunsAreCancelled(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	running := w.startRuns("intent", "bot-1")["bot-1"]
	w.waitForState(running, tidemill.RunRunning)
	ids := w.startRuns("intent", "bot-2", "bot-3", "test-1")
	dry := w.asks("/api/v1/runs/cancel", `{"where":"subject LIKE 'test-%' AND state = 'waiting' AND recipe = 'intent'","dryRun":true}`)
	if want := map[string]string{"test-1": "would be cancelled"}; !maps.Equal(doneOf(dry), want) {
		t.Errorf("%+v", dry)
	}
	one := w.asks("/api/v1/runs/cancel", `{"runs":["`+ids["test-1"][:10]+`","zzzzzzzz"],"reason":"a test"}`)
	if len(one.Runs) != 2 || !one.Runs[0].Refused || !strings.Contains(one.Runs[0].Done, "no run's id") || one.Runs[1].Done != "cancelled" {
		t.Errorf("%+v", one)
	}
	if r := w.waitForState(ids["test-1"], tidemill.RunCancelled); r.Reason != "a test" {
		t.Errorf("%+v", r)
	}
	all := w.asks("/api/v1/runs/cancel", `{"recipe":"intent","reason":"all","first":1000}`) // of several requests it is not the first
	if want := map[string]string{"bot-1": "cancelling", "bot-2": "cancelled", "bot-3": "cancelled"}; !maps.Equal(doneOf(all), want) {
		t.Errorf("%+v", all)
	}
	if r := w.show(running); r.Waits != "for its command to end: cancelled" || r.Cancel.Reason != "all" {
		t.Errorf("%+v", r)
	}
	if again := w.asks("/api/v1/runs/cancel", `{"all":true}`); doneOf(again)["bot-1"] != "it is being cancelled already" || !again.Runs[0].Refused {
		t.Errorf("%+v", again)
	}
	w.endAttempt(running, tidemill.OutcomeCancelled, "SIGTERM")
	w.waitForState(running, tidemill.RunCancelled)
	if late := w.asks("/api/v1/runs/cancel", `{"runs":["`+running+`"]}`); late.Runs[0].Done != "it has ended: cancelled" {
		t.Errorf("%+v", late)
	}
}

func TestRunsAreRetried(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	ids := w.startRuns("fraud", "shop-1", "shop-2", "shop-3")
	for key, id := range ids {
		w.waitForState(id, tidemill.RunRunning)
		outcome := tidemill.OutcomeFailed
		if key == "shop-3" {
			outcome = tidemill.OutcomeSucceeded
		}
		w.endAttempt(id, outcome, "no room")
	}
	w.waitForState(ids["shop-1"], tidemill.RunFailed)
	dry := w.asks("/api/v1/runs/retry", `{"where":"reason = 'no room'","dryRun":true}`)
	if want := map[string]string{"shop-1": "would be requested again", "shop-2": "would be requested again"}; !maps.Equal(doneOf(dry), want) {
		t.Errorf("%+v", dry)
	}
	named := []string{api.HeaderIdempotencyKey, "n"}
	done := w.asks("/api/v1/runs/retry", `{"runs":["`+ids["shop-1"]+`"]}`, named...)
	if done.Runs[0].Done != "requested" || done.Runs[0].Run == ids["shop-1"] {
		t.Fatalf("%+v", done)
	}
	if same := w.asks("/api/v1/runs/retry", `{"runs":["`+ids["shop-1"]+`"]}`, named...); same.Runs[0].Done != "requested before" || same.Runs[0].Run != done.Runs[0].Run {
		t.Errorf("%+v", same)
	}
	old, fresh := w.show(ids["shop-1"]), w.waitForState(done.Runs[0].Run, tidemill.RunRunning)
	if fresh.Again != ids["shop-1"] || !reflect.DeepEqual(fresh.Events, old.Events) || fresh.First == old.First {
		t.Errorf("%+v with %s, once %s", fresh, fresh.Events, old.Events)
	}
	all := w.asks("/api/v1/runs/retry", `{"recipe":"fraud"}`)
	if want := map[string]string{"shop-1": "skipped: run " + fresh.ID + " of its key is running", "shop-2": "requested"}; !maps.Equal(doneOf(all), want) {
		t.Errorf("%+v", all)
	}
	if not := w.asks("/api/v1/runs/retry", `{"runs":["`+fresh.ID+`"]}`); not.Runs[0].Done != "it has not ended: running" || !not.Runs[0].Refused {
		t.Errorf("%+v", not)
	}
	later := w.asks("/api/v1/runs/retry", `{"runs":["`+ids["shop-3"]+`"],"rate":1,"first":3600}`) // the requests before it had 3600 runs
	if r := w.waitForState(later.Runs[0].Run, tidemill.RunWaiting); time.Until(r.Due) < 30*time.Minute {
		t.Errorf("%+v", r)
	}
	c := *w.config
	c.Recipes = nil
	w.applyConfig(&c)
	if gone := w.asks("/api/v1/runs/retry", `{"runs":["`+ids["shop-3"]+`"]}`); !strings.Contains(gone.Runs[0].Done, "no longer in the config") {
		t.Errorf("%+v", gone)
	}
}

func TestWhatIsAskedOfRunsMustBeMeant(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	for body, says := range map[string]string{
		`{}`: "runs", `{"all":true,"key":"a"}`: "all", `{"runs":["abcdef"],"key":"a"}`: "give either", `{"states":["x"]}`: "states",
		`{"all":true,"where":"x ="}`: "runs", `{"where":"x ="}`: "where", `{"all":true,"rate":-1}`: "rate", `{"colour":1}`: "colour",
		`{"all":true,"reason":"` + strings.Repeat("x", mostReason+1) + `"}`: "reason",
	} {
		for _, verb := range []string{"cancel", "retry"} {
			wantProblem(t, w.post("/api/v1/runs/"+verb, body), http.StatusBadRequest, api.InvalidRequest, says)
		}
	}
	wantProblem(t, w.post("/api/v1/runs/cancel", `{"all":true,"rate":1}`), http.StatusBadRequest, api.InvalidRequest, "rate")
	wantProblem(t, w.post("/api/v1/runs/retry", `{"all":true,"reason":"x"}`), http.StatusBadRequest, api.InvalidRequest, "reason")
	wantProblem(t, w.post("/api/v1/runs", `{"recipe":"fraud"}`), http.StatusBadRequest, api.InvalidRequest, "keys")
	wantProblem(t, w.post("/api/v1/runs", `{"recipe":"no","all":true}`), http.StatusNotFound, api.UnknownRecipe, `"no"`)
	wantProblem(t, w.post("/api/v1/runs", `{"recipe":"fraud","keys":["a"],"event":{"id":"1"}}`), http.StatusBadRequest, api.InvalidRequest, "event")
	const event = `{"specversion":"1.0","id":"e-1","source":"/crm","type":"bot-created","commit":"c-1"}`
	if r := w.show(w.asks("/api/v1/runs", `{"recipe":"fraud","keys":["a"],"event":`+event+`}`).Runs[0].Run); len(r.Events) != 1 || string(r.Events[0]) != event {
		t.Errorf("asked for with an event of one's own: %s", r.Events)
	}
	if done := w.asks("/api/v1/runs", `{"recipe":"report"}`); len(done.Runs) != 1 || done.Runs[0].Key != "report" {
		t.Errorf("a recipe without keys: %+v", done)
	}
}

func TestWhoHasSomeKeysHasTheirRuns(t *testing.T) {
	t.Parallel()
	w := newRuns(t, func(o *Options) {
		o.Access = openGuard(t, "version: 1\ntokens:\n"+callerLine("all", "role: operate")+callerLine("one", "role: operate, keys: [shop-1]")+callerLine("bob", "role: read"))
	})
	done := w.asks("/api/v1/runs", `{"recipe":"fraud","keys":["shop-1","shop-2"]}`, tokenHeader("one")...)
	if got := doneOf(done); got["shop-1"] != "requested" || got["shop-2"] != "you may not operate on this key" || !done.Runs[1].Refused {
		t.Fatalf("%+v", done)
	}
	mine := done.Runs[0].Run
	theirs := w.asks("/api/v1/runs", `{"recipe":"fraud","keys":["shop-2"]}`, tokenHeader("all")...).Runs[0].Run
	if r := sendDecoded[api.RunWhole](w.world, http.MethodGet, "/api/v1/runs/"+mine, "", tokenHeader("bob")...); r.By != "one" {
		t.Errorf("asked for by %q", r.By)
	}
	if got := keysOf(w.list("", tokenHeader("one")...)); !slices.Equal(got, []string{"shop-1"}) {
		t.Errorf("it sees %v", got)
	}
	if page := sendDecoded[api.Runs](w.world, http.MethodGet, "/api/v1/runs", "", tokenHeader("one")...); page.Total != nil {
		t.Errorf("it is told of %d runs", *page.Total)
	}
	wantProblem(t, w.do(http.MethodGet, "/api/v1/runs/"+theirs, "", tokenHeader("one")...), http.StatusNotFound, api.UnknownRun, theirs)
	for _, verb := range []string{"cancel", "retry"} {
		if got := w.asks("/api/v1/runs/"+verb, `{"runs":["`+theirs+`"]}`, tokenHeader("one")...); !got.Runs[0].Refused {
			t.Errorf("%s: %+v", verb, got)
		}
		wantProblem(t, w.post("/api/v1/runs/"+verb, `{"all":true}`, tokenHeader("bob")...), http.StatusForbidden, api.Forbidden, "operate")
	}
	if all := w.asks("/api/v1/runs", `{"recipe":"fraud","all":true,"dryRun":true}`, tokenHeader("one")...); len(all.Runs) != 1 || all.Runs[0].Key != "shop-1" {
		t.Errorf("all are %+v", all)
	}
	if got := w.asks("/api/v1/runs/cancel", `{"all":true}`, tokenHeader("one")...); len(got.Runs) != 1 || got.Runs[0].Run != mine {
		t.Errorf("%+v", got)
	}
	const head = `{"recipe":"fraud","keys":["shop-1"],"event":{"specversion":"1.0","id":"e","source":"/crm","type":"bot-created"`
	wantProblem(t, w.post("/api/v1/runs", head+`,"subject":"shop-1","authid":"all"}}`, tokenHeader("one")...), http.StatusForbidden, api.Forbidden, "authid")
	wantProblem(t, w.post("/api/v1/runs", head+`,"subject":"shop-2"}}`, tokenHeader("one")...), http.StatusForbidden, api.Forbidden, "shop-2")
	given := w.asks("/api/v1/runs", head+`,"subject":"shop-1"}}`, tokenHeader("one")...)
	if r := sendDecoded[api.RunWhole](w.world, http.MethodGet, "/api/v1/runs/"+given.Runs[0].Run, "", tokenHeader("bob")...); !strings.Contains(string(r.Events[len(r.Events)-1]), `"authid":"one"`) {
		t.Errorf("the event that was given is %s", r.Events)
	}
	for _, path := range []string{"/api/v1/recipes/fraud/pause", "/api/v1/pools/small/resume"} {
		wantProblem(t, w.post(path, "", tokenHeader("one")...), http.StatusForbidden, api.Forbidden, "for all keys")
	}
}

// A run's command reads its cause, and templates use it. So a caller gives only an event as its cause that it may
// publish.
func TestACauseIsJudgedAsAPublishedEvent(t *testing.T) {
	t.Parallel()
	w := newRuns(t, func(o *Options) {
		o.Access = openGuard(t, "version: 1\ntokens:\n"+callerLine("all", "role: operate")+callerLine("typed", "role: operate, types: [bot-created], sources: [/crm], keys: [shop-1]"))
	})
	w.applyConfig(must1(config.Parse("test.yaml", []byte(testRecipes+"  taking: {key: data.bot, when: [{type: bot-created}], run: {dir: ., command: [a]}}\n")))(t))
	start := func(caller, event string) reply {
		return w.post("/api/v1/runs", `{"recipe":"fraud","keys":["shop-1"],"event":{"specversion":"1.0","id":"f",`+event+`}}`, tokenHeader(caller)...)
	}
	const own = `"type":"bot-created","source":"/crm","subject":"shop-1"`
	for event, says := range map[string]string{
		`"type":"tidemill.run.requested","source":"/crm","subject":"shop-1"`:          "only Tidemill may",
		`"type":"schedule-tick","source":"/crm","subject":"shop-1"`:                   "only Tidemill may",
		`"type":"bot-created","source":"/tidemill/tidemill/clock","subject":"shop-1"`: "only Tidemill may",
		`"type":"refund","source":"/crm","subject":"shop-1"`:                          "the type",
		`"type":"bot-created","source":"/erp","subject":"shop-1"`:                     "the source",
		`"type":"bot-created","source":"/crm"`:                                        "give it a subject",
		`"type":"bot-created","source":"/crm","subject":"shop-2"`:                     "shop-2",
		own + `,"partitionkey":"shop-2"`:                                              "the partitionkey",
		own + `,"data":{"bot":"shop-2"}`:                                              "the recipe taking takes its key from data.bot",
	} {
		if r := start("typed", event); r.StatusCode != http.StatusForbidden || !strings.Contains(r.body, says) {
			t.Errorf("a cause with %s: %d %s", event, r.StatusCode, r.body)
		}
	}
	for caller, event := range map[string]string{"typed": own + `,"data":{"bot":"shop-1"}`, "all": `"type":"refund","source":"/erp","subject":"shop-2"`} {
		if r := start(caller, event); r.StatusCode != http.StatusOK {
			t.Errorf("%s gives %s: %d %s", caller, event, r.StatusCode, r.body)
		}
	}
}

// The runs of a recipe without keys have the recipe's name as their key. A caller that was limited
// to report-* read the run and the log of all customers' reports.
func TestRunsWithoutAKeyAreForCallersWithoutLimits(t *testing.T) {
	t.Parallel()
	w := newRuns(t, func(o *Options) {
		o.Access = openGuard(t, "version: 1\ntokens:\n"+callerLine("all", "role: operate")+callerLine("nosy", "role: operate, keys: [\"rep*\", report, all]"))
	})
	if got := w.asks("/api/v1/runs", `{"recipe":"report"}`, tokenHeader("nosy")...); !got.Runs[0].Refused {
		t.Errorf("a limited caller starts it: %+v", got)
	}
	run := w.asks("/api/v1/runs", `{"recipe":"report"}`, tokenHeader("all")...).Runs[0].Run
	for _, path := range []string{"", "/log", "/files"} {
		wantProblem(t, w.do(http.MethodGet, "/api/v1/runs/"+run+path, "", tokenHeader("nosy")...), http.StatusNotFound, api.UnknownRun, run)
	}
	wantProblem(t, w.do(http.MethodGet, "/api/v1/why?of=run/"+run, "", tokenHeader("nosy")...), http.StatusNotFound, api.NotFound, "you may not see it")
	wantProblem(t, w.do(http.MethodGet, "/api/v1/data/log?dataset=reports/all", "", tokenHeader("nosy")...), http.StatusForbidden, api.Forbidden, "recipe without keys")
	if got := keysOf(w.list("", tokenHeader("nosy")...)); len(got) > 0 {
		t.Errorf("it sees %v", got)
	}
	if got := w.asks("/api/v1/runs/cancel", `{"all":true}`, tokenHeader("nosy")...); len(got.Runs) > 0 {
		t.Errorf("it cancels %+v", got)
	}
	const facts = "/api/v1/streams/facts/events?from=beginning&follow=false"
	if r := w.do(http.MethodGet, facts, "", tokenHeader("nosy")...); r.StatusCode != http.StatusOK || strings.Contains(r.body, run) {
		t.Errorf("it reads the facts %d %s", r.StatusCode, r.body)
	}
	if r := w.do(http.MethodGet, facts, "", tokenHeader("all")...); !strings.Contains(r.body, run) {
		t.Errorf("the facts are %d %s", r.StatusCode, r.body)
	}
	if got := keysOf(w.list("", tokenHeader("all")...)); !slices.Equal(got, []string{"report"}) {
		t.Errorf("a caller without limits sees %v", got)
	}
}

// A limit of keys is no right to the events of a trigger, a recipe or a dataset whose name looks like a key.
func TestTailsShowNamesOnlyToReadersOfAllKeys(t *testing.T) {
	t.Parallel()
	w := newRuns(t, func(o *Options) {
		o.Access = openGuard(t, "version: 1\ntokens:\n"+callerLine("all", "role: operate")+callerLine("nosy", "role: read, keys: [\"rep*\", all, small]"))
	})
	w.pauseTarget("/api/v1/pools/small/pause", tokenHeader("all")...)
	publish := func(stream, typ, subject, dataset string) {
		v := broker.View{ID: stream + dataset, Source: "/tidemill/tidemill/test", Type: typ, Subject: subject, Key: []byte(subject)}
		if dataset != "" {
			v.Extensions = []broker.Attribute{{Name: tidemill.AttrDataset, Value: dataset}}
		}
		must1(w.producer.Publish(w.Context(), stream, &v))(w)
	}
	publish(tidemill.StreamClock, tidemill.TypeClockMarked, "report-nightly", "")
	publish(tidemill.StreamGroupOffsets, tidemill.TypeGroupRecorded, "report-nightly", "")
	publish(tidemill.StreamEvents, tidemill.TypeNewData, "all", "reports/all")
	publish(tidemill.StreamEvents, tidemill.TypeNewData, "rep-1", "bots/rep-1")
	for _, c := range []struct {
		stream, event string
		nosy          bool
	}{
		{tidemill.StreamCommands, tidemill.TypePoolPaused, false},
		{tidemill.StreamClock, tidemill.TypeClockMarked, false},
		{tidemill.StreamGroupOffsets, tidemill.TypeGroupRecorded, false},
		{tidemill.StreamEvents, "reports/all", false},
		{tidemill.StreamEvents, "bots/rep-1", true},
	} {
		for caller, sees := range map[string]bool{"all": true, "nosy": c.nosy} {
			r := w.do(http.MethodGet, "/api/v1/streams/"+c.stream+"/events?from=beginning&follow=false", "", tokenHeader(caller)...)
			if r.StatusCode != http.StatusOK || strings.Contains(r.body, c.event) != sees {
				t.Errorf("%s reads %s of %s: %d %s", caller, c.event, c.stream, r.StatusCode, r.body)
			}
		}
	}
}

// An intern could start runs before the runs of all others, and of every recipe.
func TestTeamsLimitRuns(t *testing.T) {
	t.Parallel()
	w := newRuns(t, func(o *Options) {
		o.Access = openGuard(t, "version: 1\ntokens:\n"+callerLine("ada", "role: operate")+callerLine("intern", "role: read, keys: [shop-1]")+callerLine("expert", "role: read")+
			"teams:\n  interns: {keys: [\"shop-*\"], recipes: [fraud], priority: -100, members: [intern]}\n"+
			"  experts: {keys: [\"*\"], recipes: [fraud, \"int*\"], priority: 500, members: [expert]}\n")
	})
	priorityOf := func(run string) int {
		return sendDecoded[api.RunWhole](w.world, http.MethodGet, "/api/v1/runs/"+run, "", tokenHeader("ada")...).Priority
	}
	for _, c := range []struct {
		caller, recipe, key, priority string
		done                          string
		want                          int
	}{
		{"intern", "fraud", "shop-1", "", "requested", -100},
		{"intern", "fraud", "shop-2", `,"priority":-200`, "requested", -200},
		{"intern", "fraud", "shop-3", `,"priority":1`, "you may give this run a priority of at most -100", 0},
		{"intern", "intent", "shop-1", "", `the team interns may not operate on the recipe "intent", only on fraud`, 0},
		{"intern", "fraud", "bot-1", "", "you may not operate on this key", 0},
		{"expert", "fraud", "bot-2", `,"priority":500`, "requested", 500},
		{"expert", "intent", "bot-2", "", "requested", 0},
		{"expert", "intent", "bot-3", `,"priority":501`, "you may give this run a priority of at most 500", 0},
		{"ada", "fraud", "bot-4", `,"priority":1000`, "requested", 1000},
	} {
		done := w.asks("/api/v1/runs", fmt.Sprintf(`{"recipe":%q,"keys":[%q]%s}`, c.recipe, c.key, c.priority), tokenHeader(c.caller)...).Runs[0]
		if !strings.HasPrefix(done.Done, c.done) || done.Refused != (c.done != "requested") {
			t.Errorf("%s starts %s of %s%s: %+v", c.caller, c.recipe, c.key, c.priority, done)
		} else if !done.Refused && priorityOf(done.Run) != c.want {
			t.Errorf("%s starts %s of %s%s with the priority %d, want %d", c.caller, c.recipe, c.key, c.priority, priorityOf(done.Run), c.want)
		}
	}
	theirs := w.asks("/api/v1/runs", `{"recipe":"intent","keys":["shop-9"],"priority":7}`, tokenHeader("ada")...).Runs[0].Run
	for _, verb := range []string{"cancel", "retry"} {
		if got := w.asks("/api/v1/runs/"+verb, `{"runs":["`+theirs+`"]}`, tokenHeader("intern")...); !got.Runs[0].Refused {
			t.Errorf("%s: %+v", verb, got)
		}
	}
	w.asks("/api/v1/runs", `{"recipe":"fraud","keys":["shop-1"]}`, tokenHeader("ada")...) // its live run makes the next one wait
	urgent := w.asks("/api/v1/runs", `{"recipe":"fraud","keys":["shop-1"],"priority":900}`, tokenHeader("ada")...).Runs[0].Run
	if got := w.asks("/api/v1/runs/cancel", `{"runs":["`+urgent+`"]}`, tokenHeader("intern")...); got.Runs[0].Done != "cancelled" {
		t.Errorf("it cancels a run of the recipe: %+v", got)
	}
	if again := w.asks("/api/v1/runs/retry", `{"runs":["`+urgent+`"]}`, tokenHeader("intern")...); again.Runs[0].Refused || priorityOf(again.Runs[0].Run) != -100 {
		t.Errorf("a retry: %+v", again)
	}
	wantProblem(t, w.post("/api/v1/keys/forget", `{"key":"shop-1"}`, tokenHeader("intern")...), http.StatusForbidden, api.Forbidden, "a team's members may not")
	wantProblem(t, w.post("/api/v1/recipes/fraud/pause", "", tokenHeader("expert")...), http.StatusForbidden, api.Forbidden, "for all keys")
}

func TestRecipesAndPoolsRest(t *testing.T) {
	t.Parallel()
	w := newRuns(t, func(o *Options) {
		o.Access = openGuard(t, "version: 1\ntokens:\n"+callerLine("ada", "role: operate"))
	})
	set := func(path string) api.Rested { return w.pauseTarget(path, tokenHeader("ada")...) }
	if yes := set("/api/v1/recipes/fraud/pause"); !yes.Changed || yes.Name != "fraud" || yes.Position.Stream != tidemill.StreamCommands {
		t.Errorf("%+v", yes)
	}
	if again := set("/api/v1/recipes/fraud/pause"); again.Changed || again.Position != nil {
		t.Errorf("%+v", again)
	}
	set("/api/v1/pools/small/pause")
	w.asks("/api/v1/runs", `{"recipe":"fraud","keys":["a","b"]}`, tokenHeader("ada")...)
	inSmall := w.asks("/api/v1/runs", `{"recipe":"intent","keys":["c"]}`, tokenHeader("ada")...).Runs[0].Run
	waits := sendDecoded[api.RunWhole](w.world, http.MethodGet, "/api/v1/runs/"+inSmall, "", tokenHeader("ada")...).Waits
	if !strings.HasPrefix(waits, "pool small is paused by ada since ") {
		t.Errorf("it waits %q", waits)
	}
	recipes := sendDecoded[api.Recipes](w.world, http.MethodGet, "/api/v1/recipes", "", tokenHeader("ada")...).Recipes
	byName := map[string]api.Recipe{}
	for _, r := range recipes {
		byName[r.Name] = r
	}
	if r := byName["fraud"]; r.Keys != 2 || r.Waiting != 2 || r.Running != 0 || r.PausedBy != "ada" || r.PausedSince == nil || r.Pool != "large" || r.Makes != "nothing that is stored" {
		t.Errorf("%+v", r)
	}
	if r := byName["intent"]; len(recipes) != 3 || r.Makes != "model intent/{key}" || r.Team != "chat" || r.PausedSince != nil {
		t.Errorf("%+v", r)
	}
	pools := func() map[string]api.Pool {
		all := map[string]api.Pool{}
		for _, p := range sendDecoded[api.Pools](w.world, http.MethodGet, "/api/v1/pools", "", tokenHeader("ada")...).Pools {
			all[p.Name] = p
		}
		return all
	}
	if all := pools(); all["small"].Slots != 1 || all["small"].Waiting != 1 || all["small"].PausedBy != "ada" || all["large"].Waiting != 2 || all["large"].GPUs != 2 {
		t.Errorf("%+v", all)
	}
	set("/api/v1/recipes/fraud/resume")
	w.waitUntil("what waited runs", func() bool { return pools()["large"].Running == 2 })
	if all := set("/api/v1/pools/small/resume"); !all.Changed {
		t.Errorf("%+v", all)
	}
	w.waitUntil("what waited for the pool runs", func() bool { return pools()["small"].Running == 1 })
	for path, slug := range map[string]string{"/api/v1/recipes/no/pause": api.UnknownRecipe, "/api/v1/pools/no/resume": api.UnknownPool} {
		wantProblem(t, w.post(path, "", tokenHeader("ada")...), http.StatusNotFound, slug, `"no"`)
	}
}

// Before the ledger has read all facts, no request about runs is answered or accepted.
func TestRunsWhileTheLedgerCatchesUp(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	nowhere := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	t.Cleanup(func() { _ = nowhere.Close() })
	names := must1(w.config.Names())(t)
	behind := must1(ledger.Open(t.Context(), ledger.Options{Broker: w.broker, Producer: w.producer, Names: names, Redis: nowhere, Kafka: "test"}))(t)
	t.Cleanup(func() { w.must(behind.Close(t.Context())) })
	g := w.openGateway(w.with(func(o *Options) { o.Ledger = behind }))
	w.url = "http://" + g.Addr()
	for _, path := range []string{"/api/v1/runs", "/api/v1/runs/abcdefgh", "/api/v1/recipes", "/api/v1/pools"} {
		wantProblem(t, w.do(http.MethodGet, path, ""), http.StatusServiceUnavailable, api.Unavailable, "catching up with the facts: 1 of 1 left")
	}
	for path, body := range map[string]string{"/api/v1/runs": `{"recipe":"fraud","all":true}`, "/api/v1/runs/cancel": `{"all":true}`, "/api/v1/runs/retry": `{"runs":["abcdefgh"]}`} {
		wantProblem(t, w.post(path, body), http.StatusServiceUnavailable, api.Unavailable, "catching up with the facts")
	}
}

func TestAGatewayWithoutRuns(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, testRecipes, embedded.Options{}, nil)
	for _, path := range []string{"/api/v1/runs", "/api/v1/runs/abcdefgh", "/api/v1/recipes", "/api/v1/pools"} {
		wantProblem(t, w.do(http.MethodGet, path, ""), http.StatusNotImplemented, api.NoRuns, "--redis")
	}
	for path, body := range map[string]string{"/api/v1/runs": `{"recipe":"fraud","keys":["a"]}`, "/api/v1/runs/cancel": `{"all":true}`, "/api/v1/pools/small/pause": ""} {
		wantProblem(t, w.post(path, body), http.StatusNotImplemented, api.NoRuns, "--redis")
	}
}

// runAsks get every documented answer about runs, recipes and pools.
func (d *testGateways) runAsks(long, stranger []string) (all []gatewayRequest) {
	one := d.runs.startRuns("intent", "bot-1")["bot-1"]
	d.runs.waitForState(one, tidemill.RunRunning)
	d.must(d.runs.ledger.Tell(d.Context(), one, []byte(`{"time":"2026-11-20T12:00:00Z","attempt":1,"step":3,"total":10,"metrics":{"loss":0.5}}`)))
	failed := d.runs.startRuns("fraud", "shop-1")["shop-1"]
	d.runs.waitForState(failed, tidemill.RunRunning)
	d.runs.endAttempt(failed, tidemill.OutcomeFailed, "no room")
	cancelled := d.runs.startRuns("fraud", "shop-2")["shop-2"]
	d.runs.waitForState(cancelled, tidemill.RunRunning)
	d.runs.asks("/api/v1/runs/cancel", `{"runs":["`+cancelled+`"],"reason":"x"}`)
	d.runs.startRuns("intent", "bot-2")
	made := d.runs.startRuns("fraud", "shop-3")["shop-3"]
	d.runs.waitForState(made, tidemill.RunRunning)
	d.runs.endAttempt(made, tidemill.OutcomeSucceeded, "")
	const base = "/api/v1/"
	for _, path := range []string{"runs", "runs/" + one, "recipes", "pools", "runs/" + made + "/curves", "runs/" + made + "/files", "runs/" + made + "/file?path=model.onnx"} {
		path = base + path
		all = append(all, gatewayRequest{d.open, "GET", path, "", nil, 200}, gatewayRequest{d.guarded, "GET", path, "", d.reader, 200}, gatewayRequest{d.open, "GET", path, "", stranger, 403},
			gatewayRequest{d.guarded, "GET", path, "", d.publisher, 403}, gatewayRequest{d.guarded, "GET", path, "", nil, 401},
			gatewayRequest{d.narrow, "GET", path, "", append(long, d.reader...), 431}, gatewayRequest{d.down, "GET", path, "", nil, 503}, gatewayRequest{d.busy, "GET", path, "", nil, 501})
	}
	bodies := map[string]string{"runs": `{"recipe":"fraud","keys":["shop-7"]}`, "runs/cancel": `{"recipe":"intent","reason":"x"}`, "runs/retry": `{"recipe":"fraud"}`,
		"recipes/fraud/pause": "", "recipes/fraud/resume": "", "pools/small/pause": "", "pools/small/resume": ""}
	for path, body := range bodies {
		path = base + path
		all = append(all, gatewayRequest{d.open, "POST", path, body, nil, 200}, gatewayRequest{d.guarded, "POST", path, body, d.operator, 200}, gatewayRequest{d.open, "POST", path, body, stranger, 403},
			gatewayRequest{d.guarded, "POST", path, body, d.reader, 403}, gatewayRequest{d.guarded, "POST", path, body, nil, 401},
			gatewayRequest{d.narrow, "POST", path, body, append(long, d.operator...), 431}, gatewayRequest{d.down, "POST", path, body, nil, 503}, gatewayRequest{d.busy, "POST", path, body, nil, 501})
		if body == "" {
			continue
		}
		all = append(all, gatewayRequest{d.open, "POST", path, "{", nil, 400}, gatewayRequest{d.narrow, "POST", path, strings.Repeat(" ", 120<<10), d.operator, 413},
			gatewayRequest{d.narrow, "POST", path, strings.Repeat(" ", 30<<10), d.operator, 429}, gatewayRequest{d.narrow, "POST", path, "late", d.operator, 408})
	}
	for _, path := range []string{"recipes/no/pause", "recipes/no/resume", "pools/no/pause", "pools/no/resume"} {
		all = append(all, gatewayRequest{d.open, "POST", base + path, "", nil, 404})
	}
	all = append(all, d.whyAsks(one, long, stranger)...)
	all = append(all, d.artifactAsks("runs/"+made+"/files", "runs/"+made+"/file?path=", "runs/"+made+"/file?path=model.onnx")...)
	all = append(all, gatewayRequest{d.open, "GET", base + "runs/" + failed + "/files", "", nil, 404})
	all = append(all, gatewayRequest{d.open, "GET", base + "runs/" + made + "/curves?points=9", "", nil, 400}, gatewayRequest{d.open, "GET", base + "runs/zzzzzzzz/curves", "", nil, 404},
		gatewayRequest{d.narrow, "GET", base + "runs/" + made + "/curves", "", d.reader, 429})
	return append(all, gatewayRequest{d.open, "POST", base + "runs", `{"recipe":"no"}`, nil, 404}, gatewayRequest{d.open, "GET", base + "runs/" + failed, "", nil, 200},
		gatewayRequest{d.open, "GET", base + "runs/" + cancelled, "", nil, 200}, gatewayRequest{d.open, "GET", base + "runs/zzzzzzzz", "", nil, 404},
		gatewayRequest{d.open, "GET", base + "runs/abc", "", nil, 400}, gatewayRequest{d.open, "GET", base + "runs?limit=0", "", nil, 400})
}
