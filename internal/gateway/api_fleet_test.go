package gateway

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/models/fleet"
)

// makeFleet makes a key in each state for the recipe intent, and two for the recipe fraud, which makes no models.
func (w *runWorld) makeFleet() {
	w.Helper()
	day := 24 * time.Hour
	w.makeChampions("intent/fresh", "fresh", 2)
	w.sendModelRequest("pin", `{"model":"intent/fresh"}`)
	w.judgedVersion(madeVersion{model: "intent/refused", key: "refused", run: "r1", accuracy: 0.9, passed: true})
	w.judgedVersion(madeVersion{model: "intent/refused", key: "refused", run: "r2", accuracy: 0.3})
	w.judgedVersion(madeVersion{model: "intent/awaiting", key: "awaiting", run: "r3", accuracy: 0.9, passed: true, hold: "it is frozen"})
	w.judgedVersion(madeVersion{model: "intent/stale", key: "stale", run: "r4", accuracy: 0.9, passed: true, began: time.Now().Add(-9 * day)})
	w.makeChampions("intent/unserved", "unserved", 1)
	w.appendModel(tidemill.TypeModelUnloadable, "unloadable", madeVersion{model: "intent/unserved", key: "unserved"}, tidemill.ModelUnloadable{Scorer: "intents", Version: 1, Error: "it is cut off"})
	w.makeChampions("intent/drifting", "drifting", 1)
	w.appendModel(tidemill.TypeModelDrifted, "drifted", madeVersion{model: "intent/drifting", key: "drifting"},
		tidemill.ModelDrifted{Scorer: "intents", Version: 1, Figure: tidemill.FigureLabels, Value: "refund", Before: 0.1, Now: 0.4, Values: 64, Since: "scored/0/17", Evidence: 1e6, Needed: 4000, Alarm: 1})
	w.failRun("intent", "failing")
	w.startRuns("intent", "none")
	w.failRun("fraud", "failing")
	good := w.startRuns("fraud", "fresh")["fresh"]
	w.waitForState(good, tidemill.RunRunning)
	w.endAttempt(good, tidemill.OutcomeSucceeded, "")
}

func (w *runWorld) failRun(recipe, key string) {
	w.Helper()
	run := w.startRuns(recipe, key)[key]
	w.waitForState(run, tidemill.RunRunning)
	w.endAttempt(run, tidemill.OutcomeFailed, "it cannot be done")
}

func (w *runWorld) fleet(query string, headers ...string) api.Fleet {
	w.Helper()
	return sendDecoded[api.Fleet](w.world, http.MethodGet, "/api/v1/fleet"+query, "", headers...)
}

func (w *runWorld) fleetKeys(query string, headers ...string) api.FleetKeys {
	w.Helper()
	return sendDecoded[api.FleetKeys](w.world, http.MethodGet, "/api/v1/fleet/keys"+query, "", headers...)
}

// namesOfKeys returns recipe/key of each row.
func namesOfKeys(all []api.FleetKey) (names []string) {
	for i := range all {
		names = append(names, all[i].Recipe+"/"+all[i].Key)
	}
	return names
}

func TestTheFleetIsCounted(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	var names []string
	for _, r := range w.fleet("").Recipes {
		if names = append(names, r.Recipe); r.Total != 0 || len(r.States) != len(api.KeyStates()) {
			t.Errorf("at first it is %+v", r)
		}
	}
	if !slices.Equal(names, []string{"fraud", "intent", "report"}) {
		t.Errorf("the recipes are %v", names)
	}
	w.makeFleet()
	all := w.fleet("")
	intent, fraud := all.Recipes[1], all.Recipes[0]
	for _, s := range api.KeyStates() {
		if intent.States[s] != 1 {
			t.Errorf("%d keys are %s: %v", intent.States[s], s, intent.States)
		}
	}
	ages := map[string]int{}
	for _, a := range intent.Ages {
		ages[a.Within] = a.Keys
	}
	if want := map[string]int{"1h": 4, "6h": 0, "1d": 0, "7d": 0, "30d": 1, "older": 0, "none": 3}; !maps.Equal(ages, want) {
		t.Errorf("their ages are %v, want %v", ages, want)
	}
	if !intent.Models || intent.Total != 8 || intent.Pinned != 1 || intent.Running != 1 {
		t.Errorf("intent is %+v", intent)
	}
	if fraud.Models || fraud.Total != 2 || fraud.States[api.KeyFresh] != 1 || fraud.States[api.KeyFailing] != 1 {
		t.Errorf("fraud is %+v", fraud)
	}
	if one := w.fleet("?recipe=intent&stale=30d"); len(one.Recipes) != 1 || one.Recipes[0].States[api.KeyStale] != 0 || one.Recipes[0].States[api.KeyFresh] != 2 || one.Version == all.Version {
		t.Errorf("with another age it is %+v", one)
	}
	if again := w.fleet(""); again.Version != all.Version {
		t.Errorf("nothing has changed, and the version is %s after %s", again.Version, all.Version)
	}
	w.sendModelRequest("unpin", `{"model":"intent/fresh"}`)
	if now := w.fleet(""); now.Version == all.Version || now.Recipes[1].Pinned != 0 {
		t.Errorf("after a change it is %+v", now)
	}
	other := *w.config
	other.Recipes = slices.DeleteFunc(slices.Clone(other.Recipes), func(r config.Recipe) bool { return r.Name != "fraud" })
	w.applyConfig(&other)
	if now := w.fleet("").Recipes; len(now) != 2 || now[1].Recipe != "intent" || now[1].Models {
		t.Errorf("with another config it is %+v", now)
	}
	for query, says := range map[string]string{"?stale=x": "stale: x is not a duration", "?state=fresh": "no such parameter"} {
		w.expectProblem(http.MethodGet, "/api/v1/fleet"+query, "", http.StatusBadRequest, says)
	}
}

