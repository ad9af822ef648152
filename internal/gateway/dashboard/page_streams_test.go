package dashboard

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
)

// tailedText is the text of a tail with some events.
func tailedText(events ...string) string {
	var b strings.Builder
	for i, e := range events {
		text, _ := json.Marshal(api.Tailed{Offset: int64(i), Received: testNow().Add(time.Duration(i) * time.Minute), Event: json.RawMessage(e)})
		fmt.Fprintf(&b, "data: %s\n\n", text)
	}
	return b.String()
}

// answersAPI has two answers of a key, of which the truth about the first is known.
type answersAPI struct {
	fakeAPI
	wheres map[string]string
}

func (a answersAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.wheres[r.URL.Path] = r.URL.Query().Get("where")
	switch r.URL.Path {
	case "/api/v1/streams/scored/events":
		answer := `{"specversion":"1.0","type":"tidemill.scored","id":"messages/0/%d","source":"/s","model":"intent/bot-1","modelversion":"7","data":{"label":"%s","score":0.75}}`
		_, _ = fmt.Fprint(w, tailedText(fmt.Sprintf(answer, 1, "greet"), fmt.Sprintf(answer, 2, "<i>order")))
	case "/api/v1/streams/outcomes/events":
		data, _ := json.Marshal(tidemill.OutcomeData{Place: "messages/0/1", Label: "greet", Truth: "bye", Basis: tidemill.OutcomeSaid})
		_, _ = fmt.Fprint(w, tailedText(`{"specversion":"1.0","type":"tidemill.outcome","id":"o","source":"/s","data":`+string(data)+`}`))
	default:
		a.fakeAPI.ServeHTTP(w, r)
	}
}

func openAnswers(labels *api.ScorerLabels, roles ...string) (*Dashboard, map[string]string) {
	s := oneScorer("intents")
	s.Scorer.Labels = labels
	wheres := map[string]string{}
	a := answersAPI{fakeAPI{"GET /api/v1/caller": api.Caller{Name: "ana", Roles: roles}, "GET /api/v1/scorers": api.Scorers{Scorers: []api.Scorer{s.Scorer}}, "GET /api/v1/scorers/intents": s,
		"GET /api/v1/models": api.Models{Models: []api.ModelShown{shownModel("intent/bot-1")}, Total: 1}, "GET /api/v1/runs": api.Runs{}, "GET /api/v1/dead-letters": api.DeadLetters{}}, wheres}
	return New(Options{API: a, Install: func() string { return "" }, Now: testNow}), wheres
}

// The answers of a key and of a scorer are shown with their truth, and each leads to a form for its truth.
func TestAnswersAreShownWithTheirTruth(t *testing.T) {
	t.Parallel()
	for path, where := range map[string]string{"/ui/key?key=it's": " AND model = 'intent/bot-1'", "/ui/scorers/intents": ""} {
		d, wheres := openAnswers(&api.ScorerLabels{From: "labels"}, "read", "operate")
		body := fetch(d, path).Body.String()
		mustHave(t, body, "messages/0/1", "wrong", "bye", "by a person", "&lt;i&gt;order", "0.75", "intent/bot-1@7", "Answers a minute", "Correct…", "Give its truth…",
			`href="/ui/act/label?event=messages%2F0%2F2&amp;scorer=intents"`)
		if got := wheres["/api/v1/streams/scored/events"]; got != "type = 'tidemill.scored'"+where {
			t.Errorf("%s asks for %q", path, got)
		}
	}
	d, _ := openAnswers(&api.ScorerLabels{From: "labels"}, "read")
	mustHave(t, fetch(d, "/ui/scorers/intents").Body.String(), "needs the role operate")
	d, _ = openAnswers(nil, "read", "operate")
	body := fetch(d, "/ui/scorers/intents").Body.String()
	mustHave(t, body, "the scorer has no labels")
	if strings.Contains(body, "/ui/act/label") {
		t.Error("a scorer without labels takes a label")
	}
}

// The form sends the label once, shows the command, and shows why a label is refused.
func TestLabelIsGiven(t *testing.T) {
	t.Parallel()
	d, f := openRecording(t, fakeAPI{"POST /api/v1/scorers/intents/labels": api.LabelDone{Scorer: "intents", Truth: "refund", ID: "l", At: api.Position{Stream: "labels", Partition: 1, Offset: 9}}})
	page := fetch(d, "/ui/act/label?scorer=intents&event=messages/0/2").Body.String()
	mustHave(t, page, `name="truth"`, "tidemill label messages/0/2", `formmethod="post"`)
	if len(f.bodies) > 0 {
		t.Errorf("the form alone has sent %s", f.bodies)
	}
	form := url.Values{"scorer": {"intents"}, "event": {"messages/0/2"}, "truth": {" refund "}, "reason": {"it's what the customer said"}}
	mustHave(t, submit(d, "/ui/act/label", form), "The truth is refund, by your label labels/1/9", "tidemill label messages/0/2 refund --scorer intents --reason", "Give another one")
	var asked api.LabelAsk
	if err := json.Unmarshal([]byte(f.bodies[0]), &asked); err != nil || asked != (api.LabelAsk{Event: "messages/0/2", Truth: "refund", Reason: "it's what the customer said"}) {
		t.Errorf("the request is %s", f.bodies[0])
	}
	d, _ = openRecording(t, fakeAPI{"POST /api/v1/scorers/intents/labels": &api.Problem{Status: 400, Title: "invalid", Detail: "there is no event at messages/0/2: it has expired, or there is none yet"}})
	mustHave(t, submit(d, "/ui/act/label", form), "there is no event at messages/0/2", `value=" refund "`)
}
