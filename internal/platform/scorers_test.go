package platform

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
	"tidemill.dev/config"
	"tidemill.dev/internal/gateway"
	"tidemill.dev/internal/models/champions"
	"tidemill.dev/internal/ops/status"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/internal/scoring/infer"
)

// A process follows champions only once its config has a scorer. An unchanged scorer continues when
// others change.
func TestScorersFollowTheConfig(t *testing.T) {
	t.Parallel()
	w := newScoringWorld(t, "version: 1\n")
	w.must(w.Scorers(w.ctx(), ""))
	if w.scores != nil {
		t.Error("models are open, and nobody asks any")
	}
	w.must(w.applyConfig(w.ctx(), parse(t, scorersOfTests)))
	w.promoteModel("intent/bot-1", 1, 0, twoLabels(true))
	eventuallyTrue(t, func() bool { // an event would have no model before its champion is known
		now, _ := w.scores.champions.Champion("intent/bot-1")
		return now.Version == 1
	})
	w.publishEvent("messages", "1", "bot-1")
	first := w.waitForEvents("scored", 1, isScored)[0]
	if w.attribute(&first, tidemill.AttrModelVersion) != "1" || w.attribute(&first, tidemill.AttrCausationID) != "1" || !strings.Contains(string(first.Data), `"label":"yes"`) {
		t.Errorf("%+v %s", first, first.Data)
	}
	s := w.scorers
	before := s.sortedScorers()[0]
	w.must(w.applyConfig(w.ctx(), parse(t, scorersOfTests+`  others: {from: messages, to: events, model: "intent/{key}", top: 1}`)))
	w.waitForEvents(tidemill.StreamEvents, 1, isScored)
	if all := s.sortedScorers(); len(all) != 2 || all[0] != before {
		t.Errorf("one that has not changed was opened anew, or the other is missing: %v", all)
	}
	w.must(w.applyConfig(w.ctx(), parse(t, strings.ReplaceAll(scorersOfTests, "}\n", "}\n#\n"))))
	if all := s.sortedScorers(); len(all) != 1 || all[0] != before {
		t.Errorf("%v", all)
	}
	w.must(w.applyConfig(w.ctx(), parse(t, strings.Replace(scorersOfTests, "model:", "top: 1, model:", 1))))
	if all := s.sortedScorers(); len(all) != 1 || all[0] == before || all[0].config.Top != 1 {
		t.Errorf("%v", all)
	}
	w.publishEvent("messages", "2", "bot-1")
	if second := w.waitForEvents("scored", 2, isScored)[1]; w.attribute(&second, tidemill.AttrCausationID) != "2" {
		t.Errorf("%+v", second)
	}
	if c := s.check(t.Context()); c.Status != api.OK || c.Name != "scorers" {
		t.Errorf("%+v", c)
	}
}

// If a champion cannot be loaded, the previous one stays, and one fact reports it.
func TestAChampionThatCannotBeLoadedIsToldOf(t *testing.T) {
	t.Parallel()
	w := newScoringWorld(t, scorersOfTests)
	w.promoteModel("intent/bot-1", 1, 0, twoLabels(true))
	w.must(w.Scorers(w.ctx(), ""))
	w.publishEvent("messages", "1", "bot-1")
	w.waitForEvents("scored", 1, isScored)
	w.promoteModel("intent/bot-1", 2, 1, []byte("no model"))
	told := w.waitForEvents(tidemill.StreamFacts, 1, func(e *follow.Event) bool { return e.Type == tidemill.TypeModelUnloadable })[0]
	var data tidemill.ModelUnloadable
	w.must(json.Unmarshal(told.Data, &data))
	if data.Scorer != "intents" || data.Version != 2 || data.Kept != 1 || data.Error == "" || told.Subject != "bot-1" || w.attribute(&told, tidemill.AttrModel) != "intent/bot-1" {
		t.Errorf("%+v %s", told, told.Data)
	}
	w.publishEvent("messages", "2", "bot-1")
	if second := w.waitForEvents("scored", 2, isScored)[1]; w.attribute(&second, tidemill.AttrModelVersion) != "1" {
		t.Errorf("%+v", second)
	}
	w.promoteModel("intent/bot-1", 3, 2, twoLabels(false))
	for n := 3; ; n++ { // the previous champion answers until the new one is loaded
		w.publishEvent("messages", strconv.Itoa(n), "bot-1")
		next := w.waitForEvents("scored", n, isScored)[n-1]
		if w.attribute(&next, tidemill.AttrModelVersion) == "3" && strings.Contains(string(next.Data), `"label":"no"`) {
			break
		}
	}
}

