//go:build slow || real

package native

import (
	"encoding/csv"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The model that examples/intents trains gives the answers for the held-out messages that its
// trainer recorded.
func TestIntents(t *testing.T) {
	file, rows := trained(t)
	p := load(t, file)
	if len(p.steps) != 1 {
		t.Errorf("it takes %d steps, want one", len(p.steps))
	}
	var labels []string
	if err := json.Unmarshal([]byte(p.Metadata()["labels"]), &labels); err != nil {
		t.Fatal(err)
	}
	held := csvOf(t, filepath.Join("..", "..", "..", "..", "examples", "intents", "data", "bot-shop", "held-out.csv"))
	if len(held) != len(rows) || len(rows) < 20 {
		t.Fatalf("%d messages were measured of %d", len(rows), len(held))
	}
	in := texts()
	for _, row := range held {
		in.Strings = append(in.Strings, row[0])
	}
	in.Shape = []int{len(in.Strings)}
	out := runOnce(t, p, in)[0]
	for i, row := range rows {
		best := [1]int64{}
		outermostOf(best[:], out.Floats[i*len(labels):(i+1)*len(labels)], len(labels), 1, more)
		if got := labels[best[0]]; got != row[1] {
			t.Errorf("%q is %s to us and %s to the trainer", in.Strings[i], got, row[1])
		}
	}
	apart := load(t, inSteps(file))
	wantTensor(t, "probabilities", &out, &runOnce(t, apart, in)[0])
}

// trained returns a newly trained model and its predictions: truth and predicted.
func trained(t *testing.T) (file []byte, predictions [][]string) {
	t.Helper()
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in", "examples"), filepath.Join(dir, "out")
	if err := os.CopyFS(in, os.DirFS(filepath.Join("..", "..", "..", "..", "examples", "intents", "data", "bot-shop"))); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(out, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", "tidemill.dev/examples/intents")
	cmd.Env = append(os.Environ(), "TIDEMILL_IN="+filepath.Dir(in), "TIDEMILL_OUT="+out, "EPOCHS=60")
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	file, err := os.ReadFile(filepath.Join(out, "model.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	return file, csvOf(t, filepath.Join(out, "predictions.csv"))
}

// csvOf returns the rows after the header.
func csvOf(t *testing.T, path string) [][]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return rows[1:]
}
