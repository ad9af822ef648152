package gateway

import (
	"net/http"
	"slices"
	"testing"

	"tidemill.dev/api"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/internal/ops/status"
)

// For all callers, the trigger of a recipe is a trigger like any other.
func TestARecipesTriggerAtTheDoor(t *testing.T) {
	t.Parallel()
	const name, path = "recipe.intent", "/api/v1/triggers/recipe.intent"
	board := boardOf(t, "kafka-1")
	w := newWorldOf(t, testTriggers+"recipes:\n  intent:\n    when: [{type: bot-created}, {schedule: nightly, each: key}]\n    run: {image: a}\n",
		embedded.Options{}, func(o *Options) { o.Standing = board })
	all := sendDecoded[api.Triggers](w, http.MethodGet, "/api/v1/triggers", "").Triggers
	if len(all) != 4 || all[0].Name != "forget" || all[1].Name != name || all[1].To.Function != "train" || len(all[1].When) != 2 || all[1].When[1].Where != "schedule = 'nightly'" {
		t.Fatalf("%+v", all)
	}
	w.must(board.Write(t.Context(), "one", []status.Trigger{{Name: name, Delivered: 5}}))
	open := w.writeLetter(name, "bot-1", nil)
	w.waitUntil("the letter is counted", func() bool { return *sendDecoded[api.Trigger](w, http.MethodGet, path, "").DeadLetters == 1 })
	if got := sendDecoded[api.Trigger](w, http.MethodGet, path, ""); got.Numbers.Delivered != 5 || !slices.Equal(got.Streams, []string{"events"}) {
		t.Errorf("%+v", got)
	}
	if got := sendDecoded[api.TriggerDone](w, http.MethodPost, path+"/pause", ""); !got.Changed || got.Trigger.State != api.TriggerPaused {
		t.Errorf("%+v", got)
	}
	if got := sendDecoded[api.TriggerDone](w, http.MethodPost, path+"/resume", ""); !got.Changed || got.Trigger.PausedSince != nil {
		t.Errorf("%+v", got)
	}
	w.post("/events", `{"specversion":"1.0","id":"1","source":"/crm","type":"bot-created","subject":"bot-1"}`, "Content-Type", structuredType)
	if got := sendDecoded[api.ReplayDone](w, http.MethodPost, path+"/replay", `{"from":"beginning","dryRun":true}`); got.Preview == nil || got.Preview.Matched != 1 {
		t.Errorf("%+v", got)
	}
	if got := sendDecoded[api.DeadLetters](w, http.MethodGet, "/api/v1/dead-letters?trigger="+name, ""); got.Total != 1 || got.DeadLetters[0].ID != open {
		t.Errorf("%+v", got)
	}
	if got := sendDecoded[api.LetterDone](w, http.MethodPost, "/api/v1/dead-letters/replay", `{"selection":{"trigger":"`+name+`"}}`); len(got.Refused) > 0 || got.Matched != 1 {
		t.Errorf("%+v", got)
	}
}
