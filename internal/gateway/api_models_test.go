package gateway

import (
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/models/registry"
)

func modelNames(all []api.ModelShown) (names []string) {
	for i := range all {
		names = append(names, all[i].Name)
	}
	return names
}

func TestModelsAreListed(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	w.makeChampions("intent/bot-1", "bot-1", 2)
	w.judgedVersion(madeVersion{model: "intent/bot-2", key: "bot-2", run: "r2", accuracy: 0.3})
	w.judgedVersion(madeVersion{model: "fraud/shop-1", key: "shop-1", run: "r3", recipe: "fraud", accuracy: 0.8, passed: true, began: time.Now().Add(-9 * 24 * time.Hour)})
	w.judgedVersion(madeVersion{model: "fraud/shop-1", key: "shop-1", run: "r4", recipe: "fraud", accuracy: 0.9, passed: true, hold: "it is frozen"})
	w.sendModelRequest("pin", `{"model":"intent/bot-1"}`)
	drifted := tidemill.ModelDrifted{Scorer: "intents", Version: 2, Figure: tidemill.FigureLabels, Value: "refund", Before: 0.1, Now: 0.4, Values: 64, Since: "scored/0/17", Evidence: 1e6, Needed: 4000, Alarm: 1}
	w.appendModel(tidemill.TypeModelDrifted, "drifted", madeVersion{model: "intent/bot-1", key: "bot-1"}, drifted)
	for query, want := range map[string][]string{
		"":                 {"fraud/shop-1", "intent/bot-1", "intent/bot-2"},
		"?prefix=intent/":  {"intent/bot-1", "intent/bot-2"},
		"?recipe=fraud":    {"fraud/shop-1"},
		"?key=bot-2":       {"intent/bot-2"},
		"?awaiting=true":   {"fraud/shop-1"},
		"?awaiting=false":  {"fraud/shop-1", "intent/bot-1", "intent/bot-2"},
		"?pinned=true":     {"intent/bot-1"},
		"?drifting=true":   {"intent/bot-1"},
		"?stale=7d":        {"intent/bot-2", "fraud/shop-1"},
		"?stale=30d":       {"intent/bot-2"},
		"?prefix=nothing/": nil,
	} {
		if got := modelNames(w.listModels(query)); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", query, got, want)
		}
	}
	all := w.listModels("?stale=7d")
	if all[0].Why != "it has no champion: its newest version is refused" || all[1].Why != "its champion was trained 9 days ago, and version 2 is awaiting" {
		t.Errorf("they are stale: %q, %q", all[0].Why, all[1].Why)
	}
	if all[1].Hold != "it is frozen" || all[0].Hold != "" {
		t.Errorf("they wait: %q, %q", all[0].Hold, all[1].Hold)
	}
	one := w.listModels("?key=bot-1")[0]
	if one.Champion != 2 || one.Newest != 2 || one.State != tidemill.VersionPromoted || one.Metrics["accuracy"] != 0.9 || !one.Pinned || one.Promoted == nil || one.Began == nil || one.Versions != 2 || one.Why != "" {
		t.Errorf("it is %+v", one)
	}
	whole := sendDecoded[api.ModelWhole](w.world, http.MethodGet, "/api/v1/model?model=intent/bot-1", "")
	if len(one.Drifts) != 1 || one.Drifts[0].ModelDrifted != drifted || one.Drifts[0].At.IsZero() || !reflect.DeepEqual(whole.Drifts, one.Drifts) {
		t.Errorf("it drifts: %+v, %+v", one.Drifts, whole.Drifts)
	}
	first := sendDecoded[api.Models](w.world, http.MethodGet, "/api/v1/models?limit=2", "")
	rest := sendDecoded[api.Models](w.world, http.MethodGet, "/api/v1/models?limit=2&after="+url.QueryEscape(first.Next), "")
	if got := append(modelNames(first.Models), modelNames(rest.Models)...); len(first.Models) != 2 || len(got) != 3 || rest.Next != "" || first.Total != 3 || rest.Total != 3 {
		t.Errorf("the pages are %v of %d and %d", got, first.Total, rest.Total)
	}
	for query, says := range map[string]string{"limit=0": "limit", "stale=x": "stale: x is not a duration", "pinned=perhaps": "pinned", "after=x": "after", "state=x": "state"} {
		w.expectProblem(http.MethodGet, "/api/v1/models?"+query, "", http.StatusBadRequest, says)
	}
}

