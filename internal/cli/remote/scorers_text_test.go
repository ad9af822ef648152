package remote

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/show"
)

var scoringNow = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func shownScorer() api.ScorerShown {
	at := scoringNow.Add(-90 * time.Second)
	s := api.Scorer{Name: "intents", From: "messages", To: "scored", Types: []string{"message"}, Key: "subject", Model: "intent/{key}",
		Map: map[string]string{"text": "data.text"}, Defaults: map[string]json.RawMessage{"text": json.RawMessage(`"none"`)}, NoModel: "model", Instead: "intent/default", Delivery: "exactly-once", Engine: "auto",
		Processes: new(1), Lag: new(int64(1234)), LastError: "model.onnx is\x1b[31m cut off", LastErrorAt: &at,
		Numbers: &api.ScorerNumbers{Events: 12, Scored: 45678, Passed: 1, Dropped: 2, DeadLettered: 3, Skipped: 4, Held: 5, Aborted: 1, Rate: 5000.4,
			P50Seconds: 0.0018, P99Seconds: 0.0123, Models: 1000, HitRate: 0.987}}
	swap := api.ScorerSwap{At: at, Model: "intent/bot-42", Before: 3, Version: 4, Stream: "messages", Partition: 7, Offset: 991}
	first := swap
	first.Before, first.Version, first.Model, first.Offset = 0, 1, "intent/bot-7", 0
	return api.ScorerShown{Scorer: s, Versions: []api.ScorerVersion{{Model: "intent/bot-42", Version: 4, Since: at}}, Swaps: []api.ScorerSwap{swap, first},
		Running: []api.ScorerProcess{{ID: "abc", Host: "node-1", Began: scoringNow.Add(-2 * time.Hour), Lag: 1234, Numbers: *s.Numbers, Loaded: 9, Bytes: 3 << 20, Budget: 1 << 30}}}
}

func TestScorersAsATable(t *testing.T) {
	t.Parallel()
	whole := shownScorer()
	var b strings.Builder
	if err := show.Table(&b, scorerTable(&api.Scorers{Scorers: []api.Scorer{whole.Scorer, {Name: "other", From: "a", To: "b"}}}).rows); err != nil {
		t.Fatal(err)
	}
	const want = "" +
		"SCORER      RATE    LAG     P50      P99  WAITING  SCORED  DEAD  MODELS   HITS  FROM\n" +
		"intents  5,000/s  1,234  1.8 ms  12.3 ms        5  45,678     3   1,000  98.7%  messages → scored\n" +
		"other          ?      ?       ?        ?        ?       ?     ?       ?      ?  a → b\n"
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", &b, want)
	}
}

func TestAdviceOnScorers(t *testing.T) {
	t.Parallel()
	for want, all := range map[string]api.Scorers{
		"is unknown":                         {},
		"No scorer runs":                     {Processes: new(0)},
		"tidemill serve scorer intents ":     {Processes: new(1), Scorers: []api.Scorer{{Name: "intents", Processes: new(0)}, {Name: "b", Processes: new(1)}}},
		"No process runs intents, other: ti": {Processes: new(1), Scorers: []api.Scorer{{Name: "intents", Processes: new(0)}, {Name: "other", Processes: new(0)}}},
	} {
		var b strings.Builder
		adviseOnScorers(&b, &all)
		expect(t, "the advice", b.String(), want)
	}
	var b strings.Builder
	if adviseOnScorers(&b, &api.Scorers{Processes: new(1), Scorers: []api.Scorer{{Name: "b", Processes: new(1)}}}); b.Len() > 0 {
		t.Errorf("where nothing is remarkable it says %s", &b)
	}
}

