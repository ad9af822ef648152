package infer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tidemill.dev/internal/scoring/infer/ort"
	"tidemill.dev/internal/scoring/infer/sandbox"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// The test binary is ONNX Runtime's process too.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == sandbox.Argument {
		if err := sandbox.Child(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Setenv(sandbox.InTests, "yes")
	os.Exit(m.Run())
}

func noPlace() error { return nil }

// nowhere returns engines without ONNX Runtime.
func nowhere(t *testing.T) *engines {
	p := sandbox.Open(sandbox.Options{Library: filepath.Join(t.TempDir(), "libonnxruntime.so")})
	t.Cleanup(p.Close)
	return &engines{p}
}

func TestWhichEngine(t *testing.T) {
	taken, strange := simple("Relu"), simple("Det")
	for name, c := range map[string]struct {
		engine string
		file   []byte
		by     string
		unfit  bool
		want   string
	}{
		"Go's, by itself":             {EngineAuto, taken, EngineGo, false, ""},
		"Go's, as it was said":        {EngineGo, taken, EngineGo, false, ""},
		"not Go's":                    {EngineGo, strange, "", true, "set the engine to auto or onnxruntime"},
		"ONNX Runtime's, and none":    {EngineAuto, strange, "", false, "the Go engine does not take the graph"},
		"ONNX Runtime, and none":      {EngineONNXRuntime, taken, "", false, "TIDEMILL_ONNXRUNTIME"},
		"no model":                    {EngineAuto, []byte("no model"), "", true, ""},
		"an engine that is not there": {"gpu", taken, "", true, `no engine "gpu"; use auto, go or onnxruntime`},
	} {
		p, by, err := nowhere(t).load(source{engine: c.engine, data: c.file, slow: noPlace})
		if by != c.by || (err == nil) != (c.by != "") || unfit(err) != c.unfit || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: by %q: %v", name, by, err)
		}
		if err != nil && !c.unfit && (!errors.Is(err, ort.ErrMissing) || !strings.Contains(err.Error(), "make onnxruntime")) {
			t.Errorf("%s: how to get ONNX Runtime is not said: %v", name, err)
		}
		if p != nil {
			p.Close()
		}
	}
	if _, _, err := nowhere(t).load(source{engine: EngineAuto, data: strange, slow: noPlace}); !strings.Contains(err.Error(), "Det") {
		t.Errorf("the operator is not named: %v", err)
	}
}

