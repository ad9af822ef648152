package dashboard

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
)

// approvalsAPI has a version that waits, a freeze, a pin, pauses and commands. All names have the given text.
func approvalsAPI(name string) modelAPI {
	m := oneModel(name)
	m.whole.All[0].State = tidemill.VersionAwaiting
	m.whole.Versions[2].State = tidemill.VersionAwaiting
	m.whole.All[0].Judgement.Hold = "frozen for " + name
	since := testNow().Add(-time.Hour)
	shown := shownModel(name)
	shown.Newest = 3
	m.fakeAPI["GET /api/v1/models"] = api.Models{Models: []api.ModelShown{shown}, Total: 113, Next: "0.x"}
	m.fakeAPI["GET /api/v1/promotions"] = api.Promotions{Frozen: []api.Freeze{{Recipe: tidemill.AllRecipes, By: name, Since: since, Reason: "incident " + name}, {Recipe: "intent", Since: since}}}
	m.fakeAPI["GET /api/v1/pools"] = api.Pools{Pools: []api.Pool{{Name: "small", PausedBy: name, PausedSince: &since}, {Name: "large"}}}
	m.fakeAPI["GET /api/v1/recipes"] = api.Recipes{Recipes: []api.Recipe{{Name: "fraud", PausedSince: &since}}}
	m.fakeAPI["GET /api/v1/triggers"] = api.Triggers{Triggers: []api.Trigger{{Name: "tell-crm", PausedSince: &since}}}
	m.fakeAPI["GET /api/v1/schedules"] = api.Schedules{Schedules: []api.Schedule{{Name: "nightly", PausedSince: &since}}}
	m.fakeAPI["GET /api/v1/commands"] = api.Commands{Commands: []api.Command{{ID: name, At: since, By: name, Type: "tidemill.pool.paused", Subject: "small", Done: "pool small paused " + name, Reason: "no power " + name}}, Next: "17"}
	return m
}

func TestApprovalsShowWhatWaitsAndWhoDidWhat(t *testing.T) {
	t.Parallel()
	d := openModel(t, approvalsAPI("intent/bot-1"))
	body := fetch(d, "/ui/approvals").Body.String()
	mustHave(t, body, "113", "intent/bot-1@3", "metrics.accuracy &gt;= 0.75", "<strong>+0.04</strong>", "−0.01 to +0.09", "frozen for", "champion 2", "/ui/act/promote?basis=2&amp;model=intent%2Fbot-1&amp;version=3", "/ui/act/refuse?basis=2&amp;model=intent%2Fbot-1&amp;version=3",
		"all recipes", "incident", `href="/ui/act/thaw"`, "/ui/act/thaw?recipe=intent", "/ui/act/unpin", "/ui/act/resume-pool?pool=small", "/ui/act/resume-recipe?recipe=fraud",
		"/ui/act/resume-trigger?trigger=tell-crm", "/ui/act/resume-schedule?schedule=nightly", "pool small paused", "no power", "after=17", "waiting=0.x", "pins=0.x")
	if strings.Contains(body, ">large<") {
		t.Error("a pool that is not paused is shown")
	}
}

func TestApprovalsSayThatThereIsNothing(t *testing.T) {
	t.Parallel()
	d := open(t, fakeAPI{"GET /api/v1/models": api.Models{}, "GET /api/v1/promotions": api.Promotions{}, "GET /api/v1/pools": api.Pools{}, "GET /api/v1/recipes": api.Recipes{},
		"GET /api/v1/triggers": &api.Problem{Status: 503, Title: "temporarily unavailable", Detail: "they are still being read"}, "GET /api/v1/schedules": api.Schedules{}, "GET /api/v1/commands": api.Commands{}})
	w := fetch(d, "/ui/approvals")
	if w.Code != http.StatusOK {
		t.Errorf("status %d", w.Code)
	}
	mustHave(t, w.Body.String(), "No version waits", "No promotions are frozen", "No champion is pinned", "Nothing is paused", "triggers: they are still being read", "No commands yet")
}

// A version that was promoted after the list was read is left out. An older version may wait too.
func TestApprovalsFollowTheVersions(t *testing.T) {
	t.Parallel()
	m := approvalsAPI("intent/bot-1")
	m.whole.All[0].State, m.whole.Versions[2].State = tidemill.VersionRefused, tidemill.VersionRefused
	region := func() string {
		return fetch(openModel(t, m), "/ui/approvals", headerRegion, "waiting").Body.String()
	}
	if strings.Contains(region(), "/ui/act/promote") {
		t.Error("a version that does not wait is shown")
	}
	m.whole.All[2].State, m.whole.Versions[0].State = tidemill.VersionAwaiting, tidemill.VersionAwaiting
	mustHave(t, region(), "intent/bot-1@1")
}

func TestHostileApprovalsAreText(t *testing.T) {
	t.Parallel()
	for _, name := range hostile() {
		body := fetch(openModel(t, approvalsAPI(name)), "/ui/approvals").Body.String()
		mustBeText(t, body)
		mustHave(t, body, "</html>", "no power")
	}
}

// A page whose rows have all changed meanwhile leads to the other pages.
func TestEmptyPagesLeadOn(t *testing.T) {
	t.Parallel()
	m := approvalsAPI("intent/bot-1")
	m.whole.All[0].State, m.whole.Versions[2].State, m.whole.Pin = tidemill.VersionRefused, tidemill.VersionRefused, nil
	m.fakeAPI["GET /api/v1/commands"] = api.Commands{Next: "17"}
	body := fetch(openModel(t, m), "/ui/approvals?waiting=0.w&pins=0.p&after=18").Body.String()
	mustHave(t, body, "No versions on this page.", "waiting=0.x", "No pins on this page.", "pins=0.x", "No commands on this page.", "after=17", `href="/ui/approvals?after=18&amp;pins=0.p"`)
	runs := open(t, fakeAPI{"GET /api/v1/pools": pools(), "GET /api/v1/runs": api.Runs{Next: "later"}})
	mustHave(t, fetch(runs, "/ui/runs", headerRegion, "runs").Body.String(), "No runs on this page.", "after=later")
}
