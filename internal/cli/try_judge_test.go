package cli

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tryFolder makes a folder with a config, its trainer, and predictions as data.
type tryFolder struct {
	*testing.T
	dir, file string
}

func newTryFolder(t *testing.T, conf, trainer string) tryFolder {
	t.Helper()
	dir, file := runsFolder(t, conf)
	leave(t, trainer, dir, "trainer", "train.sh")
	return tryFolder{t, dir, file}
}

// try tries the recipe intent with predictions.
func (f tryFolder) try(predictions string, args ...string) outcome {
	f.Helper()
	data := leave(f.T, predictions, f.TempDir(), "predictions.csv")
	return call(f.T, "", append([]string{"try", "intent", "-f", f.file, "--key", "bot-1", "--data", data}, args...)...)
}

// A try prints the verdict of the gate with its clauses and the confusion matrix, and its exit
// status is that of the gate.
func TestATryIsJudged(t *testing.T) {
	t.Parallel()
	f := newTryFolder(t, modelsConfig, modelsTrainer)
	good := f.try(predicted(9, -1))
	if good.code != 0 {
		t.Errorf("a good one: %+v", good)
	}
	mention(t, "a good one", good.out, "would be  a version of model intent/bot-1", "The gate passes: version 1 ", "  holds  metrics.accuracy >= 0.5\n         metrics.accuracy = 0.9", "there is no champion, so it passes",
		"Of 10 examples: accuracy 0.900", "Confusion matrix (rows: true, columns: predicted):", "order predicted as greet: 1 of 5 (20%)")
	bad := f.try(predicted(3, -1))
	if bad.code != exitFailed || bad.err != "" {
		t.Errorf("a bad one: %+v", bad)
	}
	mention(t, "a bad one", bad.out, "outcome   succeeded", "The gate fails: version 1 is refused", "  FAILS  metrics.accuracy >= 0.5")
}

// With a champion, its files are given to the run, and the gate compares with it.
func TestATryHasAChampion(t *testing.T) {
	t.Parallel()
	f := newTryFolder(t, modelsConfig, modelsTrainer+"echo it is the $(cat \"$TIDEMILL_CHAMPION/note\")\n")
	best := folder(t, map[string]string{"model.onnx": identityModel(), "note": "best"})
	for right, code := range map[int]int{9: 0, 7: exitFailed} {
		o := f.try(predicted(right, 8), "--champion", best)
		if o.code != code {
			t.Errorf("%d right: %+v", right, o)
		}
		mention(t, "the log and the verdict", o.out, "it is the best\n", "champion.metrics.accuracy = 0.8", "Version 2 is the output of this run. The champion is the folder "+best, "version 1, the champion at that time", "Its lead in accuracy: ")
	}
	recorded := newTryFolder(t, strings.Replace(modelsConfig, "    gate:", "    gateOn: recorded\n    gate:", 1), modelsTrainer)
	o := recorded.try(predicted(9, -1), "--champion", folder(t, map[string]string{"model.onnx": identityModel(), "metrics.json": `{"accuracy": 0.95}`}))
	mention(t, "by its recorded figures", o.out, "champion.metrics.accuracy = 0.95", "The champion's figures are from its registration")
	if o.code != exitFailed {
		t.Errorf("it exits with %d", o.code)
	}
}

// A variable of the call replaces the variable or the secret of the recipe, braces included.
func TestATryHasVariables(t *testing.T) {
	t.Parallel()
	conf := strings.Replace(modelsConfig, "attempts: 1}", `attempts: 1, env: {MODE: "slow {key}", KEPT: "of {key}"}, secrets: {TOKEN: hub/token}}`, 1)
	f := newTryFolder(t, conf, modelsTrainer+`echo "$MODE, $KEPT, $TOKEN, $NEW."`+"\n")
	o := f.try(predicted(9, -1), "--env", `MODE={"fast": 1}`, "--env", "TOKEN=none", "--env", "NEW=")
	mention(t, "the log", o.out+o.err, `{"fast": 1}, of bot-1, none, .`)
	for text, says := range map[string]string{"MODE": "write NAME=VALUE", "TIDEMILL_KEY=x": "is set by Tidemill", "A-B=x": "is not a variable's name", "=x": "is not a variable's name"} {
		if o := f.try(predicted(9, -1), "--env", text); o.code != exitUsage || !strings.Contains(o.err, says) {
			t.Errorf("--env %s: %+v", text, o)
		}
	}
	broken := folder(t, map[string]string{"model.onnx": "no model"})
	if o := f.try(predicted(9, -1), "--champion", broken); o.code != exitFailed || !strings.Contains(o.err, "use "+broken+" as the champion: ") || !strings.Contains(o.err, "cannot serve it") {
		t.Errorf("a champion that cannot be served: %+v", o)
	}
	none := filepath.Join(f.dir, "none")
	if o := f.try(predicted(9, -1), "--champion", none); o.code != exitFailed || !strings.Contains(o.err, "use "+none+" as the champion: ") {
		t.Errorf("a champion that is not there: %+v", o)
	}
	data := newTryFolder(t, strings.Split(strings.Replace(modelsConfig, `{model: "intent/{key}"}`, `{dataset: "made/{key}"}`, 1), "    gate:")[0], modelsTrainer)
	if o := data.try(predicted(9, -1), "--champion", f.dir); o.code != exitUsage || !strings.Contains(o.err, "makes no model") {
		t.Errorf("a champion of a dataset: %+v", o)
	}
	if o := data.try(predicted(9, -1)); o.code != 0 || strings.Contains(o.out, "The gate") {
		t.Errorf("a recipe that makes a dataset: %+v", o)
	}
}