// The whole way from a file in a store to a label, without any replacement for a part.
func TestAModelFromItsFilesToItsAnswer(t *testing.T) {
	store := map[string][]byte{ModelFile: perceptron(1, 8, 4, 3),
		CardFile: []byte("input: x\noutput: y\nlabels: [greet, bye, other]\nlimits: {rows: 64}\ngolden: {inputs: {x: [[1, 2, 3, 4, 5, 6, 7, 8]]}}\n")}
	c, err := Open(Options{Dir: t.TempDir(), Fetch: fetchOf(store)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m, err := c.Load(t.Context(), &Ref{Model: "intent/bot", Version: 2, Artifact: "a"})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Release()
	in := []tensor.Tensor{{Type: tensor.Float, Shape: []int{2, 8}, Floats: []float32{1, 2, 3, 4, 5, 6, 7, 8, 8, 7, 6, 5, 4, 3, 2, 1}}}
	out := make([]tensor.Tensor, 1)
	if err := m.Run(in, out); err != nil {
		t.Fatal(err)
	}
	if m.Engine() != EngineGo || m.MaxRows() != 64 || len(m.Labels()) != 3 || m.Inputs()[0].Name != "x" || m.Outputs()[0].Name != "y" {
		t.Errorf("%+v", m.held)
	}
	for row := range 2 {
		a, sum, best := m.Answer(out, row), 0.0, 0
		for i, s := range a.Scores {
			if sum += float64(s); s > a.Scores[best] {
				best = i
			}
		}
		if len(a.Scores) != 3 || math.Abs(sum-1) > 1e-5 || a.Label != m.Labels()[best] {
			t.Errorf("row %d: %+v", row, a)
		}
	}
	if n := testing.AllocsPerRun(200, func() {
		m.Answer(out, 0)
		m.Answer(out, 1)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestMetadataNamesTheLabels(t *testing.T) {
	c, err := Open(Options{Fetch: fetchOf(map[string][]byte{ModelFile: simple("Sigmoid", "labels", "spam")})})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m, err := c.Load(t.Context(), &Ref{Model: "m", Version: 1, Artifact: "a"})
	if err != nil || len(m.Labels()) != 1 || m.Labels()[0] != "spam" {
		t.Fatal(m, err)
	}
	m.Release()
}

// Scores get the names of the classes in the graph, if neither model.yaml nor the metadata has labels.
func TestTheGraphNamesTheClasses(t *testing.T) {
	t.Parallel()
	row := []float32{0.1, 0.7, 0.2}
	scores := tensor.Spec{Name: "probabilities", Type: tensor.Float, Shape: []int{tensor.Any, 3}}
	texts := tensor.Spec{Name: "label", Type: tensor.String, Shape: []int{tensor.Any}}
	numbers := tensor.Spec{Name: "label", Type: tensor.Int64, Shape: []int{tensor.Any}}
	fraud := []string{"chargeback", "fraud", "fine"}
	for name, c := range map[string]struct {
		outputs     []tensor.Spec
		chosen      tensor.Tensor
		classes     []string
		meta        string
		label, best string
	}{
		"texts":                        {[]tensor.Spec{texts, scores}, tensor.Tensor{Type: tensor.String, Shape: []int{1}, Strings: []string{"fraud"}}, fraud, "", "fraud", "fraud"},
		"whole numbers as names":       {[]tensor.Spec{numbers, scores}, tensor.Tensor{Type: tensor.Int64, Shape: []int{1}, Ints: []int64{7}}, []string{"3", "7", "9"}, "", "7", "7"},
		"the number of a text":         {[]tensor.Spec{numbers, scores}, tensor.Tensor{Type: tensor.Int64, Shape: []int{1}, Ints: []int64{1}}, fraud, "", "fraud", "fraud"},
		"scores alone":                 {[]tensor.Spec{scores}, tensor.Tensor{}, fraud, "", "fraud", "fraud"},
		"another number of classes":    {[]tensor.Spec{texts, scores}, tensor.Tensor{Type: tensor.String, Shape: []int{1}, Strings: []string{"fraud"}}, fraud[:2], "", "fraud", ""},
		"two equal names":              {[]tensor.Spec{texts, scores}, tensor.Tensor{Type: tensor.String, Shape: []int{1}, Strings: []string{"fraud"}}, []string{"a", "a", "b"}, "", "fraud", ""},
		"metadata, separated":          {[]tensor.Spec{scores}, tensor.Tensor{}, fraud, "a, b, c", "b", "b"},
		"metadata as a list":           {[]tensor.Spec{scores}, tensor.Tensor{}, fraud, `["a", "b, c", "d"]`, "b, c", "b, c"},
		"numbers, and nothing of them": {[]tensor.Spec{scores}, tensor.Tensor{}, nil, "", "", ""},
	} {
		p := &toy{outputs: c.outputs, classes: c.classes, meta: map[string]string{"labels": c.meta}}
		r, err := newReading(p, &card{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		out := []tensor.Tensor{{Type: tensor.Float, Shape: []int{1, 3}, Floats: row}}
		if len(c.outputs) == 2 {
			out = append([]tensor.Tensor{c.chosen}, out...)
		}
		a := r.answerAt(out, 0)
		best := ""
		if len(a.Labels) == 3 {
			best = a.Labels[1]
		}
		if a.Label != c.label || best != c.best || (c.label == "") != (a.Scores == nil) {
			t.Errorf("%s: %+v", name, a)
		}
	}
}

func fetchOf(store map[string][]byte) func(_ context.Context, artifact, file string, limit int64) ([]byte, error) {
	return func(_ context.Context, _, file string, _ int64) ([]byte, error) {
		if data, ok := store[file]; ok {
			return data, nil
		}
		return nil, fmt.Errorf("%s: %w", file, fs.ErrNotExist)
	}
}

func fetchByArtifact(store map[string][]byte) func(_ context.Context, artifact, file string, limit int64) ([]byte, error) {
	return func(_ context.Context, artifact, file string, _ int64) ([]byte, error) {
		if data, ok := store[artifact]; ok && file == ModelFile {
			return data, nil
		}
		return nil, fmt.Errorf("%s: %w", file, fs.ErrNotExist)
	}
}
