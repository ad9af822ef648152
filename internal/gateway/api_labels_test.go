package gateway

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
)

const labelPath = "/api/v1/scorers/intents/labels"

// A person's label has the caller's name, and names the event in each way that is known.
func TestAPersonGivesALabel(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, testConfig+scorersOfTests, embedded.Options{}, nil)
	w.url = "http://" + w.openGateway(func(o *Options) {
		o.Access = openGuard(t, "version: 1\ntokens:\n"+callerLine("ada", "role: operate")+callerLine("one", "role: operate, keys: [bot-1]")+callerLine("crm", "role: publish"))
	}).Addr()
	labelled, _ := must1(config.Parse("test.yaml", []byte(testConfig+scorersOfTests)))(t).Scorer("intents")
	places := map[string]string{}
	for id, key := range map[string]string{"a": "bot-1", "b": "bot-2"} {
		r := w.post("/streams/messages", `{"text":"hi"}`, append(eventHeaders(id, "ce-subject", key), tokenHeader("crm")...)...)
		w.wantStatus(r, http.StatusAccepted)
		places[id] = r.Header.Get(api.HeaderPosition)
	}
	give := func(by, body string) (reply, api.LabelDone) {
		r := w.post(labelPath, body, tokenHeader(by)...)
		var done api.LabelDone
		if r.StatusCode == http.StatusOK {
			w.must(json.Unmarshal([]byte(r.body), &done))
		}
		return r, done
	}
	for _, c := range []struct {
		by, body string
		want     tidemill.LabelData
		key      string
	}{
		{"ada", `{"event":"` + places["b"] + `","truth":"refund","reason":"read it"}`, tidemill.LabelData{Scorer: "intents", Place: places["b"], ID: "b", Source: "/test", Truth: "refund", Reason: "read it"}, "bot-2"},
		{"one", `{"event":"` + places["a"] + `","truth":"refund"}`, tidemill.LabelData{Scorer: "intents", Place: places["a"], ID: "a", Source: "/test", Truth: "refund"}, "bot-1"},
		{"ada", `{"event":"x/3/17","source":"/shop","truth":"ok"}`, tidemill.LabelData{Scorer: "intents", ID: "x/3/17", Source: "/shop", Truth: "ok"}, ""},
	} {
		before := time.Now()
		r, done := give(c.by, c.body)
		w.wantStatus(r, http.StatusOK)
		if wait := labelled.Labels.Wait; done.Until.Before(before.Add(wait)) || done.Until.After(time.Now().Add(wait)) {
			t.Errorf("%s: the label waits until %s, and the scorer's wait is %s", c.body, done.Until, wait)
		}
		found := false
		for _, e := range w.storedEvents("events") {
			if e.ID != done.ID {
				continue
			}
			found = true
			var d tidemill.LabelData
			w.must(json.Unmarshal(e.Data, &d))
			by, _ := e.Attribute(tidemill.AttrAuthID)
			if d != c.want || e.Type != tidemill.TypeLabel || by != c.by || e.Subject != c.key || done.Key != c.key {
				t.Errorf("%s: %+v of %s, subject %q, answered %+v", c.body, d, by, e.Subject, done)
			}
		}
		if !found {
			t.Errorf("%s: no label is on the stream", c.body)
		}
	}
	for body, says := range map[string]string{`{"event":"` + places["b"] + `","truth":"x"}`: "may not operate", `{"event":"messages/0/999","truth":"x"}`: "no event", `{"event":"b","truth":"x"}`: "give the event's place"} {
		r, _ := give("one", body)
		wantProblem(t, r, http.StatusForbidden, api.Forbidden, says)
	}
	for body, says := range map[string]string{`{"event":"messages/0/999","truth":"x"}`: "there is no event", `{"event":"a"}`: "truth", `{"truth":"a"}`: "event", `{"event":"a","truth":"b","ruth":1}`: "ruth",
		`{"event":"` + places["b"] + `","source":"/a","truth":"x"}`: "source", `{"event":"a","truth":"` + strings.Repeat("x", 257) + `"}`: "truth", `{"event":"a","truth":"b","reason":"` + strings.Repeat("x", 1001) + `"}`: "reason"} {
		r, _ := give("ada", body)
		wantProblem(t, r, http.StatusBadRequest, api.InvalidRequest, says)
	}
	wantProblem(t, w.post("/api/v1/scorers/all/labels", `{"event":"a","truth":"b"}`, tokenHeader("ada")...), http.StatusBadRequest, api.InvalidRequest, "has no labels")
}

// A label whose answer was lost is sent again under the same Idempotency-Key, and has the same id. So its readers count it
// once.
func TestALabelThatIsSentAgainIsOneLabel(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, testConfig+scorersOfTests, embedded.Options{}, nil)
	give := func(truth string, headers ...string) string {
		r := w.post(labelPath, `{"event":"a","source":"/shop","truth":"`+truth+`"}`, headers...)
		w.wantStatus(r, http.StatusOK)
		var done api.LabelDone
		w.must(json.Unmarshal([]byte(r.body), &done))
		return done.ID
	}
	named := []string{api.HeaderIdempotencyKey, "once"}
	first := give("refund", named...)
	if again := give("refund", named...); again != first {
		t.Errorf("the same label has the ids %s and %s", first, again)
	}
	for what, id := range map[string]string{"another truth": give("ok", named...), "another request": give("refund"), "a third request": give("refund")} {
		if id == first {
			t.Errorf("%s has the id of the first", what)
		}
	}
}

// labelAsks get every documented answer about labels.
func (d *testGateways) labelAsks(large string, long, stranger []string) []gatewayRequest {
	const body = `{"event": "a", "truth": "b"}`
	return []gatewayRequest{{d.open, "POST", labelPath, body, nil, 200}, {d.guarded, "POST", labelPath, body, d.operator, 200},
		{d.open, "POST", labelPath, body, stranger, 403}, {d.guarded, "POST", labelPath, body, d.reader, 403}, {d.guarded, "POST", labelPath, body, nil, 401},
		{d.narrow, "POST", labelPath, body, append(long, d.operator...), 431}, {d.open, "POST", labelPath, "{}", nil, 400},
		{d.open, "POST", "/api/v1/scorers/no/labels", body, nil, 404}, {d.down, "POST", labelPath, body, nil, 503},
		{d.narrow, "POST", labelPath, strings.Repeat("x", announcedLength+1), d.operator, 413},
		{d.narrow, "POST", labelPath, large, d.operator, 429}, {d.narrow, "POST", labelPath, "late", d.operator, 408}}
}