// expectProblem expects a problem whose detail contains a text.
func (w *runWorld) expectProblem(method, path, body string, status int, says string, headers ...string) {
	w.Helper()
	r := w.do(method, path, body, headers...)
	if r.StatusCode != status || !strings.Contains(r.body, says) {
		w.Errorf("%s %s %s: %d %s; want %d and %q", method, path, body, r.StatusCode, r.body, status, says)
	}
}

func TestAModelIsShownWithItsVersions(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	w.makeChampions("intent/bot-1", "bot-1", 2)
	w.judgedVersion(madeVersion{model: "intent/bot-1", key: "bot-1", run: "bad", accuracy: 0.3})
	m := w.model("intent/bot-1")
	if len(m.All) != 3 || m.All[0].Number != 3 || m.All[0].State != tidemill.VersionRefused || m.All[0].Judgement.Sentence != "of run bad" || m.All[0].Measured != nil || m.Champion != 2 || m.Previous != 1 {
		t.Errorf("it is %+v", m)
	}
	for which, want := range map[string]int{"champion": 2, "previous": 1, "newest": 3, "1": 1} {
		m := w.model("intent/bot-1&version=" + which)
		if len(m.All) != 1 || m.All[0].Number != want || m.All[0].Measured == nil {
			t.Errorf("@%s is %+v", which, m.All)
		}
	}
	if r := w.model("intent/bot-1&version=2").All[0].Measured; r.Measured.Examples != 2 || r.Champion.Lead.Value != 0.9 {
		t.Errorf("its report is %+v", r)
	}
	if r := w.model("intent/bot-1&version=3").All[0].Measured; len(r.Notes) != 1 || r.Metrics["accuracy"] != 0.3 {
		t.Errorf("a report that is gone is %+v", r)
	}
	for query, status := range map[string]int{"": 400, "?model=/": 400, "?model=intent/bot-9": 404, "?model=intent/bot-1&version=9": 404, "?model=intent/bot-1&version=x": 400, "?model=intent/bot-1&x=y": 400} {
		w.expectProblem(http.MethodGet, "/api/v1/model"+query, "", status, "")
	}
}