// A champion that lacks ONNX Runtime is reported after the first try, and a request for an answer
// fails at once. A scorer that can load the champion later, here by another engine, withdraws the
// report of the scorer before, and answers the events that waited.
func TestAChampionThatLacksARuntime(t *testing.T) {
	t.Setenv("TIDEMILL_ONNXRUNTIME", t.TempDir()+"/none.so")
	w := newScoringWorld(t, scorersOfTests+"engine: onnxruntime\n")
	w.promoteModel("intent/bot-1", 1, 0, twoLabels(true))
	w.must(w.Scorers(w.ctx(), ""))
	w.publishEvent("messages", "1", "bot-1")
	told := w.waitForEvents(tidemill.StreamFacts, 1, func(e *follow.Event) bool { return e.Type == tidemill.TypeModelUnloadable })[0]
	var data tidemill.ModelUnloadable
	w.must(json.Unmarshal(told.Data, &data))
	if data.Scorer != "intents" || data.Version != 1 || data.Kept != 0 || !strings.HasPrefix(data.Error, "ONNX Runtime is not installed: get it with make onnxruntime") {
		t.Errorf("%s", told.Data)
	}
	c, _ := w.Config().Scorer("intents")
	v := broker.View{ID: "1", Source: "/score", Type: "score", Subject: "bot-1", DataContentType: "application/json", Data: []byte(`{"x":[1,0]}`)}
	var u *gateway.Unanswered
	if _, err := w.scoreOnce(w.ctx(), c, &v); !errors.As(err, &u) || u.NoChampion || !strings.Contains(err.Error(), "ONNX Runtime is not installed") || strings.Contains(err.Error(), "\n") {
		t.Errorf("an answer: %v", err)
	}
	ask := httptest.NewRequest(http.MethodPost, "/v2/models/intent/bot-1/infer", strings.NewReader(`{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,0]}]}`))
	answer := httptest.NewRecorder()
	w.inferenceHandler().ServeHTTP(answer, ask)
	if answer.Code != http.StatusInternalServerError || !strings.Contains(answer.Body.String(), "ONNX Runtime is not installed") {
		t.Errorf("by the Open Inference Protocol: %d %s", answer.Code, answer.Body)
	}
	w.must(w.applyConfig(w.ctx(), parse(t, scorersOfTests)))
	w.waitForEvents("scored", 1, isScored)
	loaded := w.waitForEvents(tidemill.StreamFacts, 1, func(e *follow.Event) bool { return e.Type == tidemill.TypeModelLoaded })[0]
	if w.attribute(&loaded, tidemill.AttrModel) != "intent/bot-1" || loaded.Subject != "bot-1" || string(loaded.Data) != `{"scorer":"intents","version":1}` {
		t.Errorf("%+v %s", loaded, loaded.Data)
	}
	eventuallyTrue(t, func() bool {
		m, err := w.Ledger().Model(w.ctx(), "intent/bot-1")
		return err == nil && m.Unserved == nil
	})
}

