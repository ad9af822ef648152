package platform

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/broker/follow"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
)

const driftOfTests = `version: 1
streams: {messages: {partitions: 2}, scored: {partitions: 2}}
scorers:
  intents: {from: messages, to: scored, model: "intent/{key}", drift: {reference: 100, predictions: true}}
recipes:
  intent: {when: {type: t}, run: {dir: ., command: [nothing]}, makes: {model: "intent/{key}"}}
`

// A champion whose first answers differ from the predictions that its gate has judged has drifted.
func TestDriftFromThePredictions(t *testing.T) {
	t.Parallel()
	w := newScoringWorld(t, driftOfTests)
	const model = "intent/bot-1"
	report, err := json.Marshal(tidemill.Report{Measured: &tidemill.Figures{Examples: 1000, Classes: []tidemill.Class{{Label: "no", Predicted: 800}, {Label: "yes", Predicted: 200}},
		Cells: []tidemill.Cell{{Truth: 0, Predicted: 0, Count: 800}, {Truth: 1, Predicted: 1, Count: 200}}}})
	w.must(err)
	w.fact(tidemill.TypeModelRegistered, model, "run-1", tidemill.ModelRegistered{Artifact: w.putFiles(map[string][]byte{"model.onnx": twoLabels(true)}), // says yes
		Report: w.putFiles(map[string][]byte{"report.json": report}), Judge: tidemill.Judge{Keep: 3},
		Origin: tidemill.Origin{Run: "run-1", Recipe: "intent", Mark: tidemill.Mark{Offset: 1}, Began: time.Unix(1, 0)}})
	w.fact(tidemill.TypeModelPromotionProposed, model, "", tidemill.PromotionProposed{Action: tidemill.ActionPromote, Version: 1, Turn: 0, Force: true})
	w.must(w.Scorers(w.ctx(), ""))
	w.must(w.Observer(w.ctx()))
	for n := range 70 { // with the first answers as the reference, all of them would be in it
		w.publishEvent("messages", fmt.Sprint("message-", n), "bot-1")
	}
	found := w.waitForEvents(tidemill.StreamFacts, 1, func(e *follow.Event) bool { return e.Type == tidemill.TypeModelDrifted })
	var d tidemill.ModelDrifted
	w.must(json.Unmarshal(found[0].Data, &d))
	if d.Figure != tidemill.FigureLabels || d.Version != 1 || d.Before != 0.2 && d.Before != 0.8 || w.attribute(&found[0], tidemill.AttrModel) != model {
		t.Errorf("%+v", d)
	}
}

// A report that is corrupt in the store does not end the watch for drift of all models.
func TestAReportIsCorrupt(t *testing.T) {
	t.Parallel()
	w := newScoringWorld(t, driftOfTests)
	tree := w.putFiles(map[string][]byte{"report.json": []byte(`{"measured":{"examples":7}}`)})
	if got, err := measuredIn(w.ctx(), w.Store(), tree); err != nil || got == nil || got.Examples != 7 {
		t.Fatalf("read %+v, %v", got, err)
	}
	w.must(filepath.WalkDir(w.addresses.Store, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return os.Truncate(path, 0)
	}))
	if got, err := measuredIn(w.ctx(), w.Store(), tree); err != nil || got != nil {
		t.Errorf("read %+v, %v", got, err)
	}
}

// The watch for drift logs each wait for a ledger that has not caught up.
func TestTheWatchForDriftLogsThatItWaits(t *testing.T) {
	t.Parallel()
	s := serve(t, embedded.Options{})
	o := Options{Addresses: config.Addresses{Kafka: s.Kafka(), Redis: s.Redis(), Store: filepath.Join(t.TempDir(), "store")}, OwnStreams: true, Config: parse(t, "version: 1\n")}
	growFacts(t, open(t, withRuns(o)))
	p := open(t, withRuns(o))
	waitStopped(t, p)
	var log bytes.Buffer
	watch := &Platform{works: p.works, log: slog.New(slog.NewTextHandler(&log, nil))}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // otherwise it would wait
	if _, err := watch.openAlarm(ctx, "intent/bot-1", &tidemill.ModelDrifted{}); !errors.Is(err, ledger.ErrCatchingUp) {
		t.Errorf("a look-up of an alarm ends with %v", err)
	}
	if _, err := watch.predictionsOf(ctx, nil, "intent/bot-2", 1); !errors.Is(err, ledger.ErrCatchingUp) {
		t.Errorf("a look-up of predictions ends with %v", err)
	}
	if n := strings.Count(log.String(), "the watch waits for it"); n != 2 || !strings.Contains(log.String(), "model=intent/bot-2") {
		t.Errorf("%d waits are logged: %s", n, log.String())
	}
}
