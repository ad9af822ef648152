package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/internal/ops/status"
)

const scorersOfTests = `scorers:
  intents: {from: messages, to: scored, types: [message], model: "intent/{key}", map: {text: data.text, age: {path: data.age, default: .nan}, sum: {path: data.sum, default: 0}}, noModel: {model: intent/default}, labels: {from: events, types: [verdict], match: {id: data.of, source: data.from}, truth: data.truth, wait: 14d, missing: other, group: data.chat}}
  all: {from: messages, to: scored, key: none, model: m, delivery: at-least-once, engine: go}
`

// A name that is not in the config is answered with the nearest one that is.
func TestNearestNames(t *testing.T) {
	t.Parallel()
	known := []config.Scorer{{Name: "fraud"}, {Name: "intents"}}
	for name, want := range map[string]string{"frad": " did you mean fraud?", "INTENT": " did you mean intents?", "xyz": "", strings.Repeat("f", 10_000): ""} {
		if got := didYouMean(name, known, func(c *config.Scorer) string { return c.Name }); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// echoScore answers as far as these tests need. The platform's tests use real models.
func echoScore(_ context.Context, c config.Scorer, v *broker.View) (api.ScoreDone, error) {
	switch v.Subject {
	case "bot-none":
		return api.ScoreDone{}, &Unanswered{NoChampion: true, Err: errors.New("model intent/bot-none has no champion")}
	case "bot-away":
		return api.ScoreDone{}, errors.New("the store is away")
	}
	var data struct{ Text string }
	if err := json.Unmarshal(v.Data, &data); err != nil || data.Text == "" {
		return api.ScoreDone{}, &Unanswered{Err: errors.New("there is no text at data.text")}
	}
	return api.ScoreDone{Model: strings.ReplaceAll(c.Model, "{key}", v.Subject), Version: 7, Label: data.Text, Score: 0.75,
		Scores: map[string]float64{"a": 0.75}, Values: []float64{1}}, nil
}

// standingScorers makes processes report the state of their scorers.
func standingScorers(w *world, all ...status.Process) *status.Scorers {
	w.Helper()
	s := status.NewScorers(w.redis, must1(tidemill.NewNames(""))(w), "kafka-1")
	ctx, stop := context.WithCancel(w.Context())
	w.Cleanup(stop)
	for _, p := range all {
		go s.Publish(ctx, p.ID, func() status.Process { return p })
	}
	waitFor(w, func() bool {
		got, err := s.Read(w.Context())
		return err == nil && len(got) == len(all)
	})
	return s
}

func scorerProcess(id string, began time.Time) status.Process {
	swap := func(version int, partition int32, after time.Duration) status.Swap {
		return status.Swap{At: began.Add(after), Model: "intent/bot-42", Before: version - 1, Version: version, Stream: "messages", Partition: partition, Offset: 9}
	}
	return status.Process{ID: id, Host: "h", Began: began, Cache: status.Cache{Models: 4, Bytes: 5, Budget: 6, Hits: 3, Misses: 1, Evicted: 2},
		Scorers: []status.Scorer{{Name: "intents", Events: 9, Scored: 8, Rate: 2.5, Lag: 3, P50: 1500 * time.Microsecond, P99: 9 * time.Millisecond, Models: 2,
			Swaps: []status.Swap{swap(2, 1, 3*time.Second), swap(2, 0, 2*time.Second), swap(1, 0, time.Second)}, LastError: "of bot-42", LastErrorAt: began}}}
}

func TestScorersAreListed(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	w := newWorldOf(t, testConfig+scorersOfTests, embedded.Options{}, nil)
	board := standingScorers(w, scorerProcess("a", began), scorerProcess("b", began.Add(time.Minute)))
	w.url = "http://" + w.openGateway(func(o *Options) { o.Scorers = board }).Addr()
	var all api.Scorers
	w.get("/api/v1/scorers", &all)
	if all.Processes == nil || *all.Processes != 2 || len(all.Scorers) != 2 {
		t.Fatalf("%+v", all)
	}
	quiet, loud := all.Scorers[0], all.Scorers[1]
	if quiet.Name != "all" || *quiet.Processes != 0 || quiet.Numbers != nil || quiet.Lag != nil || quiet.Delivery != "at-least-once" || quiet.Engine != "go" || quiet.NoModel != "dead-letter" {
		t.Errorf("one that no process has: %+v", quiet)
	}
	want := api.ScorerNumbers{Events: 18, Scored: 16, Rate: 5, P50Seconds: 0.0015, P99Seconds: 0.009, Models: 4, HitRate: 0.75}
	if *loud.Processes != 2 || *loud.Lag != 6 || !reflect.DeepEqual(*loud.Numbers, want) || loud.LastError != "of bot-42" || loud.Instead != "intent/default" || loud.Map["text"] != "data.text" || string(loud.Defaults["age"]) != `"NaN"` || string(loud.Defaults["sum"]) != "0" {
		t.Errorf("%+v, %+v", loud, loud.Numbers)
	}
	var one api.ScorerShown
	w.get("/api/v1/scorers/intents", &one)
	if len(one.Swaps) != 6 || one.Swaps[0].Version != 2 || !one.Swaps[0].At.Equal(began.Add(time.Minute+3*time.Second)) {
		t.Errorf("swaps %+v", one.Swaps)
	}
	if want := []api.ScorerVersion{{Model: "intent/bot-42", Version: 2, Since: began.Add(2 * time.Second)}}; !reflect.DeepEqual(one.Versions, want) {
		t.Errorf("versions %+v", one.Versions)
	}
	if len(one.Running) != 2 || one.Running[0].ID != "a" || one.Running[0].Bytes != 5 || one.Running[0].Lag != 3 || one.Running[0].Numbers.HitRate != 0.75 {
		t.Errorf("running %+v", one.Running)
	}
	wantProblem(t, w.do("GET", "/api/v1/scorers/no", ""), http.StatusNotFound, api.UnknownScorer, `"no"`)
}

// Kafka has the lag, even if no process scores.
func TestALagIsKafkas(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, testConfig+scorersOfTests, embedded.Options{}, nil)
	for i := range 5 {
		w.wantStatus(w.post("/streams/messages", "{}", eventHeaders(fmt.Sprint(i), "ce-subject", "k")...), http.StatusAccepted)
	}
	c := must1(w.broker.Consumer(t.Context(), broker.ConsumerOptions{Group: tidemill.ScorerGroup("intents"), Streams: []string{"messages"}, Start: broker.Earliest()}))(t)
	for read := 0; read < 5; {
		d := must1(c.Poll(t.Context()))(t)
		read += len(d.Events)
		d.Done()
	}
	w.must(c.Close(t.Context())) // and commits
	w.wantStatus(w.post("/streams/messages", "{}", eventHeaders("6", "ce-subject", "k")...), http.StatusAccepted)
	waitFor(t, func() bool { // the previous answer is used again for a moment
		var one api.ScorerShown
		w.get("/api/v1/scorers/intents", &one)
		return one.Lag != nil && *one.Lag == 1 && one.Processes == nil
	})
}

// wantStatus checks the status of an answer.
func (w *world) wantStatus(r reply, status int) {
	w.Helper()
	if r.StatusCode != status {
		w.Errorf("%s %s", r.Status, r.body)
	}
}

func (w *world) get(path string, to any) {
	w.Helper()
	r := w.do("GET", path, "")
	if err := json.Unmarshal([]byte(r.body), to); err != nil || r.StatusCode != http.StatusOK {
		w.Fatalf("%s: %s %s %v", path, r.Status, r.body, err)
	}
}

// An event is scored in any mode, and so is its data alone.
func TestScoringOneEvent(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, testConfig+scorersOfTests, embedded.Options{}, func(o *Options) { o.Score = echoScore })
	const path = "/api/v1/scorers/intents/score"
	structured := []string{"Content-Type", "application/cloudevents+json"}
	for name, r := range map[string]reply{
		"data":       w.post(path+"?key=bot-42", `{"text":"hi"}`, "Content-Type", "application/json"),
		"binary":     w.post(path, `{"text":"hi"}`, append(eventHeaders("1", "ce-subject", "bot-42"), "Content-Type", "application/json")...),
		"structured": w.post(path, `{"specversion":"1.0","id":"1","source":"/x","type":"message","subject":"bot-42","data":{"text":"hi"}}`, structured...),
		"whole":      w.post(path, `{"specversion":"1.0","id":"1","source":"/x","type":"message","subject":"bot-42","data":{"text":"hi"}}`, "Content-Type", "application/json"),
		"of another": w.post(path+"?key=bot-42", `{"specversion":"1.0","id":"1","source":"/x","type":"message","subject":"bot-7","data":{"text":"hi"}}`, structured...),
	} {
		const want = `{"scorer":"intents","model":"intent/bot-42","version":7,"label":"hi","score":0.75,"scores":{"a":0.75},"values":[1]}`
		if r.StatusCode != http.StatusOK || strings.TrimSpace(r.body) != want {
			t.Errorf("%s: %s %s", name, r.Status, r.body)
		}
	}
	wantProblem(t, w.post(path+"?key=bot-none", "{}"), http.StatusNotFound, api.UnknownModel, "bot-none has no champion")
	wantProblem(t, w.post(path+"?key=bot-1", "{}"), http.StatusUnprocessableEntity, api.Unscorable, "data.text")
	wantProblem(t, w.post(path+"?key=bot-away", "{}"), http.StatusServiceUnavailable, api.Unavailable, "the store is away")
	wantProblem(t, w.post(path, `{"specversion":"1.0","data":{"text":"hi"}}`), http.StatusBadRequest, api.InvalidEvent, "id")
	wantProblem(t, w.post("/api/v1/scorers/all/score?key=bot-1", "{}"), http.StatusBadRequest, api.InvalidRequest, "key: none")
	wantProblem(t, w.post(path+"?kee=x", "{}"), http.StatusBadRequest, api.InvalidRequest, "kee")
	wantProblem(t, w.post(path, "[]", "Content-Type", "application/cloudevents-batch+json"), http.StatusBadRequest, api.InvalidRequest, "batch")
	if n := len(w.storedEvents("scored")) + len(w.storedEvents("messages")); n != 0 {
		t.Errorf("asking has published %d events", n)
	}
}

