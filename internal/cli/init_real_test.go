//go:build real

package cli

import (
	"encoding/csv"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"tidemill.dev/broker/brokertest/realservers"
)

// ONNX's own library accepts the trainer's model, and predicts the same as the trainer.
func TestRealInitsModelIsONNX(t *testing.T) {
	tr := newTrainer(t)
	tr.train("STEPS=50")
	const check = `
import json, sys, numpy, onnx
from onnx.reference import ReferenceEvaluator
model = onnx.load(sys.argv[1])
onnx.checker.check_model(model, full_check=True)
told = {p.key: json.loads(p.value) for p in model.metadata_props}
x = numpy.array([[row[c] for c in told["columns"]] for row in json.load(sys.stdin)], dtype=numpy.float32)
for p in ReferenceEvaluator(model).run(None, {"x": x})[0]:
    assert abs(p.sum() - 1) < 1e-5, p
    print(told["labels"][p.argmax()])
`
	rows, err := json.Marshal(tr.judged())
	if err != nil {
		t.Fatal(err)
	}
	cmd, err := realservers.PythonONNX(t.Context(), "-c", check, filepath.Join(tr.dir, "out", "model.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin = strings.NewReader(string(rows))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	predictions, err := csv.NewReader(strings.NewReader(string(tr.read("out", "predictions.csv")))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Fields(string(out))
	if len(got) != len(predictions)-1 {
		t.Fatalf("%d answers: %s", len(got), out)
	}
	for i, row := range predictions[1:] {
		if got[i] != row[1] {
			t.Errorf("row %d is %s to ONNX and %s to the trainer", i, got[i], row[1])
		}
	}
}
