//go:build real

package ort

import (
	"fmt"
	"path/filepath"
	"regexp"
	"testing"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// operators are the operators that both engines support and ONNX has tests for.
const operators = "Add,ArgMax,Cast,Concat,Constant,Div,Flatten,Gemm,Identity,MatMul,Mul,Relu,Reshape,Sigmoid,Softmax," +
	"StringNormalizer,StringSplit,Sub,Tanh,TfIdfVectorizer,LinearClassifier,LinearRegressor,Normalizer,Scaler,TreeEnsemble,ZipMap"

// leftOut has the allowed reasons for refusing one of ONNX's tests, each with its error.
var leftOut = map[string]*regexp.Regexp{
	"types that events are not made into":  regexp.MustCompile(`elements of ONNX's type \d+ are not fed|no tensor, and is not supported`),
	"operators from before version 7":      regexp.MustCompile(`Could not find an implementation for \w+\(6\)`),
	"files of a newer ONNX than it knows":  regexp.MustCompile(`Unsupported model IR version`),
	"conversions that are newer than it":   regexp.MustCompile(`(implementation|kernel) for Cast\(2\d\)`),
	"words of a language that is not here": regexp.MustCompile(`Failed to construct locale with name:en_US.UTF-8`),
}

// ONNX's own tests of these operators pass, or the model is refused for a listed reason. No
// loaded model gives a wrong answer.
func TestRealNodes(t *testing.T) {
	r := openLibrary(t)
	passed, left := 0, map[string]int{}
	for _, dir := range glob(t, python(t, "../native/testdata/nodes.py", operators), "*") {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			p, err := r.Load(readFile(t, filepath.Join(dir, "model.onnx")))
			if err != nil {
				left[reason(t, err)]++
				return
			}
			defer p.Close()
			runNode(t, p, dir)
			passed++
		})
	}
	t.Logf("%d passed; left out are %v", passed, left)
	if passed < 120 {
		t.Errorf("only %d passed", passed)
	}
}

func reason(t *testing.T, err error) string {
	t.Helper()
	for why, said := range leftOut {
		if said.MatchString(err.Error()) {
			return why
		}
	}
	t.Fatal(err)
	return ""
}

func runNode(t *testing.T, p *Program, dir string) {
	t.Helper()
	for _, set := range glob(t, dir, "test_data_set_*") {
		in, out := make([]tensor.Tensor, len(p.Inputs())), make([]tensor.Tensor, len(p.Outputs()))
		for i := range in {
			in[i] = readTensor(t, filepath.Join(set, fmt.Sprintf("input_%d.pb", i)))
		}
		for range 2 { // the second run reuses the outputs
			if err := p.Run(in, out); err != nil {
				t.Fatal(err)
			}
		}
		for i := range out {
			want := readTensor(t, filepath.Join(set, fmt.Sprintf("output_%d.pb", i)))
			wantTensor(t, p.Outputs()[i].Name, &out[i], &want)
		}
	}
}
