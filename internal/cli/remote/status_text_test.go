package remote

import (
	"strings"
	"testing"

	"tidemill.dev/api"
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
