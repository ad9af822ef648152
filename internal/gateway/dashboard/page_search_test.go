package dashboard

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"tidemill.dev/api"
)

// A search that the API could not answer as a whole says so, because the object may exist.
func TestASearchSaysWhatItMissed(t *testing.T) {
	t.Parallel()
	answers := fakeAPI{"GET /api/v1/streams": api.Streams{}, "GET /api/v1/runs": &api.Problem{Status: http.StatusNotImplemented, Title: "this gateway has no runs"}}
	body := fetch(open(t, answers), "/ui/search?q=bot-1").Body.String()
	mustHave(t, body, "Nothing has this name")
	if strings.Contains(body, "Not everything") {
		t.Error("kinds that this gateway does not have are no fault")
	}
	answers["GET /api/v1/fleet/keys"] = &api.Problem{Status: http.StatusServiceUnavailable, Title: "temporarily unavailable", Detail: "catching up with the facts: 7 left"}
	body = fetch(open(t, answers), "/ui/search?q=bot-1").Body.String()
	mustHave(t, body, "Not everything was searched", "catching up with the facts: 7 left", "Nothing was found")
}

// Many hits of one kind hide no hits of another, and the page says that it does not list all.
func TestASearchWithManyHits(t *testing.T) {
	t.Parallel()
	var streams api.Streams
	for i := range mostHits + 5 {
		streams.Streams = append(streams.Streams, api.Stream{Name: fmt.Sprintf("intent-%d", i)})
	}
	body := fetch(open(t, fakeAPI{"GET /api/v1/streams": streams, "GET /api/v1/scorers": api.Scorers{Scorers: []api.Scorer{{Name: "intents"}}}}), "/ui/search?q=intent").Body.String()
	mustHave(t, body, `href="/ui/streams/intent-19"`, `href="/ui/scorers/intents"`, "20 of 25 results of the kind stream are listed")
}
