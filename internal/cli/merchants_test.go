package cli

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/api"
)

const merchantsConfig = `version: 1
streams: {payments: {types: [payment]}, scores: }
recipes:
  fraud:
    when: {type: new-data, where: "dataset LIKE 'merchants/%'"}
    inputs: {payments: "merchants/{key}"}
    run: {dir: trainer, command: [sh, train.sh], attempts: 1, memory: 256MiB}
    makes: {model: "fraud/{key}"}
    gate: [confusion.accuracy >= 0.7]
scorers:
  fraud: {from: payments, to: scores, model: "fraud/{key}"}
`

// merchantsTrainer has the fault that its data name.
const merchantsTrainer = `set -e
fault=$(cat "$TIDEMILL_IN/payments/fault")
cp good.onnx "$TIDEMILL_OUT/model.onnx"
echo "labels: [fraud, fine]" > "$TIDEMILL_OUT/model.yaml"
printf 'truth,predicted\nfraud,fraud\nfine,fine\nfine,fraud\nfine,fine\n' > "$TIDEMILL_OUT/predictions.csv"
case $fault in
exception) echo "ValueError: column amount is missing" >&2; exit 1;;
memory) head -c 800000000 /dev/zero | tail -n 1 > /dev/null; sleep 60;;
metrics) echo '{"loss": NaN}' > "$TIDEMILL_OUT/metrics.json";;
nan) cp nan.onnx "$TIDEMILL_OUT/model.onnx";;
corrupt) head -c 60 good.onnx > "$TIDEMILL_OUT/model.onnx";;
predictions) rm "$TIDEMILL_OUT/predictions.csv";;
classes) echo "labels: ['0', '1']" > "$TIDEMILL_OUT/model.yaml";;
model) rm "$TIDEMILL_OUT/model.onnx";;
esac
`

// nanModel returns an ONNX model whose scores are its two inputs times NaN.
func nanModel() string {
	port := func(name string) string {
		shape := message(nil).text(1, "").text(1, string(message(nil).number(1, 2)))
		tensor := message(nil).number(1, 1).text(2, string(shape))
		return string(message(nil).text(1, name).text(2, string(message(nil).text(1, string(tensor)))))
	}
	nan := message(nil).number(1, 2).number(2, 1).text(8, "w").text(9, "\x00\x00\xc0\x7f\x00\x00\xc0\x7f") // two numbers
	node := message(nil).text(1, "x").text(1, "w").text(2, "y").text(4, "Mul")
	graph := message(nil).text(1, string(node)).text(5, string(nan)).text(11, port("x")).text(12, port("y"))
	opset := message(nil).text(1, "ai.onnx").number(2, 17)
	return string(message(nil).number(1, 9).text(7, string(graph)).text(8, string(opset)))
}

// Thirty merchants have a good model each, and then data that lead to a fault. Each fault is said where
// people look first, no faulty version is a champion, and the scorer answers with the good ones.
func TestThirtyMerchants(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := leave(t, merchantsConfig, dir, "tidemill.yaml")
	if err := os.Mkdir(filepath.Join(dir, "trainer"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"train.sh": merchantsTrainer, "good.onnx": identityModel(), "nan.onnx": nanModel()} {
		leave(t, text, dir, "trainer", name)
	}
	r := runsAt{t, filepath.Join(dir, "data")}
	startUp(t, r.data, "-f", file)
	// texts in the list of runs for faults that fail the run, and in the model for refused versions
	failed := map[string]string{"exception": "exit status 1: ValueError: column amount is missing", "memory": "out of memory", "metrics": "metrics.json", "model": "wrote no model.onnx"}
	refused := map[string]string{"nan": "scorer fraud cannot serve it: its answers to 8 rows of generated inputs all have NaN or infinite numbers", "corrupt": "scorer fraud cannot serve it: ",
		"predictions": "there is no confusion.accuracy, because no predictions.csv of the run has it", "classes": "its labels are 0, 1, and predictions.csv has fine, fraud"}
	faults := append(slices.Sorted(maps.Keys(failed)), slices.Sorted(maps.Keys(refused))...)
	for round, of := range []func(i int) string{func(int) string { return "none" }, func(i int) string { return append(faults, "none")[i%(len(faults)+1)] }} {
		for i := range 30 {
			r.ok("data", "put", merchant("merchants/", i), folder(t, map[string]string{"fault": of(i), "round": fmt.Sprint(round)}))
		}
		eventually(t, func() bool { return len(r.list("--state", "succeeded,failed", "--limit", "100")) == 30*(round+1) })
	}
	runs, models := r.ok("runs", "--limit", "100"), ""
	eventually(t, func() bool {
		models = r.ok("models", "--limit", "100")
		return strings.Count(models, "2 refused") == 4*3 && strings.Count(models, "\n")-1 == 30
	})
	for i := range 30 {
		name, fault := merchant("fraud/", i), append(faults, "none")[i%(len(faults)+1)]
		champion := "version 1 since"
		if fault == "none" {
			champion = "version 2 since"
			eventually(t, func() bool { return strings.Contains(r.ok("models", "show", name), champion) }) // it is judged after its run has succeeded
		}
		mention(t, name, r.ok("models", "show", name), champion)
		if says := refused[fault]; says != "" {
			mention(t, "the newest version of "+name, r.ok("models", "show", name+"@newest"), says)
		}
		var answer outcome
		eventually(t, func() bool { // the scorer learns of a champion a moment later
			answer = r.call("score", "fraud", "--key", merchant("", i), "-d", `{"x": [0.75, 0.25]}`)
			return answer.code == 0
		})
		mention(t, "the answer of "+name, answer.out, "fraud 0.75")
	}
	for fault, says := range failed {
		if n := strings.Count(runs, says); n < 3 {
			t.Errorf("%s is said %d times by runs:\n%s", fault, n, runs)
		}
	}
	mention(t, "status", r.ok("status"), "failed", "12 of the newest versions refused")
	if all := r.list("--state", "failed", "--limit", "100"); len(all) < 12 || slices.ContainsFunc(all, func(x api.RunShown) bool { return x.State != tidemill.RunFailed }) {
		t.Errorf("%d runs have failed", len(all))
	}
}

func merchant(prefix string, i int) string { return fmt.Sprintf("%sshop-%02d", prefix, i) }
