package dashboard

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tidemill.dev/api"
)

// fleetAPI answers with a recipe of 20,000 keys, of which three are refused.
func fleetAPI() fakeAPI {
	began := testNow().Add(-3 * time.Hour)
	recipe := api.FleetRecipe{Recipe: "intent", Models: true, Total: 20000, States: map[api.KeyState]int{api.KeyFresh: 19997, api.KeyRefused: 3}, Pinned: 7,
		Ages: []api.FleetAge{{Within: "1d", Keys: 20000}, {Within: "none", Keys: 0}}}
	keys := []api.FleetKey{{Recipe: "intent", Key: "bot-7", Model: "intent/bot-7", State: api.KeyRefused, Why: "version 4 was refused", Champion: 3, Newest: 4, NewestState: "refused", Began: &began, Metrics: map[string]float64{"accuracy": 0.91}}}
	for _, name := range hostile() {
		keys = append(keys, api.FleetKey{Recipe: "intent", Key: name, Model: "intent/" + name, State: api.KeyNone, Why: name})
	}
	return fakeAPI{
		"GET /api/v1/fleet": api.Fleet{Recipes: []api.FleetRecipe{{Recipe: "clean", States: map[api.KeyState]int{}}, recipe}},
		"GET /api/v1/freshness": api.Freshness{Recipes: []api.RecipeFreshness{{Recipe: "intent", Models: 20, Stages: map[string]*api.Percentiles{
			"total": {P50: 2.35, P99: 61}, "training": {P50: 0.57, P99: 1}, "swapping": nil}}}},
		"GET /api/v1/fleet/strip": api.FleetStrip{Total: 20000, By: "state", Runs: []api.StripRun{{Value: "fresh", Keys: 500}, {Value: "refused", Keys: 3}, {Value: "fresh", Keys: 19497}}},
		"GET /api/v1/fleet/keys":  api.FleetKeys{Total: 3, Next: "cursor", Keys: keys},
	}
}

func TestFleetShowsCountsStripAndKeys(t *testing.T) {
	t.Parallel()
	body := fetch(open(t, fleetAPI()), "/?recipe=intent").Body.String()
	mustHave(t, body, "20\u202f000", `href="/?recipe=intent&amp;state=refused"`, "version 4 was refused", `aria-label="20`+"\u202f"+`000 keys: 3 refused, 19`+"\u202f"+`997 fresh"`,
		`name="key" value="bot-7"`, `aria-sort="ascending"`, "no model", "0.91", "after=cursor", "<b>2.4 s</b> · 1 min")
	mustBeText(t, regexp.MustCompile(`(value|data-key)="[^"]*"`).ReplaceAllString(body, "")) // these have the name itself
	if elements := len(regexp.MustCompile(`<[a-z]`).FindAllString(body, -1)); elements > 1000 {
		t.Errorf("the page of two keys has %d elements", elements)
	}
}

// The strip has a path for each value and not an element for each key.
func TestStripCoversEveryKeyOnce(t *testing.T) {
	t.Parallel()
	for _, total := range []int{1, 79, 80, 81, 20000} {
		s := &api.FleetStrip{Total: total, Runs: []api.StripRun{{Value: "fresh", Keys: total / 3}, {Value: "stale", Keys: total - total/3}}}
		columns, cells := stripColumns(total), map[string]bool{}
		for _, m := range regexp.MustCompile(`M(\d+) (\d+)\.5h(\d+)`).FindAllStringSubmatch(string(drawStrip(s, nil, "")), -1) {
			var x, y, n int
			fmt.Sscan(m[1]+" "+m[2]+" "+m[3], &x, &y, &n)
			for i := range n {
				at := fmt.Sprint(x+i, " ", y)
				if cells[at] || x+i >= columns {
					t.Fatalf("%d keys: cell %s is drawn twice, or beyond the %d columns", total, at, columns)
				}
				cells[at] = true
			}
		}
		if len(cells) != total {
			t.Errorf("%d keys: %d cells are drawn", total, len(cells))
		}
	}
}