func TestAModelIsPromotedRolledBackAndPinned(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	w.makeChampions("intent/bot-1", "bot-1", 2)
	w.judgedVersion(madeVersion{model: "intent/bot-1", key: "bot-1", run: "bad", accuracy: 0.3})
	const one = `"model":"intent/bot-1"`
	w.expectProblem(http.MethodPost, "/api/v1/model/promote", `{`+one+`,"version":3}`, 409, "it was not forced")
	w.expectProblem(http.MethodPost, "/api/v1/model/promote", `{`+one+`,"version":3,"force":true,"basis":1}`, 409, api.ChampionMoved)
	w.expectProblem(http.MethodPost, "/api/v1/model/promote", `{`+one+`,"version":9}`, 404, "not kept")
	w.expectProblem(http.MethodPost, "/api/v1/model/promote", `{`+one+`}`, 400, "give the version")
	w.expectProblem(http.MethodPost, "/api/v1/model/promote", `{"model":"intent/bot-9","version":1}`, 404, api.UnknownModel)
	if done := w.sendModelRequest("promote", `{`+one+`,"version":3,"force":true,"dryRun":true}`); done.Champion != 3 || done.Done != "would have version 3 as its champion, previously version 2" || w.model("intent/bot-1").Champion != 2 {
		t.Errorf("dry: %+v", done)
	}
	if done := w.sendModelRequest("promote", `{`+one+`,"version":3,"force":true,"reason":"it is wanted","basis":2}`); done.Champion != 3 || done.Before != 2 || w.model("intent/bot-1").Champion != 3 {
		t.Errorf("done: %+v", done)
	}
	if c := w.model("intent/bot-1").Changes; c[len(c)-1].Reason != "it is wanted" {
		t.Errorf("the changes are %+v", c)
	}
	if done := w.sendModelRequest("rollback", `{`+one+`}`); done.Champion != 2 || done.Version != 2 || done.Before != 3 {
		t.Errorf("rolled back: %+v", done)
	}
	if done := w.sendModelRequest("pin", `{`+one+`,"version":1,"reason":"the audit"}`); done.Champion != 1 || done.Done != "pinned to version 1, previously version 2" {
		t.Errorf("pinned: %+v", done)
	}
	w.expectProblem(http.MethodPost, "/api/v1/model/rollback", `{`+one+`}`, 409, "is pinned")
	w.expectProblem(http.MethodPost, "/api/v1/model/unpin", `{`+one+`,"version":1}`, 400, "leave it out")
	w.expectProblem(http.MethodPost, "/api/v1/model/pin", `{`+one+`,"force":true}`, 400, "only a promotion is forced")
	if done := w.sendModelRequest("unpin", `{`+one+`}`); done.Champion != 1 || !strings.HasPrefix(done.Done, "unpinned") || w.model("intent/bot-1").Pin != nil {
		t.Errorf("unpinned: %+v", done)
	}
	w.expectProblem(http.MethodPost, "/api/v1/model/refuse", `{`+one+`}`, 400, "give the version to refuse")
	w.expectProblem(http.MethodPost, "/api/v1/model/refuse", `{`+one+`,"version":1}`, 409, "only a version that waits")
	if done := w.sendModelRequest("unpin", `{`+one+`,"basis":7}`); done.Champion != 1 || !strings.HasPrefix(done.Done, "unpinned") {
		t.Errorf("unpinned again: %+v", done)
	}
	w.expectProblem(http.MethodPost, "/api/v1/model/pin", `{`+one+`,"version":-1}`, 400, "from 1")
	w.expectProblem(http.MethodPost, "/api/v1/model/pin", `{`+one+`,"reason":"`+strings.Repeat("x", 1001)+`"}`, 400, "at most 1000")
}

// A rollback without a version has ended a canary, or would end it.
func TestARollbackOfACanaryIsDescribed(t *testing.T) {
	t.Parallel()
	got := registry.Answer{Model: &fold.Model{Name: "m", Champion: 2, Versions: []fold.Held{{Number: 2, State: tidemill.VersionPromoted}, {Number: 3, State: tidemill.VersionRefused}}}, Version: 3, Before: 2}
	for dry, verb := range map[bool]string{false: "has", true: "would have"} {
		if done := doneOfWish(tidemill.ActionRollback, &got, dry); done.Champion != 2 || done.Done != verb+" version 3 refused; its champion is still version 2" {
			t.Errorf("%+v", done)
		}
	}
}

// A request that is sent again with the same Idempotency-Key is one request.
func TestAWishSentAgainIsOne(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	w.makeChampions("intent/bot-1", "bot-1", 3)
	for range 3 {
		if done := w.sendModelRequest("rollback", `{"model":"intent/bot-1"}`, api.HeaderIdempotencyKey, "k"); done.Version != 2 || done.Before != 3 {
			t.Errorf("it is %+v", done)
		}
	}
	if m := w.model("intent/bot-1"); m.Champion != 2 || len(m.Changes) != 4 {
		t.Errorf("the champion is %d, after %d changes", m.Champion, len(m.Changes))
	}
}