func TestKeysOfTheFleetAreListed(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	w.makeFleet()
	byKey := []string{"intent/awaiting", "intent/drifting", "intent/failing", "intent/fresh", "intent/none", "intent/refused", "intent/stale", "intent/unserved"}
	byState := []string{"intent/awaiting", "intent/refused", "intent/failing", "intent/unserved", "intent/none", "intent/drifting", "intent/stale", "intent/fresh"}
	for query, want := range map[string][]string{
		"":                                     append([]string{"fraud/failing", "fraud/fresh"}, byKey...),
		"?recipe=intent":                       byKey,
		"?recipe=intent&sort=state":            byState,
		"?state=drifting":                      {"intent/drifting"},
		"?recipe=intent&state=stale,fresh":     {"intent/fresh", "intent/stale"},
		"?pinned=true":                         {"intent/fresh"},
		"?running=true":                        {"intent/none"},
		"?recipe=fraud&pinned=false":           {"fraud/failing", "fraud/fresh"},
		"?search=SER":                          {"intent/unserved"},
		"?recipe=none":                         nil,
		"?where=state%3D'fresh'":               {"fraud/fresh", "intent/fresh"},
		"?where=age%3E86400":                   {"intent/stale"},
		"?where=newest%3E1":                    {"intent/fresh", "intent/refused"},
		"?where=pinned+OR+running":             {"intent/fresh", "intent/none"},
		"?where=key+LIKE+'f%25'":               {"fraud/failing", "fraud/fresh", "intent/failing", "intent/fresh"},
		"?where=champion%3D0+AND+newest%3D1":   {"intent/awaiting"},
		"?recipe=fraud&sort=-key":              {"fraud/fresh", "fraud/failing"},
		"?recipe=intent&sort=-age&limit=4":     {"intent/awaiting", "intent/failing", "intent/none", "intent/stale"},
		"?sort=-newest&state=refused,fresh":    {"intent/refused", "intent/fresh", "fraud/fresh"},
		"?recipe=intent&at=3&limit=2":          {"intent/fresh", "intent/none"},
		"?recipe=intent&sort=-key&at=7":        {"intent/awaiting"},
		"?recipe=intent&at=8":                  nil,
		"?recipe=intent&stale=30d&state=stale": nil,
	} {
		if got := namesOfKeys(w.fleetKeys(query).Keys); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", query, got, want)
		}
	}
	why := map[string]string{}
	for _, k := range w.fleetKeys("?recipe=intent").Keys {
		why[string(k.State)] = k.Why
	}
	for state, want := range map[string]string{"awaiting": "version 1 waits", "refused": "version 2 ", "failing": "its last run failed", "unserved": "a scorer cannot serve version 1", "drifting": "figures of its answers have drifted",
		"none": "none of its runs has ended", "stale": "its champion was trained 9 days ago", "fresh": ""} {
		if !strings.HasPrefix(why[state], want) || (want == "") != (why[state] == "") {
			t.Errorf("it is %s because %q, want %q", state, why[state], want)
		}
	}
	k := w.fleetKeys("?recipe=intent&search=fresh").Keys[0]
	if k.Model != "intent/fresh" || k.Champion != 2 || k.Newest != 2 || k.NewestState != tidemill.VersionPromoted || k.Began == nil || k.Promoted == nil || k.Registered == nil || !k.Pinned || k.Running || k.Metrics["accuracy"] != 0.9 {
		t.Errorf("it is %+v", k)
	}
	for query, says := range map[string]string{"sort=size": "size is no order", "state=fresh,odd": "odd is no state", "pinned=perhaps": "pinned", "where=(": "where", "after=x": "first page",
		"at=-1": "at", "limit=0": "limit", "x=y": "x", "stale=x": "stale"} {
		w.expectProblem(http.MethodGet, "/api/v1/fleet/keys?"+query, "", http.StatusBadRequest, says)
	}
}

