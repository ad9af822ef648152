//go:build real

package native

import (
	_ "embed"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"tidemill.dev/broker/brokertest/realservers"
	"tidemill.dev/internal/scoring/infer/tensor"
)

//go:embed testdata/runtime.py
var askRuntime string

// ONNX Runtime gives the same answers to random graphs of all claimed operators, and to cases
// that ONNX's own tests do not cover.
func TestRealRuntimeSaysTheSame(t *testing.T) {
	r := rand.New(rand.NewPCG(2026, 11))
	var asked []*question
	for i := range 300 {
		asked = append(asked, madeUp(r, i))
	}
	askRuntimeToo(t, append(append(asked, oddQuestions()...), trainedQuestion(t)), 1e-5)
}

// Random ensembles of trees have the labels of ONNX Runtime, and its scores within 1e-6.
func TestRealRuntimeGrowsTheSameTrees(t *testing.T) {
	r := rand.New(rand.NewPCG(2026, 12))
	var asked []*question
	for i := range 400 {
		q := treesAtRandom(r)
		q.name = fmt.Sprint(i, " ", q.name)
		asked = append(asked, q)
	}
	askRuntimeToo(t, asked, 1e-6)
}

// askRuntimeToo compares the answers of this engine with those of ONNX Runtime.
func askRuntimeToo(t *testing.T, asked []*question, apart float64) {
	t.Helper()
	dir := t.TempDir()
	for i, q := range asked {
		q.write(t, filepath.Join(dir, fmt.Sprintf("%04d", i)))
	}
	cmd, err := realservers.PythonONNXRuntime(t.Context(), "-c", askRuntime, dir)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	refused := 0
	for i, q := range asked {
		folder := filepath.Join(dir, fmt.Sprintf("%04d", i))
		if why, err := os.ReadFile(filepath.Join(folder, "error.txt")); err == nil {
			t.Logf("%s: ONNX Runtime refuses it: %s", q.name, why)
			refused++
			continue
		}
		t.Run(q.name, func(t *testing.T) {
			in, out := q.in, make([]tensor.Tensor, q.outputs)
			if err := load(t, q.file).Run(in, out); err != nil {
				t.Fatal(err)
			}
			for k := range out {
				want := readTensor(t, filepath.Join(folder, fmt.Sprintf("output_%d.pb", k)))
				wantTensor(t, fmt.Sprintf("output %d", k), &out[k], &want)
				for i, v := range want.Floats {
					if d := math.Abs(float64(out[k].Floats[i] - v)); d > apart*max(1, math.Abs(float64(v))) {
						t.Fatalf("output %d[%d] is %v, want %v", k, i, out[k].Floats[i], v)
					}
				}
			}
		})
	}
	if refused > len(asked)/20 {
		t.Errorf("ONNX Runtime refuses %d of %d", refused, len(asked))
	}
}

func (q *question) write(t *testing.T, folder string) {
	t.Helper()
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{"model.onnx": q.file}
	for i := range q.in {
		files[fmt.Sprintf("input_%d.pb", i)] = tensorMessage("", &q.in[i])
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(folder, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// trainedQuestion returns the model that examples/intents trains, with messages as people write
// them.
func trainedQuestion(t *testing.T) *question {
	t.Helper()
	file, _ := trained(t)
	var in []string
	for _, row := range csvOf(t, filepath.Join("..", "..", "..", "..", "examples", "intents", "data", "bot-shop", "train.csv")) {
		in = append(in, row[0])
	}
	in = append(in, "", " ", "WHERE IS MY ORDER???", "Where  is   my order?", "tab\there", "line\nbreak", "ÜBER straße – “quoted”", "日本語 のテキスト", "🎉 refund 🎉")
	return &question{"intents", file, []tensor.Tensor{*texts(in...)}, 1}
}