// Progress is printed while the command runs, each change once.
func TestATryShowsItsProgress(t *testing.T) {
	t.Parallel()
	f := newTryFolder(t, modelsConfig, modelsTrainer+`echo '{"step": 3, "total": 10, "loss": 0.5}' >> "$TIDEMILL_OUT/metrics.jsonl"
while ! test -e "$GO"; do sleep 0.05; done
`)
	on := filepath.Join(f.dir, "on")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var out, errs syncBuffer
	ended := make(chan error, 1)
	data := leave(t, predicted(9, -1), f.dir, "predictions.csv")
	go func() {
		ended <- run(ctx, []string{"try", "intent", "-f", f.file, "--key", "bot-1", "--data", data, "--env", "GO=" + on}, strings.NewReader(""), &out, &errs)
	}()
	eventually(t, func() bool {
		return strings.Contains(errs.String(), "progress: [====            ]  30%  3/10  loss 0.5\n")
	})
	if err := os.WriteFile(on, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("%v: %s%s", err, &out, &errs)
	}
}

// message is an encoded message of a protocol buffer.
type message []byte

func (m message) number(field, v int) message {
	return binary.AppendUvarint(binary.AppendUvarint(m, uint64(field)<<3), uint64(v))
}

func (m message) text(field int, v string) message {
	return append(binary.AppendUvarint(binary.AppendUvarint(m, uint64(field)<<3|2), uint64(len(v))), v...)
}

// identityModel returns an ONNX model whose two scores y are its two inputs x.
func identityModel() string {
	port := func(name string) string {
		shape := message(nil).text(1, "").text(1, string(message(nil).number(1, 2)))
		tensor := message(nil).number(1, 1).text(2, string(shape)) // 1 is float
		return string(message(nil).text(1, name).text(2, string(message(nil).text(1, string(tensor)))))
	}
	node := message(nil).text(1, "x").text(2, "y").text(4, "Identity")
	graph := message(nil).text(1, string(node)).text(11, port("x")).text(12, port("y"))
	opset := message(nil).text(1, "ai.onnx").number(2, 17)
	return string(message(nil).number(1, 9).text(7, string(graph)).text(8, string(opset)))
}

// A scorer that serves the model is asked the golden request. A model that it cannot serve is a
// failure, even if the gate passes.
func TestATryAsksTheScorers(t *testing.T) {
	t.Parallel()
	conf := "streams: {scores: {}}\n" + modelsConfig + `scorers:
  intents: {from: events, to: scores, model: "intent/{key}", map: {x: data.x}}
  others: {from: events, to: scores, model: "other/{key}", map: {x: data.x}}
`
	f := newTryFolder(t, conf, modelsTrainer+`cp "$MODEL"/* "$TIDEMILL_OUT/"`+"\n")
	with := func(card string, args ...string) outcome {
		model := folder(t, map[string]string{"model.onnx": identityModel(), "model.yaml": card})
		return f.try(predicted(9, -1), append([]string{"--env", "MODEL=" + model}, args...)...)
	}
	golden := with("output: y\nlabels: [greet, order]\ngolden: {inputs: {x: [[0.25, 0.75], [0, 1]]}, label: order}\n")
	if golden.code != 0 || strings.Contains(golden.out, "others") {
		t.Errorf("with a golden request: %+v", golden)
	}
	mention(t, "with a golden request", golden.out, "Scorer intents answers the golden request of model.yaml with the engine go:\n  row 1  order  greet 0.25  order 0.75\n  row 2  order  greet 0  order 1\n")
	samples := leave(t, `{"specversion":"1.0","id":"a","source":"/test","type":"x","data":{"x":[0.25,0.75]}}
{"specversion":"1.0","id":"b","source":"/test","type":"x","data":{"x":[1,0]}}
`, f.dir, "events.ndjson")
	none := with("output: y\nlabels: [greet, order]\n", "--sample", samples)
	if none.code != 0 {
		t.Errorf("without a golden request: %+v", none)
	}
	mention(t, "without a golden request", none.out, "Scorer intents can serve it with the engine go; model.yaml has no golden request", "Scorer intents answers the events of "+samples+":\n  a  order 0.750\n  b  greet 1.000\n")
	leave(t, `{"specversion":"1.0","id":"c","source":"/test","type":"x","data":{"y":1}}`, samples)
	if o := with("output: y\nlabels: [greet, order]\n", "--sample", samples); o.code != exitFailed || !strings.Contains(o.out, "\n  c  cannot be scored: ") {
		t.Errorf("an event without the input: %+v", o)
	}
	leave(t, "\n{}\n", samples)
	if o := with("", "--sample", samples); o.code != exitFailed || !strings.Contains(o.err, samples+":2: ") {
		t.Errorf("a line that is no event: %+v", o)
	}
	wrong := with("output: y\nlabels: [greet, order]\ngolden: {inputs: {x: [[0.25, 0.75]]}, label: greet}\n")
	if wrong.code != exitFailed {
		t.Errorf("with another answer: %+v", wrong)
	}
	mention(t, "with another answer", wrong.out, "scorer intents cannot serve it: ", `row 1, with "order", and model.yaml, line 3, wants "greet"`)
}