// Pages in any order contain each key once. Changes between two pages lose no other key and repeat none.
func TestPagesOfTheFleet(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	w.makeFleet()
	for _, query := range []string{"sort=key", "sort=-key", "sort=state", "sort=-state", "sort=age", "sort=-age", "sort=newest", "sort=-newest", "recipe=intent&sort=age"} {
		whole, got := namesOfKeys(w.fleetKeys("?"+query).Keys), []string{}
		for after := ""; ; {
			page := w.fleetKeys("?" + query + "&limit=2&after=" + after)
			if page.Index != len(got) || page.Total != len(whole) {
				t.Errorf("%s: a page begins at %d of %d, want %d of %d", query, page.Index, page.Total, len(got), len(whole))
			}
			got = append(got, namesOfKeys(page.Keys)...)
			if after = page.Next; after == "" || len(got) > len(whole) {
				break
			}
		}
		if !slices.Equal(got, whole) {
			t.Errorf("%s: the pages have %v, want %v", query, got, whole)
		}
	}
	first := w.fleetKeys("?recipe=intent&limit=4")
	w.makeChampions("intent/a", "a", 1)   // before the place
	w.makeChampions("intent/zz", "zz", 1) // after it
	w.sendModelRequest("unpin", `{"model":"intent/fresh"}`)
	rest := w.fleetKeys("?recipe=intent&after=" + first.Next)
	want := []string{"intent/none", "intent/refused", "intent/stale", "intent/unserved", "intent/zz"}
	if got := namesOfKeys(rest.Keys); !slices.Equal(got, want) || rest.Index != 5 || rest.Total != 10 {
		t.Errorf("after changes the rest is %v from %d of %d, want %v", got, rest.Index, rest.Total, want)
	}
	w.expectProblem(http.MethodGet, "/api/v1/fleet/keys?sort=age&after="+first.Next, "", http.StatusBadRequest, "first page")
	w.expectProblem(http.MethodGet, "/api/v1/fleet/keys?at=1&after="+first.Next, "", http.StatusBadRequest, "no after")
}

// A cell of the strip is the key at the same index of the list.
func TestTheStripOfTheFleet(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	w.makeFleet()
	for i := range 3 {
		w.makeChampions(fmt.Sprint("intent/x", i), fmt.Sprint("x", i), 1)
	}
	r := w.do(http.MethodGet, "/api/v1/fleet/strip?recipe=intent", "")
	const want = `"total":11,"by":"state","runs":[["awaiting",1],["drifting",1],["failing",1],["fresh",1],["none",1],["refused",1],["stale",1],["unserved",1],["fresh",3]]`
	if !strings.Contains(r.body, want) {
		t.Errorf("the strip is %s", r.body)
	}
	s := decodeReply[api.FleetStrip](w.world, r)
	at := 0
	for _, run := range s.Runs {
		for range run.Keys {
			if k := w.fleetKeys(fmt.Sprint("?recipe=intent&limit=1&at=", at)); k.Index != at || string(k.Keys[0].State) != run.Value {
				t.Errorf("cell %d is %+v, want %s", at, k, run.Value)
			}
			at++
		}
	}
	ages := sendDecoded[api.FleetStrip](w.world, http.MethodGet, "/api/v1/fleet/strip?recipe=intent&by=age", "")
	if got := fmt.Sprint(ages.Runs); got != "[{none 1} {1h 1} {none 1} {1h 1} {none 1} {1h 1} {30d 1} {1h 4}]" || ages.Version == s.Version {
		t.Errorf("by age it is %s", got)
	}
	w.expectProblem(http.MethodGet, "/api/v1/fleet/strip?by=size", "", http.StatusBadRequest, "neither state nor age")
}