func TestSelectedKeysLeadToAnAction(t *testing.T) {
	t.Parallel()
	answers := fleetAPI()
	answers["GET /api/v1/models"] = api.Models{Models: []api.ModelShown{{Name: "intent/bot-7"}}}
	d := open(t, answers)
	for path, want := range map[string]string{
		"/ui/selected?do=start-runs&recipe=intent&key=a&key=b": "/ui/act/start-runs?key=a&key=b&recipe=intent",
		"/ui/selected?do=rollback&recipe=intent&key=bot-7":     "/ui/act/rollback?model=intent%2Fbot-7",
	} {
		if got := fetch(d, path).Header().Get("Location"); got != want {
			t.Errorf("%s leads to %s, want %s", path, got, want)
		}
	}
	answers["GET /api/v1/models"] = &api.Problem{Status: http.StatusServiceUnavailable, Title: "temporarily unavailable", Detail: "the ledger catches up"}
	w := fetch(d, "/ui/selected?do=rollback&recipe=intent&key=bot-7")
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("a key that cannot be looked up leads to %s", w.Header().Get("Location"))
	}
	mustHave(t, w.Body.String(), "nothing was done", "bot-7")
}

// Tabs that have seen the same versions share one answer. A tab of another caller does not. A tab with newer versions gets
// the same answer for a moment, and is told to ask again.
func TestTabsShareARegion(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	answers := fleetAPI()
	answers["GET /api/v1/caller"] = everyRole()
	var passed atomic.Int64 // time since the first request
	now := func() time.Time { return testNow().Add(time.Duration(passed.Load())) }
	d := New(Options{Install: func() string { return "lab" }, Now: now, API: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/fleet/keys" {
			asked.Add(1)
		}
		answers.ServeHTTP(w, r)
	})})
	var tabs sync.WaitGroup
	bodies := make([]*httptest.ResponseRecorder, 50)
	for i := range bodies {
		tabs.Go(func() {
			bodies[i] = fetch(d, "/?recipe=intent", headerRegion, "keys", headerVersions, `{"fleet":"1:2"}`)
		})
	}
	tabs.Wait()
	for _, b := range bodies {
		if b.Code != http.StatusOK || !strings.Contains(b.Body.String(), "bot-7") {
			t.Fatalf("a tab got %d: %.200s", b.Code, b.Body)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("fifty tabs asked the API %d times", n)
	}
	newer := []string{headerRegion, "keys", headerVersions, `{"fleet":"1:3"}`}
	older := fetch(d, "/?recipe=intent", newer...)
	if n := asked.Load(); n != 1 || older.Header().Get(headerOlder) == "" || bodies[0].Header().Get(headerOlder) != "" {
		t.Errorf("a tab with newer versions: asked %d times, and %q", n-1, older.Header().Get(headerOlder))
	}
	passed.Store(int64(regionLives))
	if again := fetch(d, "/?recipe=intent", newer...); asked.Load() != 2 || again.Header().Get(headerOlder) != "" {
		t.Errorf("seconds later it does not get its own answer")
	}
	fetch(d, "/?recipe=intent", headerRegion, "keys", headerVersions, `{"fleet":"1:2"}`, "Authorization", "Bearer other")
	fetch(d, "/?recipe=intent", headerRegion, "keys")
	if n := asked.Load(); n != 4 {
		t.Errorf("another caller and no versions asked %d times more, want 2", n-2)
	}
}

// A failed answer is not given to others for five seconds.
func TestAFailedRegionIsNotKept(t *testing.T) {
	t.Parallel()
	answers := fleetAPI()
	answers["GET /api/v1/fleet/keys"] = &api.Problem{Status: http.StatusServiceUnavailable, Title: "not ready"}
	d := open(t, answers)
	headers := []string{headerRegion, "keys", headerVersions, `{"fleet":"1:2"}`}
	if code := fetch(d, "/", headers...).Code; code != http.StatusServiceUnavailable {
		t.Fatalf("the region answered %d", code)
	}
	answers["GET /api/v1/fleet/keys"] = fleetAPI()["GET /api/v1/fleet/keys"]
	if code := fetch(d, "/", headers...).Code; code != http.StatusOK {
		t.Errorf("the region still answers %d", code)
	}
}
