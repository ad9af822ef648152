package gateway

import (
	"net/http"
	"testing"

	"tidemill.dev"
)

// Without tokens, a page from the web could use a browser on this machine to post to the
// gateway. A form needs no permission, and is enough to pause a trigger or to drop letters.
func TestAnOpenDoorTakesNothingFromPagesOfOthers(t *testing.T) {
	t.Parallel()
	w := newDesk(t, nil)
	w.writeLetter("tell-crm", "bot-1", nil)
	w.waitForLetters("", 1)
	form := []string{"Content-Type", "text/plain"}
	drop := `{"selection":{"all":true},"reason":"x"}`
	for _, from := range [][]string{
		{"Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example"},
		{"Sec-Fetch-Site", "same-site", "Origin", "http://localhost:3000"},
		{"Origin", "https://evil.example"},
		{"Origin", "null"},
	} {
		for path, body := range map[string]string{"/api/v1/triggers/tell-crm/pause": "", "/api/v1/schedules/nightly/pause": "", "/api/v1/dead-letters/drop": drop, "/api/v1/dead-letters/replay": `{"selection":{"all":true}}`} {
			if r := w.do(http.MethodPost, path, body, append(form, from...)...); r.StatusCode != http.StatusForbidden {
				t.Errorf("%s of %v: %d %s", path, from, r.StatusCode, r.body)
			}
		}
		if r := w.do(http.MethodGet, "/api/v1/triggers", "", from...); r.StatusCode != http.StatusOK {
			t.Errorf("a link of %v: %d %s", from, r.StatusCode, r.body)
		}
	}
	if asked := w.storedEvents(tidemill.StreamCommands); len(asked) != 0 {
		t.Errorf("it was asked for %v", asked)
	}
	for _, from := range [][]string{nil, {"Sec-Fetch-Site", "same-origin"}, {"Sec-Fetch-Site", "none"}} {
		if r := w.do(http.MethodPost, "/api/v1/triggers/tell-crm/pause", "", from...); r.StatusCode != http.StatusOK {
			t.Errorf("%v: %d %s", from, r.StatusCode, r.body)
		}
	}
}