func TestManyModelsAreRolledBack(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	w.makeChampions("intent/bot-1", "bot-1", 1)
	w.makeChampions("intent/bot-2", "bot-2", 2)
	w.makeChampions("intent/bot-4", "bot-4", 2)
	w.sendModelRequest("pin", `{"model":"intent/bot-4"}`)
	since := time.Now()
	for i := range 2 {
		for _, n := range []string{"1", "2", "3"} {
			w.judgedVersion(madeVersion{model: "intent/bot-" + n, key: "bot-" + n, run: fmt.Sprintf("new-%d-%s", i, n), began: time.Now().Add(time.Duration(i) * time.Hour), accuracy: 0.95, passed: true})
		}
	}
	at := since.UTC().Format(time.RFC3339Nano)
	ask := func(body string, headers ...string) map[string]api.PromotionDone {
		t.Helper()
		done := map[string]api.PromotionDone{}
		for _, d := range sendDecoded[api.PromotionsDone](w.world, http.MethodPost, "/api/v1/models/rollback", body, headers...).Models {
			done[d.Model] = d
		}
		return done
	}
	dry := ask(`{"recipe":"intent","since":"` + at + `","dryRun":true}`)
	if len(dry) != 3 || dry["intent/bot-1"].Version != 1 || dry["intent/bot-2"].Version != 2 || !dry["intent/bot-3"].Refused || dry["intent/bot-3"].Done != "it has no previous champion" {
		t.Errorf("dry: %+v", dry)
	}
	if m := w.model("intent/bot-2"); m.Champion != 4 {
		t.Errorf("a dry run has made version %d the champion", m.Champion)
	}
	if done := ask(`{"prefix":"intent/","where":"subject = 'bot-1'","since":"` + at + `"}`); len(done) != 1 || done["intent/bot-1"].Champion != 1 || done["intent/bot-1"].Before != 3 {
		t.Errorf("by a condition: %+v", done)
	}
	if done := ask(`{"all":true,"since":"` + at + `","reason":"a bad image"}`); len(done) != 2 || done["intent/bot-2"].Champion != 2 {
		t.Errorf("all: %+v", done)
	}
	if done := ask(`{"all":true,"since":"` + at + `"}`); len(done) != 1 || !done["intent/bot-3"].Refused {
		t.Errorf("again: %+v", done)
	}
	if c := w.model("intent/bot-2").Changes; c[len(c)-1].Action != tidemill.ActionRollback || c[len(c)-1].Reason != "a bad image" {
		t.Errorf("the changes are %+v", c)
	}
	for body, says := range map[string]string{`{"all":true}`: "since", `{"since":"` + at + `"}`: "all: true", `{"since":"2999-01-01T00:00:00Z","all":true}`: "in the future",
		`{"since":"` + at + `","all":true,"recipe":"x"}`: "all: true", `{"since":"` + at + `","where":"x ="}`: "where", `{"since":"` + at + `","all":true,"reason":"` + strings.Repeat("x", 1001) + `"}`: "reason"} {
		w.expectProblem(http.MethodPost, "/api/v1/models/rollback", body, http.StatusBadRequest, says)
	}
}

func TestTheWayBack(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	change := func(minutes, version, before int) fold.Change {
		return fold.Change{At: at.Add(time.Duration(minutes) * time.Minute), Version: version, Before: before}
	}
	held := []fold.Held{{Number: 1}, {Number: 2}, {Number: 3}}
	for name, c := range map[string]struct {
		changes  []fold.Change
		champion int
		to       int
		moved    bool
		not      string
	}{
		"nothing since":            {[]fold.Change{change(-9, 1, 0)}, 1, 0, false, ""},
		"one since":                {[]fold.Change{change(-9, 1, 0), change(1, 2, 1)}, 2, 1, true, ""},
		"at that very time":        {[]fold.Change{change(-9, 1, 0), change(0, 2, 1)}, 2, 1, true, ""},
		"two since":                {[]fold.Change{change(-9, 1, 0), change(1, 2, 1), change(2, 3, 2)}, 3, 1, true, ""},
		"it is that one again":     {[]fold.Change{change(-9, 1, 0), change(1, 2, 1), change(2, 1, 2)}, 1, 1, false, ""},
		"none before":              {[]fold.Change{change(1, 1, 0)}, 1, 0, true, "it has no previous champion"},
		"it is no longer stored":   {[]fold.Change{change(-9, 9, 1), change(1, 2, 9)}, 2, 9, true, "no longer stored"},
		"older changes are unkown": {[]fold.Change{change(1, 3, 2)}, 3, 2, true, "give the version to roll back to"},
	} {
		got, moved := wayBack(&fold.Model{Champion: c.champion, Changes: c.changes, Versions: held}, at)
		if moved != c.moved || moved && got.to != c.to || (got.not == "") != (c.not == "") || !strings.Contains(got.not, c.not) {
			t.Errorf("%s: %+v, %v", name, got, moved)
		}
	}
}

