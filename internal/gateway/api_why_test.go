package gateway

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"testing"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/store"
)

func (w *runWorld) why(of string, headers ...string) api.Graph {
	w.Helper()
	return sendDecoded[api.Graph](w.world, http.MethodGet, "/api/v1/why?of="+url.QueryEscape(of), "", headers...)
}

// runsOf returns the requested runs, by key.
func runsOf(done api.RunsDone) map[string]string {
	ids := map[string]string{}
	for _, d := range done.Runs {
		ids[d.Key] = d.Run
	}
	return ids
}

func nodesOf(g api.Graph, kind api.GraphKind) (ids []string) {
	for i := range g.Nodes {
		if g.Nodes[i].Kind == kind {
			ids = append(ids, g.Nodes[i].ID)
		}
	}
	return ids
}

// A caller gets answers about its own keys, and cannot learn whether others exist.
func TestWhyIsToldByKey(t *testing.T) {
	t.Parallel()
	kept := must1(store.Open(t.Context(), store.Options{URL: t.TempDir()}))(t)
	t.Cleanup(func() { _ = kept.Close() })
	w := newRuns(t, func(o *Options) {
		o.Store = kept
		o.Access = openGuard(t, "version: 1\ntokens:\n"+callerLine("all", "role: operate")+callerLine("one", "role: read, keys: [bot-1]"))
	})
	events := map[string]string{}
	runs := runsOf(w.asks("/api/v1/runs", `{"recipe":"fraud","keys":["bot-1","bot-2"]}`, tokenHeader("all")...))
	for key, id := range runs {
		w.waitUntil("run "+id+" has begun", func() bool {
			return sendDecoded[api.RunWhole](w.world, http.MethodGet, "/api/v1/runs/"+id, "", tokenHeader("all")...).State == tidemill.RunRunning
		})
		w.endAttempt(id, tidemill.OutcomeSucceeded, "")
		g := w.why("run/"+id[:8], tokenHeader("all")...)
		n := g.Nodes[0]
		if g.Subject != "run/"+id || n.ID != g.Subject || n.State != "succeeded" || n.Facts["key"] != key || len(nodesOf(g, api.KindEvent)) != 1 || len(nodesOf(g, api.KindCode)) != 1 {
			t.Fatalf("of the run of %s it tells %+v", key, g)
		}
		events[key] = nodesOf(g, api.KindEvent)[0]
	}
	for _, of := range []string{"run/" + runs["bot-1"], events["bot-1"]} {
		if g := w.why(of, tokenHeader("one")...); g.Subject != of || len(nodesOf(g, api.KindRun)) != 1 {
			t.Errorf("of its own %s it is told %+v", of, g)
		}
	}
	for _, of := range []string{"run/" + runs["bot-2"], "run/zzzzzzzz", events["bot-2"], "commit/bots/bot-2@main", "model/intent/bot-2"} {
		if r := w.do(http.MethodGet, "/api/v1/why?of="+url.QueryEscape(of), "", tokenHeader("one")...); r.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %d %s", of, r.StatusCode, r.body)
		}
	}
}

// whyAsks get every documented answer about causes.
func (d *testGateways) whyAsks(run string, long, stranger []string) (all []gatewayRequest) {
	const base = "/api/v1/why?of="
	path := base + "run/" + run
	all = append(all, gatewayRequest{d.open, "GET", path, "", nil, 200}, gatewayRequest{d.guarded, "GET", path, "", d.reader, 200}, gatewayRequest{d.open, "GET", path, "", stranger, 403},
		gatewayRequest{d.guarded, "GET", path, "", d.publisher, 403}, gatewayRequest{d.guarded, "GET", path, "", nil, 401},
		gatewayRequest{d.narrow, "GET", path, "", append(slices.Clone(long), d.reader...), 431}, gatewayRequest{d.down, "GET", path, "", nil, 503}, gatewayRequest{d.busy, "GET", path, "", nil, 501})
	for _, of := range []string{"", "run", "run/", "run/abc", "run/..%2F..%2F", "pool/small", "model/", "model/a@0", "commit/a%20b@main", "event/"} {
		all = append(all, gatewayRequest{d.open, "GET", base + of, "", nil, 400})
	}
	for _, of := range []string{"run/zzzzzzzz", "model/no", "model/no@7", "commit/bots/no@main", "commit/abc", "event/no", "event/a%23b"} {
		all = append(all, gatewayRequest{d.open, "GET", base + of, "", nil, 404})
	}
	return append(all, gatewayRequest{d.open, "GET", path + "&more=1", "", nil, 400})
}

// The answer can have a part of the graph, with a drawing of that part.
func TestWhyIsDrawn(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	id := w.startRuns("intent", "bot-1")["bot-1"]
	w.waitForState(id, tidemill.RunRunning)
	of := "/api/v1/why?of=run/" + id
	whole := sendDecoded[api.Graph](w.world, http.MethodGet, of, "")
	drawn := sendDecoded[api.Graph](w.world, http.MethodGet, of+"&direction=causes&limit=2&layout=positions", "")
	if whole.Layout != nil || whole.Left != 0 || len(whole.Nodes) < 3 {
		t.Errorf("without parameters: %+v", whole)
	}
	if len(drawn.Nodes) != 2 || drawn.Left != len(whole.Nodes)-2 || drawn.Layout == nil || len(drawn.Layout.Nodes) != 2 || len(drawn.Layout.Edges) != 1 {
		t.Errorf("two nodes of %d: %+v", len(whole.Nodes), drawn)
	}
	if effects := sendDecoded[api.Graph](w.world, http.MethodGet, of+"&direction=effects", ""); len(effects.Nodes) != 1 {
		t.Errorf("effects of a run that has not ended: %+v", effects)
	}
	for _, wrong := range []string{"direction=up", "limit=0", "limit=201", "layout=circle"} {
		if r := w.do(http.MethodGet, of+"&"+wrong, ""); r.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %d", wrong, r.StatusCode)
		}
	}
}

// A recipe's answer has the events and datasets that it reads, and its product.
func TestRecipesTellTheirPlan(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	for _, r := range sendDecoded[api.Recipes](w.world, http.MethodGet, "/api/v1/recipes", "").Recipes {
		plan := fmt.Sprintf("%v %v %v %s %s", r.When, r.Streams, r.Inputs, r.Model, r.Dataset)
		if want := map[string]string{
			"fraud":  "[{{ [new-data] } }] [events] []  ",
			"intent": "[{{ [new-data] } }] [events] [] intent/{key} ",
			"report": "[{{ [bot-created] } }] [events] []  reports/all",
		}[r.Name]; plan != want {
			t.Errorf("%s: %q", r.Name, plan)
		}
	}
}
