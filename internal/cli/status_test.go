package cli

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
)

const statusConfig = `version: 1
streams: {messages: {types: [message]}, scored: }
pools: {small: {slots: 1}}
recipes:
  intent:
    when: {type: bot-created}
    run: {dir: trainer, command: [sh, train.sh], pool: small, attempts: 1}
    makes: {model: "intent/{key}"}
    gate: [metrics.accuracy >= 0.99]
scorers:
  intents: {from: messages, to: scored, model: "intent/{key}"}
`

// Status shows on one screen what a person has to look at, and the commands for it.
func TestStatus(t *testing.T) {
	t.Parallel()
	dir, file := runsFolder(t, statusConfig)
	r := runsAt{t, filepath.Join(dir, "data")}
	up := startUp(t, r.data, "-f", file)
	eventually(t, func() bool { return strings.Contains(r.ok("status"), "install   ready") }) // up may listen before its ledger is filled
	mention(t, "at rest", r.ok("status"), "install   ready", "none is running or waiting", "0 champions", "intents 0/s", "Nothing needs you.")

	r.ok("runs", "start", "intent", "--key", "bad-1", "--key", "bot-1")
	bad := r.is("bad-1", tidemill.RunFailed)
	r.is("bot-1", tidemill.RunSucceeded)
	r.ok("runs", "start", "intent", "--key", "long-1")
	r.is("long-1", tidemill.RunRunning)
	r.ok("runs", "start", "intent", "--key", "next-1")
	r.ok("publish", "message", "--subject", "stranger", "-d", "{}")
	r.ok("recipes", "pause", "intent")
	var out string
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last status:\n%s", out)
		}
	})
	eventually(t, func() bool {
		out = r.ok("status")
		return strings.Contains(out, "1 open") && strings.Contains(out, "1 of the newest versions refused") && strings.Contains(out, "tidemill recipes resume intent") // the last command appears after no event waits
	})
	mention(t, "status", out, "1 running, 1 waiting, 1 failed", "intent long-1  running", "1 run: ", bad[:10]+"  intent bad-1  failed ", "exit status 3: no luck",
		"intent/bot-1@1 is refused: its gate asks for metrics.accuracy >= 0.99, but it is 0.93", "1 scorer/intents: model intent/stranger has no champion", "recipe intent by anonymous",
		"Next: tidemill logs "+bad[:10], "tidemill models show intent/bot-1@1", "tidemill dl", "tidemill recipes resume intent")
	// up reads what happens on its own, so its lines may come after the answer of status.
	for _, line := range []string{"run " + bad[:10] + "  intent bad-1  failed after ", ": exit status 3: no luck\n", "model intent/bot-1@1  is refused: its gate asks for metrics.accuracy >= 0.99, but it is 0.93\n"} {
		eventually(t, func() bool { return strings.Contains(up.stdout.String(), line) })
	}
}

