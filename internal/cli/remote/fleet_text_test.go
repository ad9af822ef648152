package remote

import (
	"bytes"
	"strings"
	"testing"

	"tidemill.dev/api"
	"tidemill.dev/internal/cli/show"
)

func TestFleetTable(t *testing.T) {
	t.Parallel()
	all := api.Fleet{Recipes: []api.FleetRecipe{
		{Recipe: "fraud\x1b[2J", Total: 2, States: map[api.KeyState]int{api.KeyFresh: 2}},
		{Recipe: "intent", Total: 20_000, Pinned: 3, Running: 17, States: map[api.KeyState]int{api.KeyFresh: 19_000, api.KeyStale: 600, api.KeyNone: 1, api.KeyUnserved: 2, api.KeyFailing: 40, api.KeyRefused: 350, api.KeyAwaiting: 7}},
	}}
	var text bytes.Buffer
	if err := show.Columns(&text, fleetTable(&all).rows); err != nil {
		t.Fatal(err)
	}
	golden(t, "fleet.txt", text.String())
}

// The suggested command works. A recipe without keys is started without one.
func TestDriftSuggestsARun(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{"bot-42": "tidemill runs start intent --key bot-42 trains", "intent": "tidemill runs start intent trains"} {
		var b strings.Builder
		l := driftList{}
		l.table(&api.Models{Models: []api.ModelShown{{Name: "m", Recipe: "intent", Key: key}}}).advice(&b)
		expect(t, "the advice", b.String(), want)
	}
}
