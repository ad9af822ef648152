package remote

import (
	"bytes"
	"encoding/json"
	"testing"

	"tidemill.dev/api"
	"tidemill.dev/internal/cli/show"
)

// A dead letter has data of any publisher and any subscriber. As JSON on a terminal it must have no
// control characters, and be the same value for a script.
func TestJSONForPeopleIsHarmless(t *testing.T) {
	t.Parallel()
	hostile := "\u009b31m red \u202e turned \x1b[2J gone"
	event, err := json.Marshal(map[string]string{"data": hostile})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := writeIndented(&out, api.WholeLetter{Event: event, Attempts: []api.Attempt{{Answer: hostile}}}); err != nil {
		t.Fatal(err)
	}
	if bytes.ContainsFunc(out.Bytes(), func(r rune) bool { return r != '\n' && show.Unseen(r) }) {
		t.Errorf("a terminal is told %q", &out)
	}
	var whole api.WholeLetter
	var back map[string]string
	if err := json.Unmarshal(out.Bytes(), &whole); err != nil || len(whole.Attempts) != 1 || whole.Attempts[0].Answer != hostile || json.Unmarshal(whole.Event, &back) != nil || back["data"] != hostile {
		t.Errorf("it became %q, %v", &out, err)
	}
}