func TestPromotionsAreFrozen(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	freeze := func(what, body string) api.Rested {
		t.Helper()
		return sendDecoded[api.Rested](w.world, http.MethodPost, "/api/v1/promotions/"+what, body)
	}
	frozen := func() (all []string) {
		t.Helper()
		for _, f := range sendDecoded[api.Promotions](w.world, http.MethodGet, "/api/v1/promotions", "").Frozen {
			all = append(all, f.Recipe+": "+f.Reason)
		}
		return all
	}
	if got := frozen(); len(got) != 0 {
		t.Errorf("frozen: %v", got)
	}
	if done := freeze("freeze", `{"recipe":"intent","reason":"an incident"}`); !done.Changed || done.Name != "intent" || done.Position == nil {
		t.Errorf("frozen: %+v", done)
	}
	if done := freeze("freeze", `{"recipe":"intent"}`); done.Changed {
		t.Errorf("frozen again: %+v", done)
	}
	freeze("freeze", `{}`)
	if got := frozen(); !slices.Equal(got, []string{"*: ", "intent: an incident"}) {
		t.Errorf("frozen: %v", got)
	}
	freeze("thaw", `{}`)
	freeze("thaw", `{"recipe":"intent"}`)
	if done := freeze("thaw", `{"recipe":"intent"}`); done.Changed || len(frozen()) != 0 {
		t.Errorf("thawed again: %+v, and %v", done, frozen())
	}
	w.expectProblem(http.MethodPost, "/api/v1/promotions/freeze", `{"recipe":"no"}`, 404, api.UnknownRecipe)
	w.expectProblem(http.MethodPost, "/api/v1/promotions/freeze", `{"reason":"`+strings.Repeat("x", 1001)+`"}`, 400, "at most 1000")
}

// A caller that may approve for some keys sees and changes only those.
func TestModelsOfOtherKeysAreUnknown(t *testing.T) {
	t.Parallel()
	own, ownToken := tokenLine("own", "o", "role: approve, keys: [bot-1]")
	op, operator := tokenLine("operator", "p", "role: operate")
	w := newRuns(t, func(o *Options) { o.Access = openGuard(t, "version: 1\ntokens:\n"+own+op) })
	w.makeChampions("intent/bot-1", "bot-1", 2)
	w.makeChampions("intent/bot-2", "bot-2", 2)
	if got := modelNames(w.listModels("", ownToken...)); !slices.Equal(got, []string{"intent/bot-1"}) {
		t.Errorf("it sees %v", got)
	}
	if page := sendDecoded[api.Models](w.world, http.MethodGet, "/api/v1/models?limit=1", "", ownToken...); len(page.Models) != 1 || page.Next != "" || page.Total != 1 {
		t.Errorf("behind %v there is another page, %q: its place names what this caller may not know of", modelNames(page.Models), page.Next)
	}
	w.expectProblem(http.MethodGet, "/api/v1/model?model=intent/bot-2", "", 404, "you may not see it", ownToken...)
	w.expectProblem(http.MethodPost, "/api/v1/model/rollback", `{"model":"intent/bot-2"}`, 404, "you may not see it", ownToken...)
	w.expectProblem(http.MethodPost, "/api/v1/model/rollback", `{"model":"intent/bot-1"}`, 403, "approve", operator...)
	w.expectProblem(http.MethodPost, "/api/v1/promotions/freeze", `{}`, 403, "for all keys", ownToken...)
	if done := w.sendModelRequest("rollback", `{"model":"intent/bot-1"}`, ownToken...); done.Champion != 1 {
		t.Errorf("it is %+v", done)
	}
	if c := w.model("intent/bot-1", ownToken...).Changes; c[len(c)-1].By != "own" {
		t.Errorf("the changes are %+v", c)
	}
	all := sendDecoded[api.PromotionsDone](w.world, http.MethodPost, "/api/v1/models/rollback", `{"all":true,"since":"2020-01-01T00:00:00Z"}`, ownToken...)
	if len(all.Models) != 1 || all.Models[0].Model != "intent/bot-1" {
		t.Errorf("of all it means %+v", all.Models)
	}
}

