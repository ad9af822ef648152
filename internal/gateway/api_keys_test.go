package gateway

import (
	"crypto/rand"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/config"
)

// The types about keys have the same fields in openapi.json.
func TestDocumentHasEveryFieldOfKeys(t *testing.T) {
	t.Parallel()
	schemas := loadDocument(t).Components.Schemas
	for name, v := range map[string]any{"KeyAsked": api.KeyAsked{}, "KeyEnd": api.KeyEnd{}, "KeyForgotten": tidemill.KeyForgotten{},
		"GoneRuns": tidemill.GoneRuns{}, "GoneModel": tidemill.GoneModel{}, "GoneDataset": tidemill.GoneDataset{}, "Remains": tidemill.Remains{}} {
		fields := fieldsOf(reflect.TypeOf(v))
		if got := slices.Collect(maps.Keys(schemas[name].Value.Properties)); !haveSame(got, slices.Collect(maps.Keys(fields))) {
			t.Errorf("%s has the fields %v, and in openapi.json %v", name, slices.Sorted(maps.Keys(fields)), slices.Sorted(slices.Values(got)))
		}
		maps.DeleteFunc(fields, func(_ string, always bool) bool { return !always })
		if !haveSame(schemas[name].Value.Required, slices.Collect(maps.Keys(fields))) {
			t.Errorf("%s always has %v, and in openapi.json %v", name, slices.Sorted(maps.Keys(fields)), schemas[name].Value.Required)
		}
	}
}

// The runs of a recipe without keys have the recipe's name as their key. An operator of that key could end it, and so
// remove the recipe's dead letters and the events that wait, and its runs after the recipe has left the config.
func TestKeysWithTheNameOfARecipeNeedAllKeys(t *testing.T) {
	t.Parallel()
	w := newRuns(t, func(o *Options) {
		o.Access = openGuard(t, "version: 1\ntokens:\n"+callerLine("all", "role: operate")+callerLine("nosy", "role: operate, keys: [\"rep*\"]"))
	})
	w.asks("/api/v1/runs", `{"recipe":"report"}`, tokenHeader("all")...)
	end := func(caller, key string) reply {
		return w.post("/events", "{}", append(tokenHeader(caller), "ce-specversion", "1.0", "ce-type", "bot-deleted", "ce-source", "/crm", "ce-id", rand.Text(), "ce-subject", key)...)
	}
	refused := func(when string) {
		for body, r := range map[string]reply{
			"a dry run": w.post("/api/v1/keys/forget", `{"key":"report","dryRun":true}`, tokenHeader("nosy")...),
			"a request": w.post("/api/v1/keys/forget", `{"key":"report"}`, tokenHeader("nosy")...),
			"an event":  end("nosy", "report"),
		} {
			if r.StatusCode != http.StatusForbidden || !strings.Contains(r.body, "a recipe has that name") {
				t.Errorf("%s, %s: %d %s", when, body, r.StatusCode, r.body)
			}
		}
	}
	refused("a recipe of the config")
	without := must1(config.Parse("test.yaml", []byte(testConfig+recipesOfTests[:strings.Index(recipesOfTests, "  report:")])))(t)
	w.applyConfig(without)
	refused("a recipe that has left the config")
	for _, c := range []struct{ caller, key string }{{"nosy", "rep-1"}, {"all", "report"}} {
		if r := end(c.caller, c.key); r.StatusCode != http.StatusAccepted {
			t.Errorf("%s ends %s: %d %s", c.caller, c.key, r.StatusCode, r.body)
		}
		if r := w.post("/api/v1/keys/forget", `{"key":"`+c.key+`","dryRun":true}`, tokenHeader(c.caller)...); r.StatusCode != http.StatusOK {
			t.Errorf("%s asks what %s has: %d %s", c.caller, c.key, r.StatusCode, r.body)
		}
	}
}

// keyAsks get every documented answer about keys.
func (d *testGateways) keyAsks(long, stranger []string) (all []gatewayRequest) {
	const forget, forgotten = "/api/v1/keys/forget", "/api/v1/keys/forgotten/"
	known := "of-a-test"
	d.must(d.runs.store.PutNote(d.Context(), "forgetting-"+known, []byte(`{"key":"bot-9","forgetting":"of-a-test","asked":"2026-11-22T08:00:00Z","runs":[],"models":[],"datasets":[],"letters":0,"remains":[]}`)))
	body := `{"key":"bot-of-nobody","reason":"x"}`
	return append(all,
		gatewayRequest{d.open, "POST", forget, `{"key":"bot/1","dryRun":true}`, nil, 200}, gatewayRequest{d.guarded, "POST", forget, `{"key":"bot-1","dryRun":true}`, d.operator, 200},
		gatewayRequest{d.open, "POST", forget, body, nil, 202}, gatewayRequest{d.open, "POST", forget, "{", nil, 400}, gatewayRequest{d.open, "POST", forget, `{"key":""}`, nil, 400},
		gatewayRequest{d.open, "POST", forget, `{"key":"a","reason":"` + strings.Repeat("x", 1001) + `"}`, nil, 400},
		gatewayRequest{d.open, "POST", forget, body, stranger, 403}, gatewayRequest{d.guarded, "POST", forget, body, d.reader, 403}, gatewayRequest{d.guarded, "POST", forget, body, nil, 401},
		gatewayRequest{d.narrow, "POST", forget, body, append(long, d.operator...), 431}, gatewayRequest{d.down, "POST", forget, body, nil, 503}, gatewayRequest{d.busy, "POST", forget, body, nil, 501},
		gatewayRequest{d.narrow, "POST", forget, strings.Repeat(" ", 120<<10), d.operator, 413}, gatewayRequest{d.narrow, "POST", forget, strings.Repeat(" ", 30<<10), d.operator, 429},
		gatewayRequest{d.narrow, "POST", forget, "late", d.operator, 408},
		gatewayRequest{d.open, "GET", forgotten + known, "", nil, 200}, gatewayRequest{d.guarded, "GET", forgotten + known, "", d.reader, 200}, gatewayRequest{d.open, "GET", forgotten + "no", "", nil, 404},
		gatewayRequest{d.guarded, "GET", forgotten + known, "", d.publisher, 403}, gatewayRequest{d.guarded, "GET", forgotten + known, "", nil, 401},
		gatewayRequest{d.narrow, "GET", forgotten + known, "", append(long, d.reader...), 431}, gatewayRequest{d.busy, "GET", forgotten + known, "", nil, 501},
		gatewayRequest{d.down, "GET", forgotten + "lost", "", nil, 503})
}