// A caller that may see some keys can ask only for those, and gets no model's name.
func TestScoringForSomeKeys(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, testConfig+scorersOfTests, embedded.Options{}, nil)
	board := standingScorers(w, scorerProcess("a", time.Now()))
	w.url = "http://" + w.openGateway(func(o *Options) {
		o.Score, o.Scorers = echoScore, board
		o.Access = openGuard(t, "version: 1\ntokens:\n"+callerLine("all", "role: read")+callerLine("one", "role: read, keys: [bot-1]"))
	}).Addr()
	as := func(name string) []string { return []string{"Authorization", "Bearer " + tokenFor(name)} }
	const path = "/api/v1/scorers/intents/score"
	w.wantStatus(w.post(path+"?key=bot-1", `{"text":"hi"}`, as("one")...), http.StatusOK)
	w.wantStatus(w.post(path+"?key=bot-2", `{"text":"hi"}`, as("all")...), http.StatusOK)
	wantProblem(t, w.post(path+"?key=bot-2", `{"text":"hi"}`, as("one")...), http.StatusForbidden, api.Forbidden, "bot-2")
	wantProblem(t, w.post(path, `{"text":"hi"}`, append(eventHeaders("1", "ce-subject", "bot-1"), as("one")...)...), http.StatusBadRequest, api.InvalidRequest, "key")
	wantProblem(t, w.post("/api/v1/scorers/all/score", `{"text":"hi"}`, as("one")...), http.StatusForbidden, api.Forbidden, "one model for all")
	for name, wanted := range map[string]bool{"all": true, "one": false} {
		r := w.do("GET", "/api/v1/scorers/intents", "", as(name)...)
		if told := strings.Contains(r.body, "bot-42"); r.StatusCode != http.StatusOK || told != wanted {
			t.Errorf("%s is told %s %s", name, r.Status, r.body)
		}
		if r := w.do("GET", "/api/v1/scorers", "", as(name)...); strings.Contains(r.body, "of bot-42") != wanted {
			t.Errorf("%s is told %s %s", name, r.Status, r.body)
		}
	}
}