func TestAScorerIsShown(t *testing.T) {
	t.Parallel()
	whole := shownScorer()
	var b strings.Builder
	if err := showScorer(&b, &whole, scoringNow); err != nil {
		t.Fatal(err)
	}
	expect(t, "the scorer", b.String(), "message of messages, to scored", "intent/{key}, the key is subject, text from data.text (default \"none\")", "intent/default answers",
		"exactly-once, engine auto", "1,234 events", "5,000/s, p50 1.8 ms, p99 12.3 ms, 5 waiting", "45,678 events scored, 1 passed on, 2 dropped, 3 became dead letters",
		"4 skipped, 1 transaction aborted", "1,000 in use, in memory at 98.7% of uses", "cut off, 1m ago", "intent/bot-42  4        1m ago", "3 → 4", "messages/7/991", "messages/7/0",
		"node-1/abc", "3.0 MiB of 1.0 GiB", "2h ago")
	if strings.Contains(b.String(), "\x1b") {
		t.Errorf("it writes on the terminal what a model says: %q", b.String())
	}
	b.Reset()
	if err := showScorer(&b, &api.ScorerShown{Scorer: api.Scorer{Name: "x", From: "a", To: "b", NoModel: "pass"}}, scoringNow); err != nil {
		t.Fatal(err)
	}
	expect(t, "one of which nothing is known", b.String(), "every event of a, to b", "unchanged", "no process has reported recently")
}

// A list that is not shown to its end says how many are left out.
func TestAScorerWithManyVersions(t *testing.T) {
	t.Parallel()
	whole := shownScorer()
	for range 1500 {
		whole.Versions, whole.Swaps = append(whole.Versions, whole.Versions[0]), append(whole.Swaps, whole.Swaps[0])
	}
	var b strings.Builder
	if err := showScorer(&b, &whole, scoringNow); err != nil {
		t.Fatal(err)
	}
	expect(t, "the scorer", b.String(), "… and 1,481 more; -o json has all\n\nRecent swaps:", "… and 1,482 more; -o json has all\n\nPROCESS")
}

func TestAnAnswerIsShown(t *testing.T) {
	t.Parallel()
	many := map[string]float64{}
	for i := range 12 {
		many[string(rune('a'+i))] = float64(i) / 100
	}
	for want, a := range map[string]api.ScoreDone{
		"greet 0.912  (intent/bot-42@7)\n  greet  0.912\n  buy    0.050\n  sell   0.050\n": {Model: "intent/bot-42", Version: 7, Label: "greet", Score: 0.912, Scores: map[string]float64{"sell": 0.05, "greet": 0.912, "buy": 0.05}},
		"1, 2.5  (demand/shop-1@2)\n":                 {Model: "demand/shop-1", Version: 2, Values: []float64{1, 2.5}},
		"1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...  (m@1)\n": {Model: "m", Version: 1, Values: []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
		"l 0.110  (m@1)\n  l  0.110\n  k  0.100\n  j  0.090\n  i  0.080\n  h  0.070\n  g  0.060\n  f  0.050\n  e  0.040\n  d  0.030\n  c  0.020\n  and 2 labels; -o json has all\n": {Model: "m", Version: 1, Label: "l", Score: 0.11, Scores: many},
	} {
		var b strings.Builder
		if err := showScore(&b, &a); err != nil || b.String() != want {
			t.Errorf("got\n%swant\n%s%v", &b, want, err)
		}
	}
}

// A rescore that has no answer to its first request may have begun, so it says how to continue. One that is refused has not.
func TestARescoreIsInterrupted(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	keys, refused := make(chan string, 2), false
	g := gatewayOf(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		keys <- r.Header.Get(api.HeaderIdempotencyKey)
		if refused {
			w.Header().Set("Content-Type", api.ProblemType)
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = io.WriteString(w, `{"title":"no","detail":"give a number"}`)
			return
		}
		interrupt()
		<-r.Context().Done()
	})
	p := &rescore{ask: api.RescoreAsk{From: "beginning", ToStream: "what-if"}}
	c := &call{Session: &command.Session{Stdout: io.Discard, Stderr: io.Discard}, g: g, positional: []string{"intents"}}
	err := p.do(ctx, c)
	key := <-keys
	if want := "; continue with: tidemill rescore intents --resume " + p.ask.ID("intents", key); err == nil || key == "" || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%v, want %s (key %q)", err, want, key)
	}
	refused = true
	if err := p.do(t.Context(), c); err == nil || strings.Contains(err.Error(), "--resume") {
		t.Errorf("refused: %v", err)
	}
}
