package platform

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
)

const trialsOfTests = `version: 1
streams: {messages: {partitions: 2}, scored: {partitions: 2}, truths: }
scorers:
  intents: {from: messages, to: scored, model: "intent/{key}", labels: {from: truths, match: {id: data.message}, truth: data.truth, wait: 1d}}
recipes:
  intent: {when: {type: t}, run: {dir: ., command: [nothing]}, makes: {model: "intent/{key}"}, trial: {pass: [stream.lead.low > 0, stream.errors == 0, stream.p99 < 60000], atLeast: 30}}
`

// A candidate answers the real answers of a scorer again, and the outcomes promote it.
func TestACandidateIsTriedOnTheStream(t *testing.T) {
	t.Parallel()
	w := newScoringWorld(t, trialsOfTests)
	const model = "intent/bot-1"
	w.promoteModel(model, 1, 0, twoLabels(true)) // says yes
	w.must(w.Scorers(w.ctx(), ""))
	w.must(w.Observer(w.ctx()))
	const events = 40
	for n := range events {
		w.publishEvent("messages", fmt.Sprint("message-", n), "bot-1")
	}
	for _, e := range w.waitForEvents("scored", events, isScored) {
		data, err := json.Marshal(tidemill.OutcomeData{Scorer: "intents", Key: "bot-1", Model: model, Version: 1, Place: e.ID, Label: "yes", Truth: "no", Revision: 1})
		w.must(err)
		p, err := w.broker.Producer(broker.ProducerOptions{})
		w.must(err)
		_, err = p.Publish(w.ctx(), tidemill.StreamOutcomes, &broker.View{ID: tidemill.ID("outcome", e.ID), Source: "/tidemill/test/observer", Type: tidemill.TypeOutcome, Subject: "bot-1",
			DataContentType: "application/json", Data: data, Extensions: []broker.Attribute{{Name: tidemill.AttrModel, Value: model}, {Name: tidemill.AttrModelVersion, Value: "1"}}})
		w.must(err)
		w.must(p.Close(w.ctx()))
	}
	g, err := w.Gateway(w.ctx(), GatewayOptions{Listen: "127.0.0.1:0"})
	w.must(err)
	go func() { _ = g.Serve(w.Context()) }() // the test's cleanup closes it
	r, _ := w.Config().Recipe("intent")
	tree := w.putFiles(map[string][]byte{"model.onnx": twoLabels(false)}) // says no
	w.fact(tidemill.TypeModelRegistered, model, "run-2", tidemill.ModelRegistered{Artifact: tree, Judge: r.Judge(),
		Origin: tidemill.Origin{Run: "run-2", Recipe: "intent", Mark: tidemill.Mark{Offset: 2}, Began: time.Unix(2, 0)}})
	m := w.fact(tidemill.TypeModelPromotionProposed, model, "run-2", tidemill.PromotionProposed{Action: tidemill.ActionTry, Version: 2, Run: "run-2", Basis: 1, Turn: 1,
		Judgement: &tidemill.Judgement{Passed: true, Sentence: "it passes"}})
	if m.OnTrial() == nil {
		t.Fatalf("%+v", m)
	}
	var v ledger.VersionRecord
	for ctx := w.ctx(); ; {
		changed := w.Ledger().Changed()
		all, err := w.Ledger().Versions(ctx, model, 2)
		w.must(err)
		if v = all[0]; v.State != tidemill.VersionTrial && v.State != tidemill.VersionRegistered {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatal("the trial does not end")
		}
	}
	j := v.Judgement
	if v.State != tidemill.VersionPromoted || j.Trial == nil || j.Trial.Wins < 30 || j.Trial.Errors != 0 || j.Trial.P99 <= 0 || !strings.Contains(j.Sentence, "passes its trial") {
		t.Fatalf("%s: %+v, %+v", v.State, j, j.Trial)
	}
	again, err := w.judgeAgain(w.ctx(), &v)
	if err != nil || len(again.Differs) > 0 || !reflect.DeepEqual(again.Clauses, j.Clauses) {
		t.Errorf("%+v, %v; recorded %+v", again, err, j)
	}
	// The gateway does the same, and knows no verdict of the first version.
	var got api.Rejudged
	if status := w.get("http://"+g.Addr()+"/api/v1/model/rejudge?version=2&model="+model, &got); status != http.StatusOK || len(got.Differs) > 0 ||
		got.Again.Digest != j.Trial.Digest || got.Recorded.Wins != j.Trial.Wins {
		t.Errorf("%d: %+v", status, got)
	}
	var none api.Problem
	if status := w.get("http://"+g.Addr()+"/api/v1/model/rejudge?version=1&model="+model, &none); status != http.StatusBadRequest || !strings.Contains(none.Detail, "no verdict of a trial") {
		t.Errorf("%d: %+v", status, none)
	}
	var running api.TrialList
	if status := w.get("http://"+g.Addr()+"/api/v1/trials", &running); status != http.StatusOK || running.Trials == nil {
		t.Errorf("%d: %+v", status, running)
	}
}

// get gets a JSON document and returns the status.
func (w *scoringWorld) get(url string, to any) int {
	w.Helper()
	res, err := http.Get(url)
	w.must(err)
	defer res.Body.Close()
	w.must(json.NewDecoder(res.Body).Decode(to))
	return res.StatusCode
}