// A change by a person names the person. A swap is printed once, though each partition reports it.
func TestWhatHappens(t *testing.T) {
	t.Parallel()
	conf := &config.Config{Recipes: []config.Recipe{{Name: "intent", Gate: []string{"metrics.zeal >= 1"}, Run: config.Job{Attempts: 2}}}}
	h, of := happenings{config: func() *config.Config { return conf }}, func(typ, version, by string, data any) *broker.View {
		text, err := json.Marshal(data)
		if err != nil {
			t.Fatal(err)
		}
		return &broker.View{Type: typ, Data: text, Extensions: []broker.Attribute{{Name: tidemill.AttrModel, Value: "m/a"}, {Name: tidemill.AttrModelVersion, Value: version},
			{Name: tidemill.AttrAuthID, Value: by}, {Name: tidemill.AttrRecipe, Value: "intent"}, {Name: tidemill.AttrRun, Value: "abcdefghijklmnop"}}}
	}
	swap := tidemill.ScorerSwappedData{Scorer: "s"}
	verdict := tidemill.ModelAnnounced{Version: 2, Judgement: &tidemill.Judgement{Sentence: "version 2 of m/a passes: accuracy 0.9"}}
	for i, c := range []struct {
		of   *broker.View
		want string
	}{
		{of(tidemill.TypeScorerSwapped, "2", "", swap), "scorer s  answers with m/a@2"},
		{of(tidemill.TypeScorerSwapped, "2", "", swap), ""},
		{of(tidemill.TypeScorerSwapped, "3", "", swap), "scorer s  answers with m/a@3"},
		{of(tidemill.TypeModelUnloadable, "4", "", tidemill.ModelUnloadable{Scorer: "s", Version: 4, Kept: 3, Error: "it is cut off"}), "scorer s  cannot load m/a@4: it is cut off; m/a@3 answers"},
		{of(tidemill.TypeModelUnloadable, "4", "", tidemill.ModelUnloadable{Scorer: "s", Version: 4, Kept: 3, Error: "it is cut off"}), ""},
		{of(tidemill.TypeScorerSwapped, "3", "", swap), ""},
		{of(tidemill.TypeModelUnloadable, "5", "", tidemill.ModelUnloadable{Scorer: "s", Version: 5, Error: "it is cut off"}), "scorer s  cannot load m/a@5: it is cut off"},
		{of(tidemill.TypeRunFinished, "", "", tidemill.RunFinished{Outcome: tidemill.OutcomeSucceeded, Result: tidemill.Result{Metrics: map[string]float64{"auc": 0.9, "loss": 0.1, "zeal": 3}}}),
			"run abcdefghij  intent   succeeded after 0s: zeal 3, loss 0.1"},
		{of(tidemill.TypeRunFinished, "", "", tidemill.RunFinished{Attempt: 1, Outcome: tidemill.OutcomeFailed, Reason: "exit status 1"}), "run abcdefghij  intent   attempt 1 of 2 failed after 0s: exit status 1"},
		{of(tidemill.TypeRunFinished, "", "", tidemill.RunFinished{Attempt: 2, Outcome: tidemill.OutcomeFailed, Reason: "exit status 1"}), "run abcdefghij  intent   failed after 0s: exit status 1"},
		{of(tidemill.TypeRunFinished, "", "", tidemill.RunFinished{Attempt: 1, Outcome: tidemill.OutcomeFailed, Permanent: true, Reason: "no model"}), "run abcdefghij  intent   failed after 0s: no model"},
		{of(tidemill.TypeModelPromoted, "2", "", verdict), "model m/a@2  is the champion: accuracy 0.9"},
		{of(tidemill.TypeModelAwaiting, "2", "", verdict), "model m/a@2  waits for a person: accuracy 0.9"},
		{of(tidemill.TypeModelRolledBack, "2", "ada", tidemill.ModelAnnounced{Version: 2}), "model m/a@2  is the champion again, by ada"},
		{of(tidemill.TypeModelRegistered, "2", "", nil), ""},
		{of(tidemill.TypeModelDrifted, "2", "", tidemill.ModelDrifted{Version: 2, Figure: "labels", Value: "refund", Before: 0.1, Now: 0.4, Since: "scored/3/17"}),
			"model m/a@2  drifts: labels: refund 0.100 → 0.400 since scored/3/17"},
	} {
		if got := h.text(c.of); got != c.want {
			t.Errorf("%d: %q, want %q", i, got, c.want)
		}
	}
}

// A watched list is printed again when it changes, until Ctrl-C, which is not an error.
func TestAnyListIsWatched(t *testing.T) {
	t.Parallel()
	dir, file := runsFolder(t, statusConfig)
	data := filepath.Join(dir, "data")
	startUp(t, data, "-f", file)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var out, errs syncBuffer
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"recipes", "--watch", "--data", data}, strings.NewReader(""), &out, &errs)
	}()
	eventually(t, func() bool { return strings.Contains(out.String(), "active") })
	ok(t, "recipes", "pause", "intent", "--data", data)
	eventually(t, func() bool { return strings.Contains(out.String(), "paused by anonymous") })
	interrupt()
	if err := <-ended; err != nil {
		t.Errorf("after Ctrl-C: %v %s", err, &errs)
	}
	if n := strings.Count(out.String(), "RECIPE"); n < 2 {
		t.Errorf("it was printed %d times: %s", n, &out)
	}
	if o := call(t, "", "recipes", "--watch", "--data", t.TempDir()); o.code == 0 || !strings.Contains(o.err, "no tidemill up runs") {
		t.Errorf("without a server: %+v", o)
	}
}
