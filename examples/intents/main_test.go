package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// runFolders are the folders of a run.
type runFolders struct {
	*testing.T
	in, out, checkpoint, champion string
}

// newRun makes the folders of a run, with copies of the data folders as input.
func newRun(t *testing.T, data ...string) *runFolders {
	t.Helper()
	dir := t.TempDir()
	f := &runFolders{t, filepath.Join(dir, "in"), filepath.Join(dir, "out"), filepath.Join(dir, "checkpoint"), filepath.Join(dir, "champion")}
	for _, name := range []string{f.in, f.out, f.checkpoint, f.champion} {
		if err := os.Mkdir(name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, from := range data {
		if err := os.CopyFS(filepath.Join(f.in, "examples"), os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func (f *runFolders) variable(epochs string) func(string) string {
	return func(name string) string {
		return map[string]string{"TIDEMILL_IN": f.in, "TIDEMILL_OUT": f.out, "TIDEMILL_CHECKPOINT": f.checkpoint, "TIDEMILL_CHAMPION": f.champion, "EPOCHS": epochs}[name]
	}
}

// train runs the trainer, and returns its log.
func (f *runFolders) train(epochs string) string {
	f.Helper()
	var log bytes.Buffer
	if err := doRun(f.Context(), f.variable(epochs), &log); err != nil {
		f.Fatalf("%v\n%s", err, &log)
	}
	return log.String()
}

func (f *runFolders) read(name string) []byte {
	f.Helper()
	data, err := os.ReadFile(filepath.Join(f.out, name))
	if err != nil {
		f.Fatal(err)
	}
	return data
}

// readMetrics reads metrics.json.
func (f *runFolders) readMetrics() (m struct {
	ownMetrics
	Champion *ownMetrics
	Learned  int
	HeldOut  int
}) {
	f.Helper()
	if err := json.Unmarshal(f.read("metrics.json"), &m); err != nil {
		f.Fatal(err)
	}
	return m
}

func (f *runFolders) predictions() [][]string {
	f.Helper()
	rows, err := csv.NewReader(bytes.NewReader(f.read("predictions.csv"))).ReadAll()
	if err != nil || len(rows) < 2 {
		f.Fatalf("predictions.csv: %v, %v", rows, err)
	}
	return rows
}

// accuracy returns the accuracy of a column of predictions.csv.
func accuracy(rows [][]string, column int) float64 {
	right := 0
	for _, row := range rows[1:] {
		if row[0] == row[column] {
			right++
		}
	}
	return float64(right) / float64(len(rows)-1)
}

// readLosses returns the losses in metrics.jsonl.
func (f *runFolders) readLosses() (losses []float64) {
	f.Helper()
	for line := range strings.Lines(string(f.read("metrics.jsonl"))) {
		var step struct {
			Step, Total int
			Loss        float64
		}
		if err := json.Unmarshal([]byte(line), &step); err != nil || step.Loss <= 0 || step.Step > step.Total {
			f.Fatalf("metrics.jsonl: %q: %v", line, err)
		}
		losses = append(losses, step.Loss)
	}
	return losses
}

// Two of the bots have good data. The labels of the third are wrong, so its model is no better than
// a guess.
func TestThreeBots(t *testing.T) {
	t.Parallel()
	for bot, want := range map[string][2]float64{"bot-shop": {0.8, 1}, "bot-bank": {0.8, 1}, "bot-travel": {0, 0.4}} {
		t.Run(bot, func(t *testing.T) {
			t.Parallel()
			f := newRun(t, filepath.Join("data", bot))
			said := f.train("")
			told, rows := f.readMetrics(), f.predictions()
			if got := accuracy(rows, 1); got != told.Accuracy || got < want[0] || got > want[1] || len(rows)-1 != told.HeldOut {
				t.Errorf("accuracy %v of %d, told %+v\n%s", got, len(rows)-1, told, said)
			}
			if !slices.Equal(rows[0], []string{"truth", "predicted"}) || told.Champion != nil || told.Learned < 150 || told.HeldOut < 40 {
				t.Errorf("%v, %+v", rows[0], told)
			}
			if losses := f.readLosses(); len(losses) != epochs || losses[epochs-1] > losses[0]/3 {
				t.Errorf("the loss goes %v", losses)
			}
			f.wantCard(f.wantSame(bot))
			again := newRun(t, filepath.Join("data", bot))
			again.train("")
			if !bytes.Equal(again.read("model.onnx"), f.read("model.onnx")) {
				t.Error("the same data are another model")
			}
		})
	}
}

// wantSame reads the model from its file, and checks that it predicts the same as the trainer.
func (f *runFolders) wantSame(bot string) *model {
	f.Helper()
	m, err := readModel(f.read("model.onnx"))
	if err != nil {
		f.Fatal(err)
	}
	d, err := readData(filepath.Join("data", bot))
	if err != nil {
		f.Fatal(err)
	}
	for i, row := range f.predictions()[1:] {
		if got := m.predict(d.held[i].text); got != row[1] || d.held[i].intent != row[0] {
			f.Errorf("%q is %s to the file and %v to the trainer", d.held[i].text, got, row)
		}
	}
	if got := m.onnx(); !bytes.Equal(got, f.read("model.onnx")) {
		f.Error("what was read is not written as it was")
	}
	return m
}

func (f *runFolders) wantCard(m *model) {
	f.Helper()
	var labels []string
	_, list, _ := strings.Cut(string(f.read("model.yaml")), "input: text\noutput: probabilities\nlabels: ")
	if err := json.Unmarshal([]byte(list), &labels); err != nil || !slices.Equal(labels, m.labels) {
		f.Errorf("model.yaml: %s", f.read("model.yaml"))
	}
}

// With better and with worse data, the new model and the champion are measured on the same
// messages.
func TestBesideTheChampion(t *testing.T) {
	t.Parallel()
	for bot, better := range map[string]bool{"bot-bank": true, "bot-shop": false} {
		t.Run(bot, func(t *testing.T) {
			t.Parallel()
			first := newRun(t, filepath.Join("data", bot))
			first.train("")
			next := newRun(t, filepath.Join("data", bot), filepath.Join("later", bot))
			next.champion = first.out
			said := next.train("")
			told, rows := next.readMetrics(), next.predictions()
			if !slices.Equal(rows[0], []string{"truth", "predicted", "champion"}) || told.Champion == nil {
				t.Fatalf("%v, %+v\n%s", rows[0], told, said)
			}
			if *told.Champion != first.readMetrics().ownMetrics || accuracy(rows, 2) != told.Champion.Accuracy {
				t.Errorf("the champion was %+v, and is %+v; %v by its predictions", first.readMetrics().ownMetrics, *told.Champion, accuracy(rows, 2))
			}
			if (told.Accuracy > told.Champion.Accuracy) != better || (told.Accuracy < told.Champion.Accuracy-0.02) == better {
				t.Errorf("the new one has %v, the champion %v", told.Accuracy, told.Champion.Accuracy)
			}
		})
	}
}

// A champion of another trainer cannot be measured here. The run reports it, and still makes its
// model.
func TestAChampionThatCannotBeRead(t *testing.T) {
	t.Parallel()
	f := newRun(t, filepath.Join("data", "bot-shop"))
	if err := os.WriteFile(filepath.Join(f.champion, "model.onnx"), []byte("no model"), 0o644); err != nil {
		t.Fatal(err)
	}
	if said := f.train("20"); !strings.Contains(said, "the champion is not measured: read model.onnx: ") {
		t.Errorf("it says %s", said)
	}
	if rows := f.predictions(); len(rows[0]) != 2 || f.readMetrics().Champion != nil {
		t.Errorf("%v, %+v", rows[0], f.readMetrics())
	}
}

// A run that gets SIGTERM saves its state. Its next attempt continues, and makes the same model as
// without the break.
func TestLeavingAndComingBack(t *testing.T) {
	t.Parallel()
	whole, broken := newRun(t, filepath.Join("data", "bot-bank")), newRun(t, filepath.Join("data", "bot-bank"))
	whole.train("80")
	leave, cancel := context.WithCancel(t.Context())
	cancel()
	var log bytes.Buffer
	for range 3 { // each one learns for one epoch, and exits
		if err := doRun(leave, broken.variable("80"), &log); err == nil || !strings.Contains(err.Error(), "got SIGTERM") {
			t.Fatalf("%v\n%s", err, &log)
		}
	}
	if _, err := os.Stat(filepath.Join(broken.out, "model.onnx")); err == nil {
		t.Error("it has left a model that is not learned")
	}
	if said := broken.train("80"); !strings.Contains(said, "continues from epoch 3\n") {
		t.Errorf("it says %s", said)
	}
	if !bytes.Equal(whole.read("model.onnx"), broken.read("model.onnx")) || !slices.Equal(whole.readLosses(), broken.readLosses()) {
		t.Error("a run that was interrupted makes another model")
	}
	other := newRun(t, filepath.Join("data", "bot-shop"))
	other.checkpoint = broken.checkpoint
	if said := other.train("20"); !strings.Contains(said, "of other messages") || len(other.readLosses()) != 20 {
		t.Errorf("of other data it says %s", said)
	}
}

func TestBadData(t *testing.T) {
	t.Parallel()
	rows := func(row string) string { return "text,intent\n" + strings.Repeat(row+"\n", 3) }
	const held = "text,intent\nhello,a\n"
	for name, c := range map[string]struct{ learn, held, says string }{
		"nothing":       {"text,intent\n", held, "0 messages to learn from"},
		"none held out": {rows("hello,a"), "text,intent\n", "0 in files held-out*.csv"},
		"one intent":    {rows("hello,a"), held, "1 intents, 1 words"},
		"no words":      {"text,intent\na b,a\nc d,b\n", held, "2 intents, 0 words"},
		"columns":       {"intent,text\na,b\n", held, "have to be text,intent"},
		"no CSV":        {"text,intent\n\"a,b\n", held, "train.csv"},
		"no intent":     {"text,intent\na,\n", held, "line 2: it has no intent"},
		"no UTF-8":      {"text,intent\n\xff,a\n", held, "not UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newRun(t)
			for file, text := range map[string]string{"train.csv": c.learn, "held-out.csv": c.held} {
				if err := os.WriteFile(filepath.Join(f.in, file), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if err := doRun(t.Context(), f.variable("5"), new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("it says %v", err)
			}
			if _, err := os.Stat(filepath.Join(f.out, "model.onnx")); err == nil {
				t.Error("there is a model")
			}
		})
	}
	if err := doRun(t.Context(), func(string) string { return "" }, new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), "find TIDEMILL_IN") {
		t.Errorf("without variables: %v", err)
	}
}