// A scorer process needs no runs: it finds champions and models with Redis and the store only.
func TestAScorerOfItsOwn(t *testing.T) {
	t.Parallel()
	w := newScoringWorld(t, scorersOfTests)
	w.promoteModel("intent/bot-1", 1, 0, twoLabels(true))
	kafka, redis := EmbeddedSecurity(w.servers.Dir())
	o := Options{Config: w.Config(), Addresses: w.Addresses(), Security: kafka, RedisSecurity: redis, OwnStreams: true, Telemetry: &telemetry.Options{Name: "scorer", Getenv: func(string) string { return "" }},
		Scoring: ScoringOptions{Dir: t.TempDir()}, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
	bare := o
	bare.Addresses.Store = ""
	if err := open(t, bare).Scorers(w.ctx(), "intents"); err == nil || !strings.Contains(err.Error(), "--store") {
		t.Errorf("without a store: %v", err)
	}
	own := open(t, o)
	if err := own.Scorers(w.ctx(), "intent"); err == nil || !strings.Contains(err.Error(), "the scorers: intents") {
		t.Errorf("one that is not there: %v", err)
	}
	w.must(own.Scorers(w.ctx(), "intents"))
	w.publishEvent("messages", "1", "bot-1")
	w.waitForEvents("scored", 1, isScored)
	board := status.NewScorers(w.redis, w.names, w.kafka)
	for ctx := w.ctx(); ; {
		all, err := board.Read(ctx)
		if whole, n := status.Of(all, "intents"); err == nil && n == 1 && whole.Scored == 1 && len(whole.Swaps) == 1 && all[0].Cache.Models == 1 {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("it tells %+v, %v", all, err)
		}
	}
	w.must(own.applyConfig(w.ctx(), parse(t, "version: 1\nstreams: {messages: {partitions: 2}, scored: {partitions: 2}}\n")))
	if r := own.Ready(t.Context()); r.Status != api.Degraded || !slices.ContainsFunc(r.Checks, func(c api.Check) bool { return c.Name == "scorers" && strings.Contains(c.Detail, "intents") }) {
		t.Errorf("without its scorer it is %+v", r)
	}
}

// A request for one event is answered by the champion, even if no scorer runs.
func TestScoringOnce(t *testing.T) {
	t.Parallel()
	w := newScoringWorld(t, scorersOfTests)
	w.promoteModel("intent/bot-1", 1, 0, twoLabels(true))
	c, _ := w.Config().Scorer("intents")
	ask := func(key, data string) (api.ScoreDone, error) {
		v := broker.View{ID: "1", Source: "/score", Type: "score", Subject: key, DataContentType: "application/json", Data: []byte(data)}
		return w.scoreOnce(w.ctx(), c, &v)
	}
	done, err := ask("bot-1", `{"x":[1,0]}`)
	if err != nil || done.Model != "intent/bot-1" || done.Version != 1 || done.Label != "yes" || done.Score < 0.99 || len(done.Scores) != 2 {
		t.Errorf("%+v, %v", done, err)
	}
	var u *gateway.Unanswered
	if _, err := ask("bot-2", `{"x":[1,0]}`); !errors.As(err, &u) || !u.NoChampion {
		t.Errorf("a key without a champion: %v", err)
	}
	if _, err := ask("bot-1", `{"y":1}`); !errors.As(err, &u) || u.NoChampion {
		t.Errorf("an event without what the model wants: %v", err)
	}
	w.promoteModel("intent/bot-3", 1, 0, []byte("no model"))
	v := broker.View{ID: "1", Source: "/score", Type: "score", Subject: "bot-3", DataContentType: "application/json", Data: []byte(`{"x":[1,0]}`)}
	for ctx := w.ctx(); ; { // there is no signal that the facts have been read
		if _, err := w.scoreOnce(ctx, c, &v); errors.As(err, &u) && !u.NoChampion && strings.Contains(err.Error(), "its model cannot be loaded") {
			break
		} else if ctx.Err() != nil || err == nil {
			t.Fatalf("a model that cannot be loaded: %v", err)
		}
	}
	w.promoteModel("intent/bot-1", 2, 1, twoLabels(false))
	for ctx := w.ctx(); ; { // there is no signal that the facts have been read
		if done, err := ask("bot-1", `{"x":[1,0]}`); err == nil && done.Version == 2 {
			break
		} else if ctx.Err() != nil {
			t.Fatalf("%+v, %v", done, err)
		}
	}
}

func TestFetchIsBounded(t *testing.T) {
	t.Parallel()
	w := newScoringWorld(t, "version: 1\n")
	tree := w.promoteModel("intent/bot-1", 1, 0, []byte("0123456789"))
	s := &scoringModels{store: w.Store()}
	if data, err := s.fetchFile(w.ctx(), tree, "model.onnx", 10); err != nil || string(data) != "0123456789" {
		t.Errorf("%q, %v", data, err)
	}
	if _, err := s.fetchFile(w.ctx(), tree, "model.onnx", 9); !errors.Is(err, infer.ErrUnfit) {
		t.Errorf("one that is too large: %v", err)
	}
	absent := strings.Repeat("ab", 32)
	if _, err := s.fetchFile(w.ctx(), absent, "model.onnx", 9); err == nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "artifact "+absent+", or a part of it, is not in the store") {
		t.Errorf("of a tree that the store lacks: %v", err)
	}
	if _, err := s.fetchFile(w.ctx(), tree, "model.yaml", 9); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("one that is not there: %v", err)
	}
}

// All processes write the same fact about an unloadable champion. If a version is promoted again,
// the fact differs.
func TestUnloadableIsOneFact(t *testing.T) {
	t.Parallel()
	names, err := tidemill.NewNames("test")
	if err != nil {
		t.Fatal(err)
	}
	u := championReport{typ: tidemill.TypeModelUnloadable, scorer: "s", model: "m", version: 2, champion: champions.Champion{Turn: 3, Key: "k"}, data: "no"}
	at := time.Unix(1, 0)
	one, err1 := u.asEvent(names, at)
	u.data = "no, says another"
	two, err2 := u.asEvent(names, at)
	u.champion.Turn++
	three, err3 := u.asEvent(names, at)
	if err := errors.Join(err1, err2, err3); err != nil || one.ID != two.ID || one.ID == three.ID || one.Validate() != nil {
		t.Errorf("%v, %v: %v, %v", one, two, three, err)
	}
}

func TestNoScorer(t *testing.T) {
	t.Parallel()
	for says, c := range map[string]*config.Config{"none under scorers": {}, "the scorers: a, b": {Scorers: []config.Scorer{{Name: "a"}, {Name: "b"}}}} {
		if err := noScorer(c, "x"); !strings.Contains(err.Error(), says) {
			t.Errorf("%v", err)
		}
	}
	var e championListeners
	e.onChange("m", champions.Champion{})
	if !reflect.DeepEqual(e.all, championListeners{}.all) {
		t.Error("nobody listens")
	}
}

// A changed number of processes does not restart a scorer; any other change does.
func TestSameScorer(t *testing.T) {
	one := config.Scorer{Name: "a", From: "b", Types: []string{"t"}, Replicas: config.Replicas{Max: 1}}
	more, other := one, one
	more.Replicas = config.Replicas{Min: 2, Max: 8, Lag: 5}
	other.Types = []string{"u"}
	if !sameScorer(one, more) || sameScorer(one, other) || one.Replicas.Max != 1 {
		t.Errorf("%t, %t", sameScorer(one, more), sameScorer(one, other))
	}
}
