package dashboard

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
)

// keyAPI knows one key with a model, runs, a dead letter, data and a swap. All names have the given text.
func keyAPI(name string) modelAPI {
	m := oneModel("intent/bot-1")
	m.whole.All[0].Inputs = []tidemill.Input{{Dataset: "bots/bot-1"}}
	m.whole.All[0].Judgement.Sentence = "version 3 of intent/bot-1 is refused: " + name
	ended := tidemill.Run{ID: "run3", Recipe: "intent", Key: name, State: tidemill.RunFailed, Asking: testNow().Add(-2 * time.Hour), End: testNow().Add(-time.Hour), Reason: "no memory " + name, By: name,
		First: tidemill.Cause{Source: "/crm", ID: name}}
	live := tidemill.Run{ID: "run4", Recipe: "intent", Key: name, State: tidemill.RunRunning, Asking: testNow().Add(-5 * time.Minute), Attempts: []tidemill.Attempt{{Number: 1, Started: testNow().Add(-4 * time.Minute)}}}
	total := 2
	m.fakeAPI["GET /api/v1/models"] = api.Models{Models: []api.ModelShown{shownModel("intent/bot-1")}, Total: 1}
	m.fakeAPI["GET /api/v1/runs"] = api.Runs{Runs: []api.RunShown{{Run: live}, {Run: ended}}, Total: &total}
	m.fakeAPI["GET /api/v1/dead-letters"] = api.DeadLetters{DeadLetters: []api.DeadLetter{{ID: "letter1", Written: testNow().Add(-10 * time.Minute), Trigger: "tell-crm", Reason: "answered 500 " + name}}, Total: 1}
	m.fakeAPI["GET /api/v1/data/log"] = api.Log{Commits: []api.Commit{{ID: "commit12", Time: testNow().Add(-3 * time.Hour), Added: 3, Message: name, By: name}}}
	m.fakeAPI["GET /api/v1/scorers"] = api.Scorers{Scorers: []api.Scorer{{Name: "intents"}}}
	m.fakeAPI["GET /api/v1/scorers/intents"] = api.ScorerShown{Scorer: api.Scorer{Name: "intents", Numbers: &api.ScorerNumbers{Rate: 12.5}},
		Versions: []api.ScorerVersion{{Model: "intent/bot-1", Version: 2, Since: testNow()}}, Swaps: []api.ScorerSwap{{At: testNow().Add(-30 * time.Minute), Model: "intent/bot-1", Version: 2, Stream: "messages"}, {Model: "intent/other", Version: 7777777}}}
	return m
}

func TestKeyHasOneTimeLine(t *testing.T) {
	t.Parallel()
	d := openModel(t, keyAPI("bot-1"))
	body := fetch(d, "/ui/key?key=bot-1").Body.String()
	mustHave(t, body, "<h1>Key bot-1</h1>", "2 runs", "Forget the key", "/ui/act/start-runs?key=intent%2Fbot-1", "12.5/s", "refused: bot-1", "no memory", "answered 500",
		`href="/ui/dead-letters/letter1"`, "commit12", "bots/bot-1", "scorer <a", "pinned", `href="/ui/lineage?of=event%2F%2Fcrm%23bot-1"`)
	if strings.Contains(body, "7777777") {
		t.Error("the swap of another key's model is shown")
	}
	line := fetch(d, "/ui/key?key=bot-1", headerRegion, "line").Body.String()
	last := -1
	for _, part := range []string{"attempt 1", "letter1", "partition 0 of messages", "no memory", "commit12"} { // newest first
		at := strings.Index(line, part)
		if at < last {
			t.Errorf("%q is not in the order of time", part)
		}
		last = at
	}
	only := fetch(d, "/ui/key?key=bot-1&kind="+url.QueryEscape(momentLetter), headerRegion, "line").Body.String()
	if !strings.Contains(only, "letter1") || strings.Contains(only, "commit12") {
		t.Errorf("only dead letters were asked for:\n%s", only)
	}
	older := fetch(d, "/ui/key?key=bot-1&before="+testNow().Add(-150*time.Minute).Format(time.RFC3339), headerRegion, "line").Body.String()
	if strings.Contains(older, "letter1") || !strings.Contains(older, "commit12") {
		t.Errorf("only older lines were asked for:\n%s", older)
	}
}

func TestUnknownKeySaysSo(t *testing.T) {
	t.Parallel()
	d := open(t, fakeAPI{"GET /api/v1/runs": api.Runs{}, "GET /api/v1/models": api.Models{}, "GET /api/v1/dead-letters": api.DeadLetters{}})
	w := fetch(d, "/ui/key?key=bot-9")
	if w.Code != http.StatusNotFound {
		t.Errorf("status %d", w.Code)
	}
	mustHave(t, w.Body.String(), "there is no such key", "no run, model or open dead letter")
	if got := fetch(d, "/ui/key").Code; got != http.StatusBadRequest {
		t.Errorf("without a key: %d", got)
	}
}

// Lines of one moment are on one page, because the next page has only what is older. Lines that are not read are noted.
func TestLongTimeLine(t *testing.T) {
	t.Parallel()
	m := keyAPI("bot-1")
	shown := m.fakeAPI["GET /api/v1/scorers/intents"].(api.ScorerShown)
	for i := range mostMoments + 20 {
		shown.Swaps = append(shown.Swaps, api.ScorerSwap{At: testNow().Add(-30 * time.Minute), Model: "intent/bot-1", Version: 2, Stream: "messages", Partition: int32(i)})
	}
	m.fakeAPI["GET /api/v1/scorers/intents"] = shown
	letters := m.fakeAPI["GET /api/v1/dead-letters"].(api.DeadLetters)
	letters.Cursor = "more"
	m.fakeAPI["GET /api/v1/dead-letters"] = letters
	body, found := "", 0
	for path := "/ui/key?key=bot-1"; path != ""; {
		page := fetch(openModel(t, m), path, headerRegion, "line").Body.String()
		body += page
		_, next, more := strings.Cut(page, `rel="next" href="`)
		next, _, _ = strings.Cut(next, `"`)
		if path = ""; more {
			path = strings.ReplaceAll(next, "&amp;", "&")
		}
	}
	for i := range mostMoments + 20 {
		found += strings.Count(body, fmt.Sprintf("partition %d of messages<", i))
	}
	if found != mostMoments+21 { // one of partition 0 was there before
		t.Errorf("%d swaps are shown", found)
	}
	mustHave(t, body, "only the newest 1 dead letters are in this time line", "no memory")
}

// A part that cannot be read leaves the other lines.
func TestKeyShowsWhatItCanRead(t *testing.T) {
	t.Parallel()
	m := keyAPI("bot-1")
	m.fakeAPI["GET /api/v1/dead-letters"] = &api.Problem{Status: 503, Title: "temporarily unavailable", Detail: "they are still being read"}
	body := fetch(openModel(t, m), "/ui/key?key=bot-1").Body.String()
	mustHave(t, body, "dead letters: they are still being read", "no memory", "? open dead letters")
}

func TestHostileKeysAreText(t *testing.T) {
	t.Parallel()
	for _, name := range hostile() {
		body := fetch(openModel(t, keyAPI(name)), "/ui/key?key=x").Body.String()
		mustBeText(t, body)
		mustHave(t, body, "</html>", "no memory")
	}
}
