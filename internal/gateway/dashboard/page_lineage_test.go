package dashboard

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/internal/models/lineage/drawing"
)

func oneGraph(name string) api.Graph {
	at := testNow()
	g := api.Graph{Subject: "run/" + name, Left: 7, Notes: []string{name}, Nodes: []api.GraphNode{
		{ID: "run/" + name, Kind: api.KindRun, Title: "run " + name, State: "failed", Time: &at, Says: []string{name}, Said: name},
		{ID: "event/" + name, Kind: api.KindEvent, Title: name}, {ID: name, Kind: api.GraphKind(name), Title: name, State: name},
		{ID: "model/" + name, Kind: api.KindModel, Title: "model " + name, Time: &at, Facts: map[string]string{"model": name}},
	}, Edges: []api.GraphEdge{{From: "event/" + name, To: "run/" + name, What: api.EdgeAsked}, {From: "run/" + name, To: "model/" + name, What: api.EdgeMade}, {From: name, To: "event/" + name, What: api.GraphRelation(name)}}}
	g.Layout = drawing.Positions(&g, func(t time.Time) string { return t.Format(time.RFC3339) })
	return g
}

func TestLineageIsDrawnAndListed(t *testing.T) {
	t.Parallel()
	for _, name := range append(hostile(), "qny5ivtqix") {
		d := open(t, fakeAPI{"GET /api/v1/why": oneGraph(name)})
		body := bodyOf(d, "/ui/lineage?of=run/x")
		mustBeText(t, body)
		mustHave(t, body, `class="box run bad subject"`, `class="box event"`, `class="edge"`, "requested by", "because of", "7 more things are left out", "nodes=120", "<h2>Causes</h2>", "<h2>Effects</h2>")
		if strings.Contains(body, "ZgotmplZ") {
			t.Errorf("the template refuses a value:\n%s", body)
		}
	}
	body := bodyOf(open(t, fakeAPI{"GET /api/v1/why": oneGraph("abc")}), "/ui/lineage?of=run/abc&direction=causes")
	mustHave(t, body, `href="/ui/lineage?direction=causes&amp;of=event%2Fabc"`, "<h2>Causes</h2>", `href="/ui/runs/abc"`)
	if strings.Contains(body, "<h2>Effects</h2>") {
		t.Error("the effects are listed")
	}
}

func oneInstall(name string) fakeAPI {
	return fakeAPI{
		"GET /api/v1/streams":   api.Streams{Streams: []api.Stream{{Name: "messages", Rate: 2.5}, {Name: "solitary"}}},
		"GET /api/v1/triggers":  api.Triggers{Triggers: []api.Trigger{{Name: name, Streams: []string{"messages"}, State: api.TriggerPaused, To: api.Target{URL: "https://crm.example"}}, {Name: "recipe.intent", To: api.Target{Function: "train"}}}},
		"GET /api/v1/schedules": api.Schedules{Schedules: []api.Schedule{{Name: "nightly", Cron: "0 3 * * *", TimeZone: "UTC"}}},
		"GET /api/v1/scorers":   api.Scorers{Scorers: []api.Scorer{{Name: "intents", From: "messages", To: "scored", Model: "intent/{key}"}}},
		"GET /api/v1/recipes": api.Recipes{Recipes: []api.Recipe{{Name: name, Streams: []string{"scored"}, When: []api.RecipeWhen{{Schedule: "nightly"}},
			Inputs: []api.RecipeInput{{Dataset: "bots/{key}"}}, Model: "intent/{key}", Dataset: "clean/{key}"}}},
	}
}

// The plan of the install is drawn. A connection that closes a cycle is in the table alone.
func TestInstallIsDrawn(t *testing.T) {
	t.Parallel()
	for _, name := range append(hostile(), "intent") {
		body := bodyOf(open(t, oneInstall(name)), "/ui/lineage")
		mustBeText(t, body)
		mustHave(t, body, "nightly", "0 3 * * * UTC", "https://crm.example", `class="box recipe"`, `class="box dataset"`, "2.5 events a second", `href="/ui/scorers/intents"`,
			`href="/ui/data?prefix=bots%2F"`, "is scored by", "answers in", "1 connection closes a cycle")
		if strings.Contains(body, "solitary") || strings.Contains(body, "recipe.intent") {
			t.Error("a stream without a neighbour is drawn, or the trigger of a recipe")
		}
	}
	rows := regexp.MustCompile(`<tr><th scope="row">`).FindAllString(bodyOf(open(t, oneInstall("intent")), "/ui/lineage"), -1)
	if len(rows) != 10 {
		t.Errorf("the table has %d connections", len(rows))
	}
}

func TestEventsAreLinkedByTheirSource(t *testing.T) {
	t.Parallel()
	if got := eventURL("/crm#1", "a"); got != "/ui/lineage?of=event%2F%2Fcrm%25231%23a" {
		t.Error(got)
	}
}
