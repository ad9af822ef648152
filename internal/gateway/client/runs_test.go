package client

import (
	"io"
	"net/http"
	"testing"

	"tidemill.dev"
	"tidemill.dev/api"
)

func TestWhatIsAskedOfRuns(t *testing.T) {
	for want, ask := range map[string]func(*Gateway) error{
		"GET /base/api/v1/runs?key=a%2Fb&limit=7&state=running%2Cfailed ": func(g *Gateway) error {
			_, err := g.Runs(t.Context(), RunQuery{Key: "a/b", Limit: 7, States: []tidemill.RunState{tidemill.RunRunning, tidemill.RunFailed}})
			return err
		},
		"GET /base/api/v1/runs?after=x&recipe=intent&since=-1h ": func(g *Gateway) error {
			_, err := g.Runs(t.Context(), RunQuery{Recipe: "intent", Since: "-1h", After: "x"})
			return err
		},
		"GET /base/api/v1/runs/50%25 ":        func(g *Gateway) error { _, err := g.Run(t.Context(), "50%"); return err },
		"GET /base/api/v1/runs/a%2Fb%3Fc%23 ": func(g *Gateway) error { _, err := g.Run(t.Context(), "a/b?c#"); return err },
		"POST /base/api/v1/pools/../pause ":   func(g *Gateway) error { _, err := g.PausePool(t.Context(), ".."); return err },
		"GET /base/api/v1/runs/abcdef ":       func(g *Gateway) error { _, err := g.Run(t.Context(), "abcdef"); return err },
		`POST /base/api/v1/runs {"recipe":"intent","keys":["a"]}`: func(g *Gateway) error {
			_, err := g.StartRuns(t.Context(), "n", api.RunsAsked{Recipe: "intent", Keys: []string{"a"}})
			return err
		},
		`POST /base/api/v1/runs/cancel {"runs":["x"],"reason":"r"}`: func(g *Gateway) error {
			_, err := g.CancelRuns(t.Context(), api.RunsSelected{Runs: []string{"x"}, Reason: "r"})
			return err
		},
		`POST /base/api/v1/runs/retry {"all":true,"rate":2}`: func(g *Gateway) error {
			_, err := g.RetryRuns(t.Context(), "n", api.RunsSelected{All: true, Rate: 2})
			return err
		},
		"GET /base/api/v1/recipes ":              func(g *Gateway) error { _, err := g.Recipes(t.Context()); return err },
		"POST /base/api/v1/recipes/i/pause ":     func(g *Gateway) error { _, err := g.PauseRecipe(t.Context(), "i"); return err },
		"POST /base/api/v1/recipes/i/resume ":    func(g *Gateway) error { _, err := g.ResumeRecipe(t.Context(), "i"); return err },
		"GET /base/api/v1/pools ":                func(g *Gateway) error { _, err := g.Pools(t.Context()); return err },
		"POST /base/api/v1/pools/default/pause ": func(g *Gateway) error { _, err := g.PausePool(t.Context(), "default"); return err },
		"POST /base/api/v1/pools/default/resume ": func(g *Gateway) error {
			_, err := g.ResumePool(t.Context(), "default")
			return err
		},
	} {
		var asked []string
		if err := ask(gatewayOf(t, asIs("{}", &asked))); err != nil || len(asked) != 1 || asked[0] != want {
			t.Errorf("asked is %q (%v), not %q", asked, err, want)
		}
	}
}

// If the answer to a start is lost, it is repeated with the same idempotency key.
func TestAStartKeepsItsName(t *testing.T) {
	var names []string
	note := func(then http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			names = append(names, r.Header.Get(api.HeaderIdempotencyKey))
			then(w, r)
		}
	}
	done := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"runs":[]}`)
	}
	answer, _ := inOrder(note(hungUp), note(problemHandler(slug(api.Unavailable, 503, "catching up"))), note(done))
	named := NewAsking()
	if _, err := gatewayOf(t, answer).StartRuns(t.Context(), named, api.RunsAsked{Recipe: "intent", All: true}); err != nil {
		t.Fatal(err)
	}
	if len(names) != 3 || names[0] != string(named) || names[1] != names[0] || names[2] != names[0] {
		t.Errorf("names %q", names)
	}
	names = nil
	answer, _ = inOrder(note(hungUp), note(done))
	if _, err := gatewayOf(t, answer).Label(t.Context(), "intents", api.LabelAsk{Event: "messages/3/17", Truth: "refund"}); err != nil {
		t.Fatal(err)
	}
	if len(names) != 2 || names[0] == "" || names[1] != names[0] {
		t.Errorf("names of a label: %q", names)
	}
	if named == NewAsking() {
		t.Error("another asking has the same name")
	}
}
