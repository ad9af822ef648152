package remote

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/ledger/fold"
)

// A recipe without a fresh model is left out, because its time is not known.
func TestFreshnessInWords(t *testing.T) {
	t.Parallel()
	var s section
	sayFreshness(&s, api.Freshness{Recipes: []api.RecipeFreshness{{Recipe: "intent", Models: 2, Stages: map[string]*api.Percentiles{"total": {P50: 4.21, P99: 75}}}, {Recipe: "fraud", Stages: map[string]*api.Percentiles{"total": nil}}}})
	if s.text != "intent 4.2s (p99 1m15s)" {
		t.Error(s.text)
	}
}

// Scorers have another section, and a group that has read all is left out.
func TestLagInWords(t *testing.T) {
	t.Parallel()
	var s section
	sayLag(&s, []api.Stream{{Name: "events", Groups: []api.Group{{Group: "triggers.events", Lag: 1}, {Group: "scorer.intents", Lag: 3}}}, {Name: "scored", Groups: []api.Group{{Group: "outcomes.intents", Lag: 1200}, {Group: "measured"}}}})
	if s.text != "1 event of events for triggers.events, 1,200 events of scored for outcomes.intents" {
		t.Error(s.text)
	}
}

// Each suggestion is a command that works as it is: a thaw names its recipe, and nothing suggests to
// promote what a stopped rollout has made.
func TestStatusSuggests(t *testing.T) {
	t.Parallel()
	var r statusReport
	var open, paused section
	r.sayRollouts(&open, []api.Rollout{
		{Recipe: "done", Rollout: "done/1", State: api.RolloutNone}, {Recipe: "new", Rollout: "new/2", State: api.RolloutRunning, Share: 0.1},
		{Recipe: "bad", Rollout: "bad/3", State: api.RolloutStopped, Reason: "fleet.worse > 0.02"}})
	r.sayFrozen(&paused, []api.Freeze{{Recipe: tidemill.AllRecipes}, {Recipe: "intent"}})
	if open.text != "new/2 running at 10% of the keys, bad/3 stopped" || !slices.Equal(open.lines, []string{"bad/3 waits for a person: fleet.worse > 0.02"}) {
		t.Errorf("rollouts: %s, %q", open.text, open.lines)
	}
	want := []string{"tidemill rollouts show bad", "tidemill promotions thaw", "tidemill promotions thaw --recipe intent"}
	if !slices.Equal(r.next, want) {
		t.Errorf("next: %q, want %q", r.next, want)
	}
	logged := api.RunShown{Run: tidemill.Run{ID: "abcdefghijklmnop", Result: &tidemill.Result{LogBytes: 1}}}
	if got := whyFailed(&logged); got != "tidemill logs abcdefghij" {
		t.Error(got)
	}
	logged.Result.LogBytes = 0
	if got := whyFailed(&logged); got != "tidemill runs show abcdefghij" {
		t.Error(got)
	}
}

// A refused version that cannot be read hides no other one.
func TestRefusedVersions(t *testing.T) {
	t.Parallel()
	g := gatewayOf(t, func(w http.ResponseWriter, r *http.Request) {
		name := r.URL.Query().Get("model")
		if name == "gone" {
			w.Header().Set("Content-Type", api.ProblemType)
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(api.Problem{Title: "there is no such model", Detail: "the model is gone"})
			return
		}
		one := tidemill.Version{Model: name, Number: 1}
		_ = json.NewEncoder(w).Encode(api.ModelWhole{Model: fold.Model{Name: name, Versions: []fold.Held{{Number: 1}}},
			All: []api.ModelVersion{{Version: one, Judgement: &tidemill.Judgement{Sentence: "version 1 of " + name + " is refused: it is slow"}}}})
	})
	var s section
	r := statusReport{g: g}
	r.refusals(t.Context(), &s, []string{"gone@1", "there@1"})
	if len(s.lines) != 2 || !strings.Contains(s.lines[0], "the model is gone") || s.lines[1] != "there@1 is refused: it is slow" || !slices.Equal(r.next, []string{"tidemill models show gone@1"}) {
		t.Errorf("%q, next %q", s.lines, r.next)
	}
}

// A part that the gateway lacks, or that fails, hides no other part.
func TestPausedParts(t *testing.T) {
	t.Parallel()
	g := gatewayOf(t, func(w http.ResponseWriter, r *http.Request) {
		since := time.Now()
		var body any = api.Problem{Title: "no runs", Status: http.StatusNotImplemented, Detail: "this gateway has no runs"}
		switch r.URL.Path {
		case "/api/v1/pools":
			body = api.Problem{Title: "broken", Status: http.StatusInternalServerError, Detail: "the pools are broken"}
		case "/api/v1/triggers":
			body = api.Triggers{Triggers: []api.Trigger{{Name: "tell-crm", State: api.TriggerPaused, PausedSince: &since}}}
		case "/api/v1/schedules":
			body = api.Schedules{Schedules: []api.Schedule{{Name: "nightly", State: api.SchedulePaused, PausedSince: &since}}}
		}
		if p, refused := body.(api.Problem); refused {
			w.Header().Set("Content-Type", api.ProblemType)
			w.WriteHeader(p.Status)
		}
		_ = json.NewEncoder(w).Encode(body)
	})
	var s section
	r := statusReport{g: g}
	err := r.paused(t.Context(), &s)
	if err == nil || !strings.Contains(err.Error(), "the pools are broken") || strings.Contains(err.Error(), "no runs") {
		t.Error(err)
	}
	if want := []string{"tidemill triggers resume tell-crm", "tidemill schedules resume nightly"}; !slices.Equal(r.next, want) || s.text != "2" {
		t.Errorf("%q and the summary %q, want %q", r.next, s.text, want)
	}
}

// The reasons are those of a page of dead letters, which may not be all.
func TestStatusNamesThePageOfDeadLetters(t *testing.T) {
	t.Parallel()
	g := gatewayOf(t, func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(api.DeadLetters{Total: 1_200, DeadLetters: []api.DeadLetter{{Reason: "expired"}, {Reason: "expired"}}})
	})
	var s section
	if err := (&statusReport{g: g}).letters(t.Context(), &s); err != nil || s.text != "1,200 open" || !slices.Equal(s.lines, []string{"of the newest 2:", "2 without a trigger: expired"}) {
		t.Errorf("%s, %q, %v", s.text, s.lines, err)
	}
}

// A section shows a few lines, and how many there are besides. Nothing of it can move the cursor.
func TestALongStatus(t *testing.T) {
	t.Parallel()
	s := section{name: "runs"}
	s.say("%d running", 7)
	s.say("3 waiting")
	for range 7 {
		s.line("of \x1b[2J a bot")
	}
	r := statusReport{sections: []section{s, {name: "empty"}}}
	for range 6 {
		r.suggest("tidemill dl")
	}
	var b strings.Builder
	if err := r.print(&b); err != nil {
		t.Fatal(err)
	}
	want := "runs  7 running, 3 waiting\n" + strings.Repeat("        of ·[2J a bot\n", statusLines) + "      and 2 more\n\nNext: tidemill dl" + strings.Repeat("\n      tidemill dl", statusNext-1) + "\n"
	if got := strings.ReplaceAll(b.String(), "        and", "      and"); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
