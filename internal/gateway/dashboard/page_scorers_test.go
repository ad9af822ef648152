package dashboard

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"tidemill.dev/api"
)

func oneScorer(name string) api.ScorerShown {
	return api.ScorerShown{
		Scorer: api.Scorer{Name: name, From: "messages", To: "scored", Key: "subject", Model: "intent/{key}", Map: map[string]string{"text": "data.text", "n": "data.order.n"},
			Processes: new(1), Lag: new(int64(4321)), LastError: name, Numbers: &api.ScorerNumbers{Rate: 12.5, Scored: 9, P99Seconds: 0.004, HitRate: 0.97}},
		Swaps: []api.ScorerSwap{{At: testNow(), Model: name, Version: 7, Stream: "messages", Partition: 3, Offset: 99}},
	}
}

func TestScorersAreListed(t *testing.T) {
	t.Parallel()
	for _, name := range append(hostile(), "intents") {
		body := fetch(open(t, fakeAPI{"GET /api/v1/scorers": api.Scorers{Scorers: []api.Scorer{oneScorer(name).Scorer}}}), "/ui/scorers").Body.String()
		mustBeText(t, strings.Replace(body, "<script type=", "", 1))
		mustHave(t, body, "12.5", "4\u202f321", "4 ms", "97 %", "degraded")
	}
}

func TestScorerShowsItsSwapsAndNumbers(t *testing.T) {
	t.Parallel()
	for _, name := range append(hostile(), "intents") {
		d := open(t, fakeAPI{"GET /api/v1/scorers/intents": oneScorer(name)})
		body := fetch(d, "/ui/scorers/intents").Body.String()
		mustBeText(t, strings.Replace(body, "<script type=", "", 1))
		mustHave(t, body, "4\u202f321", "messages", "3/99", "There is no history here", "/ui/act/rescore?scorer=", "/ui/act/rollback", "&#34;text&#34;: null", "&#34;n&#34;: null")
	}
}

// The curves end at the time of the answer, have a gap where a number is unknown, and show the swaps.
func TestScorerShowsItsHistory(t *testing.T) {
	t.Parallel()
	known := func(f float64) *float64 { return &f }
	swaps := []api.HistorySwap{{At: testNow().Add(-15 * time.Second), Model: "intent/bot-1", Version: 7}}
	d := open(t, fakeAPI{"GET /api/v1/scorers/intents": oneScorer("intents"), "GET /api/v1/history": api.History{Every: 10, Until: testNow(), Events: swaps,
		Series: map[string][]*float64{"rate": {known(1), known(2), nil, known(3), known(4)}, "lag": {nil, nil}}}})
	body := fetch(d, "/ui/scorers/intents", headerRegion, "history").Body.String()
	mustHave(t, body, "12:00:00", "11:59:20", "swap to intent/bot-1@7 at 11:59:45", "No values yet")
	if got := strings.Count(body, `class="curve c0"`); got != 2 {
		t.Errorf("%d lines, want two because of the gap\n%s", got, body)
	}
	if strings.Contains(body, "NaN") {
		t.Error("an unknown number is shown as NaN")
	}
}

func sendForm(d *Dashboard, path string, form url.Values) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w
}

func TestScorerIsAskedByHand(t *testing.T) {
	t.Parallel()
	d := open(t, fakeAPI{"GET /api/v1/scorers/intents": oneScorer("intents"), "POST /api/v1/scorers/intents/score": api.ScoreDone{Scorer: "intents", Model: "intent/bot-1", Version: 7,
		Label: "tracking", Score: 0.9, Scores: map[string]float64{"billing": 0.1, "tracking": 0.9}}})
	body := sendForm(d, "/ui/scorers/intents", url.Values{"key": {"bot-1"}, "data": {`{"text": "it's late"}`}}).Body.String()
	mustHave(t, body, "intent/bot-1@7", "tidemill score intents --key bot-1 -d &#39;{&#34;text&#34;: &#34;it&#39;\\&#39;&#39;s late&#34;}&#39;")
	spaced := sendForm(d, "/ui/scorers/intents", url.Values{"data": {"{\r\n  \"text\": \"two  spaces\"\r\n}"}}).Body.String()
	mustHave(t, spaced, esc(`-d '{ "text": "two  spaces" }'`))
	if first, second := strings.Index(body, "tracking</bdi></th>"), strings.Index(body, "billing</bdi></th>"); first < 0 || second < first {
		t.Error("the likeliest label is not first")
	}
	body = sendForm(d, "/ui/scorers/intents", url.Values{"data": {`{"text": </textarea><script>`}}).Body.String()
	mustHave(t, body, "the event is not JSON", "&lt;/textarea&gt;&lt;script&gt;")
	mustBeText(t, strings.Replace(body, "<script type=", "", 1))
}

// The API's reason is shown next to the form, which keeps the event.
func TestScorerRefusesAnEvent(t *testing.T) {
	t.Parallel()
	d := open(t, fakeAPI{"GET /api/v1/scorers/intents": oneScorer("intents"),
		"POST /api/v1/scorers/intents/score": &api.Problem{Status: 422, Title: "no champion", Detail: "model intent/bot-1 has no champion"}})
	body := sendForm(d, "/ui/scorers/intents", url.Values{"key": {"bot-1"}, "data": {`{"text":"where"}`}}).Body.String()
	mustHave(t, body, "model intent/bot-1 has no champion", "where", "4\u202f321")
}

func TestStreamsAndTriggersShowTheirHistory(t *testing.T) {
	t.Parallel()
	known := func(f float64) *float64 { return &f }
	d := open(t, fakeAPI{"GET /api/v1/history": api.History{Every: 10, Until: testNow(), Series: map[string][]*float64{
		"rate": {known(1), known(70)}, "lag": {nil, known(8)}, "delivered": {known(2), known(3)}, "failed": {known(0), known(90)}, "parked": {nil, nil}}}})
	mustHave(t, fetch(d, "/ui/streams/events", headerRegion, "history").Body.String(), "Events", "70", "Lag", "12:00:00")
	mustHave(t, fetch(d, "/ui/triggers/tell-crm", headerRegion, "history").Body.String(), "Deliveries", "failed", "90", "No values yet")
}