// A caller that may read some keys gets the counts, the rows and the cells of those alone.
func TestTheFleetOfACallerWithFewKeys(t *testing.T) {
	t.Parallel()
	own, token := tokenLine("own", "o", "role: read, keys: [stale]")
	op, operator := tokenLine("operator", "p", "role: [operate, approve, read]")
	w := newRuns(t, func(o *Options) { o.Access = openGuard(t, "version: 1\ntokens:\n"+own+op) })
	w.judgedVersion(madeVersion{model: "intent/stale", key: "stale", run: "r1", accuracy: 0.9, passed: true, began: time.Now().Add(-9 * 24 * time.Hour)})
	w.makeChampions("intent/other", "other", 1)
	w.judgedVersion(madeVersion{model: "old/other", key: "other", run: "r2", recipe: "removed", accuracy: 0.9, passed: true})
	if all := w.fleet("", operator...); len(all.Recipes) != 4 || all.Recipes[1].Total != 2 || all.Recipes[2].Recipe != "removed" {
		t.Errorf("an operator sees %+v", all)
	}
	mine := w.fleet("", token...)
	if len(mine.Recipes) != 3 || mine.Recipes[1].Total != 1 || mine.Recipes[1].States[api.KeyStale] != 1 || mine.Recipes[1].States[api.KeyFresh] != 0 {
		t.Errorf("it sees %+v", mine)
	}
	w.makeChampions("intent/other", "other", 1)
	w.makeChampions("intent/third", "third", 1)
	if again := w.fleet("", token...); again.Version != mine.Version {
		t.Error("it learns of changes of other keys")
	}
	if page := w.fleetKeys("?limit=1", token...); !slices.Equal(namesOfKeys(page.Keys), []string{"intent/stale"}) || page.Total != 1 || page.Next != "" {
		t.Errorf("it lists %+v", page)
	}
	if s := sendDecoded[api.FleetStrip](w.world, http.MethodGet, "/api/v1/fleet/strip", "", token...); fmt.Sprint(s.Runs) != "[{stale 1}]" {
		t.Errorf("its strip is %+v", s)
	}
}

// Keys of strangers are answered as they are, in JSON that no browser takes for a page. A key has at most 256 bytes.
func TestStrangeKeysOfTheFleet(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	keys := []string{"<script>alert(1)</script>", "\u202Egnp.exe\u202C", "a b/c?d&e=%00\\\"'", "\u2028", "é́日本", strings.Repeat("k", 256)}
	for i, key := range keys {
		w.judgedVersion(madeVersion{model: fmt.Sprint("intent/m", i), key: key, run: fmt.Sprint("r", i), accuracy: 0.9, passed: true})
	}
	slices.Sort(keys)
	var got []string
	for after := ""; ; {
		r := w.do(http.MethodGet, "/api/v1/fleet/keys?limit=1&after="+after, "")
		if r.StatusCode != http.StatusOK || r.Header.Get("Content-Type") != "application/json" || r.Header.Get("X-Content-Type-Options") != "nosniff" || !json.Valid([]byte(r.body)) {
			t.Fatalf("%d %.200s", r.StatusCode, r.body)
		}
		page := decodeReply[api.FleetKeys](w.world, r)
		for _, k := range page.Keys {
			got = append(got, k.Key)
		}
		if after = page.Next; after == "" || len(got) > len(keys) {
			break
		}
	}
	if !slices.Equal(got, keys) {
		t.Errorf("the keys are %.300q", got)
	}
	if page := w.fleetKeys("?search=" + url.QueryEscape("<SCRIPT>")); len(page.Keys) != 1 || page.Keys[0].Key != "<script>alert(1)</script>" {
		t.Errorf("found: %.300v", page)
	}
}

func TestWhyJudged(t *testing.T) {
	t.Parallel()
	refused := &tidemill.Judgement{Clauses: []tidemill.Clause{{Text: "metrics.f1 > 0", Passed: true},
		{Text: "metrics.accuracy >= champion.metrics.accuracy", Values: map[string]float64{"metrics.accuracy": 0.62, "champion.metrics.accuracy": 0.912345}}}}
	for name, c := range map[string]struct {
		state api.KeyState
		j     *tidemill.Judgement
		want  string
	}{
		"refused":      {api.KeyRefused, refused, "version 4 fails metrics.accuracy >= champion.metrics.accuracy, champion.metrics.accuracy is 0.9123, metrics.accuracy is 0.62"},
		"a note":       {api.KeyRefused, &tidemill.Judgement{Clauses: []tidemill.Clause{{Text: "x", Note: "it has no x"}}}, "version 4 fails x, it has no x"},
		"awaiting":     {api.KeyAwaiting, &tidemill.Judgement{Passed: true, Hold: "promotions are frozen"}, "version 4 waits: promotions are frozen"},
		"other states": {api.KeyStale, refused, ""},
		"not judged":   {api.KeyRefused, nil, ""},
	} {
		if got := whyJudged(&fleet.Row{FleetKey: ledger.FleetKey{Newest: 4}, State: c.state}, c.j); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
