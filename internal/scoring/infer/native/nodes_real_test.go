//go:build real

package native

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"tidemill.dev/broker/brokertest/realservers"
	"tidemill.dev/internal/scoring/infer/onnx"
	"tidemill.dev/internal/scoring/infer/tensor"
)

//go:embed testdata/nodes.py
var writeNodes string

// claimed are the operators that this engine supports.
var claimed = []string{"Abs", "Add", "And", "ArgMax", "ArgMin", "Cast", "Ceil", "Clip", "Concat", "Constant", "ConstantOfShape", "Cos", "CumSum",
	"Div", "Equal", "Erf", "Exp", "Expand", "Flatten", "Floor", "Gather", "GatherElements", "Gemm", "Greater", "GreaterOrEqual", "Identity", "IsInf",
	"IsNaN", "Less", "LessOrEqual", "Log", "LpNormalization", "MatMul", "Max", "Min", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "ReduceL1",
	"ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu",
	"Reshape", "Round", "Scan", "Shape", "Sigmoid", "Sign", "Sin", "Slice", "Softmax", "Softplus", "Sqrt", "Squeeze", "StringNormalizer",
	"StringSplit", "Sub", "Sum", "Tanh", "TfIdfVectorizer", "Tile", "TopK", "Transpose", "Unsqueeze", "Where", "Xor",
	"ArrayFeatureExtractor", "Binarizer", "CategoryMapper", "FeatureVectorizer", "Imputer", "LabelEncoder", "LinearClassifier", "LinearRegressor",
	"Normalizer", "OneHotEncoder", "SVMClassifier", "SVMRegressor", "Scaler", "TreeEnsemble",
	"TreeEnsembleClassifier", "TreeEnsembleRegressor", "ZipMap"}

// refused are tests of these operators that are left to ONNX Runtime. Each must be refused with
// this reason.
var refused = map[string]string{
	`^test_(add|sub|mul|div|max|min|pow_types|clip|equal|(less|greater)(_equal)?|is(nan|inf)|top_k)_.*(int(8|16)|float16).*$`: `type (float16|u?int(8|16)) is not`,
	`^test_(add|sub|mul|div|max|min|pow_types|clip|equal|(less|greater)(_equal)?|top_k)_.*uint(32|64).*$`:                     `type uint(32|64) is not`,
	`^test_cast(like)?_.*(FLOAT(16|8|4)|BFLOAT|INT4|INT2).*$`:                                                                 `(type|from|to) .* is not`,
	`^test_flexattention_fp16_`:              `type float16 is not`,
	`^test_identity_(sequence|opt)$`:         `type of no tensor is not`,
	`^test_ai_onnx_ml_label_encoder_tensor_`: `from string to int16 is not`,
	`^test_not_[234]d$`:                      `version 1 of ONNX's operators is not`,
	`^test_pow_types_int(32|64)_float32$`:    `to the power of float is not`,
	`^test_reduce_(max|min)_.*bool`:          `type bool is not`,
	`^test_scan`:                             `Scan: with .* is not`,
	`^pytorch-operator\.test_operator_([^r]|r[^e]|re[^p]).*$|^pytorch-converted\.test_([^P]|P[^i]).*`: `version 6 of ONNX's operators is not`,
}

// ONNX's own tests of the claimed operators pass, except those with types or versions that this
// engine does not support.
func TestRealNodes(t *testing.T) {
	dir := t.TempDir()
	cmd, err := realservers.PythonONNX(t.Context(), "-c", writeNodes, dir, strings.Join(claimed, ","))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	folders, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	passed, left, used := 0, 0, map[string]int{}
	for _, f := range folders {
		t.Run(f.Name(), func(t *testing.T) {
			if why := exception(f.Name(), used); why != "" {
				wantRefused(t, filepath.Join(dir, f.Name()), why)
				left++
				return
			}
			runNode(t, filepath.Join(dir, f.Name()))
			passed++
		})
	}
	t.Logf("%d tests of nodes passed, %d are of types or versions that we do not take", passed, left)
	for pattern := range refused {
		if used[pattern] == 0 {
			t.Errorf("no test is called %s any more", pattern)
		}
	}
	if passed < 120 {
		t.Errorf("only %d tests were run", passed)
	}
}

func exception(name string, used map[string]int) (reason string) {
	for pattern, why := range refused {
		if regexp.MustCompile(pattern).MatchString(name) {
			used[pattern]++
			reason = why
		}
	}
	return reason
}

func wantRefused(t *testing.T, dir, why string) {
	t.Helper()
	_, err := Load(readFile(t, filepath.Join(dir, "model.onnx")))
	if !errors.Is(err, onnx.ErrUnsupported) || !regexp.MustCompile(why).MatchString(err.Error()) {
		t.Errorf("it should be refused with %q, and answers %v", why, err)
	}
}

func runNode(t *testing.T, dir string) {
	t.Helper()
	p, err := Load(readFile(t, filepath.Join(dir, "model.onnx")))
	if err != nil {
		t.Fatal(err)
	}
	sets, err := filepath.Glob(filepath.Join(dir, "test_data_set_*"))
	if err != nil || len(sets) == 0 {
		t.Fatal("no data", err)
	}
	for _, set := range sets {
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

func readTensor(t *testing.T, path string) tensor.Tensor {
	t.Helper()
	x, err := onnx.ReadTensor(readFile(t, path))
	if err != nil {
		t.Fatal(err)
	}
	return *x
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
