//go:build real || torch

package main

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
)

// underRuntime prints the probabilities of all messages in one batch. It checks first that they are
// the same in batches of other sizes.
const underRuntime = `
import json, sys, numpy, onnx, onnxruntime
onnx.checker.check_model(onnx.load(sys.argv[1]), full_check=True)
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
assert [(i.name, i.type) for i in session.get_inputs()] == [("text", "tensor(string)")]
assert [o.name for o in session.get_outputs()] == ["probabilities"]
texts = json.load(sys.stdin)
def run(some):
    return session.run(None, {"text": numpy.array(some, dtype=object)})[0]
whole = run(texts)
for size in 1, 2, 7, 64:
    for at in range(0, len(texts), size):
        numpy.testing.assert_allclose(run(texts[at:at + size]), whole[at:at + size], atol=1e-6)
numpy.testing.assert_allclose(run(texts[::-1]), whole[::-1], atol=1e-6)
json.dump([[float(p) for p in row] for row in whole], sys.stdout)
`

// oddTexts are unusual messages.
func oddTexts() []string {
	return []string{"", " ", "   ", "?", "xyzzy plugh", "WHERE IS MY ORDER???", "where is my order", "Where  is   my order?", "refund", "refund, refund. refund!",
		"tab\there", "line\nbreak", "ÜBER straße – “quoted”", "I’m lost", "日本語 のテキスト", "🎉 refund 🎉", "no!!!!", "cancel,my order", strings.Repeat("where is my refund? ", 200)}
}

func onnxRuntime(t *testing.T, cmd *exec.Cmd, path string, texts []string) (rows [][]float64) {
	t.Helper()
	cmd.Args = append(cmd.Args, "-c", underRuntime, path)
	given, err := json.Marshal(texts)
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	cmd.Stdin = strings.NewReader(string(given))
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, &said)
	}
	if err := json.Unmarshal(out, &rows); err != nil || len(rows) != len(texts) {
		t.Fatalf("%d rows of %d messages: %v", len(rows), len(texts), err)
	}
	return rows
}
