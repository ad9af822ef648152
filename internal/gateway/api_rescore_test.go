package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
)

// echoRescore answers with the ranges and parameters that it got.
func echoRescore(_ context.Context, c config.Scorer, ask api.RescoreAsk, ranges []tidemill.Range) (api.Rescored, error) {
	switch ask.Resume {
	case "lost":
		return api.Rescored{}, &Unanswered{Err: errors.New("it is unknown")}
	case "away":
		return api.Rescored{}, errors.New("the store is away")
	}
	done := api.Rescored{ID: c.Name + ask.Version + ask.ToStream + ask.Resume, Reasons: map[string]string{}}
	for _, r := range ranges {
		done.Records += r.To - r.From
	}
	return done, nil
}

func TestAStreamIsScoredOnceMore(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, testConfig+scorersOfTests, embedded.Options{}, func(o *Options) { o.Rescore = echoRescore })
	for _, id := range []string{"1", "2", "3"} {
		w.wantStatus(w.post("/streams/messages", "{}", eventHeaders(id, "ce-subject", "bot-42")...), http.StatusAccepted)
	}
	const path = "/api/v1/scorers/intents/rescore"
	var done api.Rescored
	tell := func(body string, headers ...string) {
		r := w.post(path, body, headers...)
		w.wantStatus(r, http.StatusOK)
		done = api.Rescored{}
		w.must(json.Unmarshal([]byte(r.body), &done))
	}
	tell(`{"from": "beginning", "toStream": "events", "version": "7"}`)
	if done.ID != "intents7events" || done.Records != 3 {
		t.Errorf("%+v", done)
	}
	tell(`{"from": "end", "toStream": "events"}`)
	if done.ID != "intentschampionevents" || done.Records != 0 {
		t.Errorf("%+v", done)
	}
	tell(`{"resume": "abc"}`)
	if done.ID != "intentsabc" {
		t.Errorf("%+v", done)
	}
	ask := api.RescoreAsk{From: "beginning", ToStream: "events"}
	tell(`{"from": "beginning", "toStream": "events"}`, api.HeaderIdempotencyKey, "k")
	if id := ask.ID("intents", "k"); done.ID != "intentschampionevents"+id || done.Records != 3 {
		t.Errorf("%+v, and its id is %s", done, id)
	}
	tell(`{"resume": "abc"}`, api.HeaderIdempotencyKey, "k")
	if done.ID != "intentsabc" {
		t.Errorf("%+v", done)
	}
	ends, err := w.broker.Ends(t.Context(), "messages")
	w.must(err)
	ends = slices.DeleteFunc(ends, func(p broker.Position) bool { return p.Offset < 3 })
	if len(ends) != 1 {
		t.Fatalf("the events are not in one partition: %v", ends)
	}
	for _, deleted := range []int64{0, 2} {
		ends[0].Offset = deleted
		w.must(w.broker.DeleteBelow(t.Context(), ends))
		for from, earlier := range map[string]bool{"beginning": false, "0": true, "1": true, "2": false, "-1h": true, "end": false} {
			tell(`{"from": "` + from + `", "toStream": "events"}`)
			if (done.Since == nil) == (earlier && deleted > 0) {
				t.Errorf("from %s, after retention has deleted %d events: %+v", from, deleted, done)
			}
		}
	}
	for body, says := range map[string]string{`{"toStream": "events"}`: "from", `{"from": "-1h"}`: "toStream", `{"from": "-1h", "toStream": "no"}`: "toStream",
		`{"from": "soon", "toStream": "events"}`: "soon", `{"resume": "abc", "from": "-1h"}`: "leave out the others", `{"form": 1}`: "form"} {
		wantProblem(t, w.post(path, body), http.StatusBadRequest, api.InvalidRequest, says)
	}
}

// rescoreAsks get every documented answer about rescoring.
func (d *testGateways) rescoreAsks(large string, long, stranger []string) []gatewayRequest {
	const path, body = "/api/v1/scorers/intents/rescore", `{"resume": "abc"}`
	return []gatewayRequest{{d.open, "POST", path, body, nil, 200}, {d.open, "POST", path, body, stranger, 403}, {d.guarded, "POST", path, body, d.reader, 403},
		{d.guarded, "POST", path, body, nil, 401}, {d.narrow, "POST", path, body, append(long, d.operator...), 431},
		{d.open, "POST", path, "{}", nil, 400}, {d.open, "POST", "/api/v1/scorers/no/rescore", body, nil, 404},
		{d.open, "POST", path, strings.ReplaceAll(body, "abc", "lost"), nil, 422}, {d.open, "POST", path, strings.ReplaceAll(body, "abc", "away"), nil, 503},
		{d.guarded, "POST", path, body, d.operator, 501}, {d.narrow, "POST", path, strings.Repeat("x", announcedLength+1), d.operator, 413},
		{d.narrow, "POST", path, large, d.operator, 429}, {d.narrow, "POST", path, "late", d.operator, 408}}
}