// scorerAsks get every documented answer about scorers.
func (d *testGateways) scorerAsks(long, stranger []string) (all []gatewayRequest) {
	const score = "/api/v1/scorers/intents/score"
	for operation, body := range map[string]string{"GET /api/v1/scorers": "", "GET /api/v1/scorers/intents": "", "POST " + score: `{"text":"hi"}`} {
		method, path, _ := strings.Cut(operation, " ")
		all = append(all, gatewayRequest{d.open, method, path, body, nil, 200}, gatewayRequest{d.open, method, path, body, stranger, 403},
			gatewayRequest{d.guarded, method, path, body, d.publisher, 403}, gatewayRequest{d.guarded, method, path, body, nil, 401},
			gatewayRequest{d.narrow, method, path, body, append(long, d.reader...), 431})
	}
	large := strings.Repeat("x", 30<<10)
	all = append(all, d.rescoreAsks(large, long, stranger)...)
	all = append(all, d.labelAsks(large, long, stranger)...)
	return append(all,
		gatewayRequest{d.guarded, "GET", "/api/v1/scorers", "", d.reader, 200},
		gatewayRequest{d.guarded, "GET", "/api/v1/scorers/intents", "", d.reader, 200},
		gatewayRequest{d.open, "GET", "/api/v1/scorers/no", "", nil, 404},
		gatewayRequest{d.open, "POST", "/api/v1/scorers/no/score", "{}", nil, 404},
		gatewayRequest{d.open, "POST", score + "?key=bot-none", "{}", nil, 404},
		gatewayRequest{d.open, "POST", score + "?kee=x", "{}", nil, 400},
		gatewayRequest{d.open, "POST", score, "{", []string{"Content-Type", "application/cloudevents+json"}, 400},
		gatewayRequest{d.open, "POST", score, "{}", []string{"Content-Type", "application/cloudevents+avro"}, 415},
		gatewayRequest{d.open, "POST", score, "{}", nil, 422},
		gatewayRequest{d.open, "POST", score + "?key=bot-away", "{}", nil, 503},
		gatewayRequest{d.guarded, "POST", score, "{}", d.reader, 501},
		gatewayRequest{d.narrow, "POST", score, strings.Repeat("x", announcedLength+1), d.reader, 413},
		gatewayRequest{d.narrow, "POST", score, large, d.reader, 429},
		gatewayRequest{d.narrow, "POST", score, "late", d.reader, 408})
}
