//go:build real

package main

import (
	"math"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tidemill.dev/broker/brokertest/realservers"
)

// ONNX's checker accepts the file. ONNX Runtime computes the same as the Go code, for the held-out
// messages and for odd texts.
func TestRealONNXRuntimeSaysTheSame(t *testing.T) {
	for _, bot := range []string{"bot-shop", "bot-bank", "bot-travel"} {
		t.Run(bot, func(t *testing.T) {
			f := newRun(t, filepath.Join("data", bot))
			f.train("")
			m := f.wantSame(bot)
			d, err := readData(f.in)
			if err != nil {
				t.Fatal(err)
			}
			texts := oddTexts()
			for _, msg := range append(d.held, d.learn...) {
				texts = append(texts, msg.text, strings.ToUpper(msg.text), msg.text+"!!", "so, "+msg.text)
			}
			wantSameProbabilities(t, m, texts, onnxRuntime(t, python(t), filepath.Join(f.out, "model.onnx"), texts))
		})
	}
	t.Run("without pairs", func(t *testing.T) {
		m := newModel([]message{{"yes", "a"}, {"yes", "a"}, {"no", "b"}, {"no", "b"}})
		m.roundWeights([]float64{-1, 1, 1, -1, 0.5, 0})
		path := filepath.Join(t.TempDir(), "model.onnx")
		if err := write(path, m.onnx()); err != nil {
			t.Fatal(err)
		}
		texts := append(oddTexts(), "yes", "NO.", "yes no")
		wantSameProbabilities(t, m, texts, onnxRuntime(t, python(t), path, texts))
	})
}

func python(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd, err := realservers.PythonONNXRuntime(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return cmd
}

func wantSameProbabilities(t *testing.T, m *model, texts []string, rows [][]float64) {
	t.Helper()
	for i, text := range texts {
		best, want := 0, m.probabilities(text)
		for k, p := range rows[i] {
			if math.Abs(p-want[k]) > 1e-5 {
				t.Errorf("%q: %s is %v to ONNX Runtime and %v to Go", text, m.labels[k], p, want[k])
			}
			if p > rows[i][best] {
				best = k
			}
		}
		if m.labels[best] != m.predict(text) {
			t.Errorf("%q is %s to ONNX Runtime and %s to Go", text, m.labels[best], m.predict(text))
		}
	}
}