// modelAsks get every documented answer about models and promotions.
func (d *testGateways) modelAsks(long, stranger []string) (all []gatewayRequest) {
	d.runs.makeChampions("intent/bot-1", "bot-1", 3)
	d.runs.judgedVersion(madeVersion{model: "intent/bot-1", key: "bot-1", run: "refused", accuracy: 0.3, report: reportOfTests()})
	d.runs.sendModelRequest("pin", `{"model":"intent/bot-1"}`)
	d.runs.makeChampions("intent/bot-2", "bot-2", 3)
	const base = "/api/v1/"
	for _, path := range []string{"models", "models?stale=1s", "model?model=intent/bot-1", "model?model=intent/bot-1&version=newest", "model?model=intent/bot-1&version=champion", "promotions",
		"fleet", "fleet/keys?limit=1", "fleet/strip", "fleet/strip?by=age", "model/files?model=intent/bot-1", "model/file?model=intent/bot-1&version=2&path=model.onnx"} {
		path = base + path
		all = append(all, gatewayRequest{d.open, "GET", path, "", nil, 200}, gatewayRequest{d.guarded, "GET", path, "", d.reader, 200}, gatewayRequest{d.open, "GET", path, "", stranger, 403},
			gatewayRequest{d.guarded, "GET", path, "", d.publisher, 403}, gatewayRequest{d.guarded, "GET", path, "", nil, 401},
			gatewayRequest{d.narrow, "GET", path, "", append(long, d.reader...), 431}, gatewayRequest{d.down, "GET", path, "", nil, 503}, gatewayRequest{d.busy, "GET", path, "", nil, 501})
	}
	const two = `{"model":"intent/bot-2","dryRun":true`
	bodies := map[string]string{"models/rollback": `{"all":true,"since":"2026-01-01T00:00:00Z","dryRun":true}`, "model/promote": two + `,"version":1}`, "model/rollback": two + "}",
		"model/pin": two + "}", "model/unpin": `{"model":"intent/bot-1","dryRun":true}`, "model/refuse": `{"model":"intent/bot-1","version":4,"dryRun":true}`, "promotions/freeze": `{"recipe":"intent","reason":"x"}`, "promotions/thaw": `{"recipe":"intent"}`}
	for path, body := range bodies {
		path = base + path
		all = append(all, gatewayRequest{d.open, "POST", path, body, nil, 200}, gatewayRequest{d.guarded, "POST", path, body, d.approver, 200}, gatewayRequest{d.open, "POST", path, body, stranger, 403},
			gatewayRequest{d.guarded, "POST", path, body, d.operator, 403}, gatewayRequest{d.guarded, "POST", path, body, nil, 401},
			gatewayRequest{d.narrow, "POST", path, body, append(long, d.approver...), 431}, gatewayRequest{d.down, "POST", path, body, nil, 503}, gatewayRequest{d.busy, "POST", path, body, nil, 501},
			gatewayRequest{d.open, "POST", path, "{", nil, 400}, gatewayRequest{d.narrow, "POST", path, strings.Repeat(" ", 120<<10), d.approver, 413},
			gatewayRequest{d.narrow, "POST", path, strings.Repeat(" ", 30<<10), d.approver, 429}, gatewayRequest{d.narrow, "POST", path, "late", d.approver, 408})
	}
	for _, action := range []string{"promote", "refuse", "rollback", "pin", "unpin"} {
		all = append(all, gatewayRequest{d.open, "POST", base + "model/" + action, `{"model":"intent/no"` + map[bool]string{true: `,"version":1`}[action == "promote" || action == "refuse"] + `}`, nil, 404})
	}
	for action, body := range map[string]string{"promote": `{"model":"intent/bot-2","version":3}`, "rollback": `{"model":"intent/bot-1"}`, "pin": `{"model":"intent/bot-2","basis":1}`, "unpin": `{"model":"intent/bot-1","basis":1}`, "refuse": `{"model":"intent/bot-2","version":3}`} {
		all = append(all, gatewayRequest{d.open, "POST", base + "model/" + action, body, nil, 409})
	}
	all = append(all, gatewayRequest{d.open, "GET", base + "model/files?model=intent/no", "", nil, 404})
	all = append(all, d.artifactAsks("model/files?model=intent/bot-1", "model/file?model=intent/bot-1&path=", "model/file?model=intent/bot-1&path=model.onnx")...)
	return append(all, gatewayRequest{d.open, "GET", base + "models?limit=0", "", nil, 400}, gatewayRequest{d.open, "GET", base + "model", "", nil, 400},
		gatewayRequest{d.open, "GET", base + "fleet?stale=x", "", nil, 400}, gatewayRequest{d.open, "GET", base + "fleet/keys?sort=x", "", nil, 400}, gatewayRequest{d.open, "GET", base + "fleet/strip?by=x", "", nil, 400}, gatewayRequest{d.open, "GET", base + "model?model=no", "", nil, 404},
		gatewayRequest{d.open, "POST", base + "promotions/freeze", `{"recipe":"no"}`, nil, 404}, gatewayRequest{d.open, "POST", base + "promotions/thaw", `{"recipe":"no"}`, nil, 404},
		gatewayRequest{d.open, "POST", base + "promotions/freeze", `{}`, nil, 200}, gatewayRequest{d.open, "GET", base + "promotions", "", nil, 200}, gatewayRequest{d.open, "POST", base + "promotions/thaw", `{}`, nil, 200})
}

// artifactAsks returns requests for the files of a version or a run that are not answered with files.
func (d *testGateways) artifactAsks(list, one, whole string) []gatewayRequest {
	const base = "/api/v1/"
	return []gatewayRequest{{d.open, "GET", base + list + sep(list) + "limit=0", "", nil, 400}, {d.open, "GET", base + list + sep(list) + "version=x&x=y", "", nil, 400},
		{d.open, "GET", base + one, "", nil, 400}, {d.open, "GET", base + one + "no", "", nil, 404}, {d.narrow, "GET", base + whole, "", d.reader, 429}}
}

// A model has the live figures of its versions beside the accuracy that its gate has judged.
func TestLiveFiguresAreBesideTheGates(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	v := madeVersion{model: "intent/bot-1", key: "bot-1", run: "r1", accuracy: 0.91, passed: true}
	w.judgedVersion(v)
	at := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	live := tidemill.Measured{Scorer: "intents", Version: 1, Folded: 4, First: at, Last: at, Answers: 1204, Right: 999, Labels: []string{"b", "a"}, Cells: [][3]int{{0, 0, 999}, {1, 0, 205}},
		Bins: make([]tidemill.Bin, 10), Days: []tidemill.Day{{Day: "2026-11-27", Answers: 1204, Right: 999}}}
	live.Bins[9] = tidemill.Bin{Answers: 1204, Right: 999, Score: 1204 * 950_000}
	w.appendModel(tidemill.TypeModelMeasured, "measured", v, live)
	whole := sendDecoded[api.ModelWhole](w.world, http.MethodGet, "/api/v1/model?model=intent%2Fbot-1", "")
	if len(whole.Live) != 1 || whole.Live[0].CalibrationError == nil {
		t.Fatalf("%+v", whole.Live)
	}
	got := whole.Live[0]
	if got.Sentence != "gate said 0.910, live accuracy 0.830 over 1204 answers: 8.0 points lower" || *got.Gate != 0.91 || fmt.Sprintf("%.4f", *got.CalibrationError) != "0.1203" || got.Bins[9].Score != 0.95 ||
		got.Classes[0].Label != "a" || got.Classes[0].Recall.Value != 0 || got.Cells[0] != (tidemill.Cell{Truth: 0, Predicted: 1, Count: 205}) || !slices.Equal(got.Days, live.Days) {
		t.Errorf("%+v", got)
	}
	mustShow(t, w.page("/ui/model?name=intent/bot-1"), "Live", "8.0 points lower", "Calibration", "Answers of version 1", "205")
	mustShow(t, w.page("/ui/key?key=bot-1"), "Live", "8.0 points lower")
}
