//go:build real

package ort

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"tidemill.dev/broker/brokertest/realservers"
	"tidemill.dev/internal/scoring/infer/onnx"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// openLibrary opens the library that make test-real has fetched.
func openLibrary(t testing.TB) *Runtime {
	t.Helper()
	if os.Getenv(Variable) == "" {
		t.Fatalf("%s is not set: run make test-real, or export %s=$(.ci/onnxruntime-install)", Variable, Variable)
	}
	r, err := Open("")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// python runs a script that writes files into a folder, and returns the folder.
func python(t testing.TB, script string, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	cmd, err := realservers.PythonONNX(t.Context(), append([]string{script, dir}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func readTensor(t *testing.T, path string) tensor.Tensor {
	t.Helper()
	x, err := onnx.ReadTensor(readFile(t, path))
	if err != nil {
		t.Fatal(err)
	}
	return *x
}

func glob(t testing.TB, pattern ...string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(pattern...))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// wantTensor compares two tensors: numbers within 1e-5, everything else exactly.
func wantTensor(t *testing.T, name string, got, want *tensor.Tensor) {
	t.Helper()
	if got.Type != want.Type || !slices.Equal(got.Shape, want.Shape) {
		t.Fatalf("%s is of type %d, %v, want type %d, %v", name, got.Type, got.Shape, want.Type, want.Shape)
	}
	if !slices.Equal(got.Strings, want.Strings) && len(got.Strings)+len(want.Strings) > 0 {
		t.Fatalf("%s is %q, want %q", name, got.Strings, want.Strings)
	}
	if !slices.Equal(got.Ints, want.Ints) {
		t.Fatalf("%s is %v, want %v", name, got.Ints, want.Ints)
	}
	if len(got.Floats) != len(want.Floats) || len(got.Doubles) != len(want.Doubles) {
		t.Fatalf("%s has %d numbers, want %d", name, len(got.Floats)+len(got.Doubles), len(want.Floats)+len(want.Doubles))
	}
	for i, v := range want.Floats {
		near(t, name, i, float64(got.Floats[i]), float64(v))
	}
	for i, v := range want.Doubles {
		near(t, name, i, got.Doubles[i], v)
	}
}

func near(t *testing.T, name string, i int, got, want float64) {
	t.Helper()
	if got == want || math.IsNaN(got) && math.IsNaN(want) || math.Abs(got-want) <= 1e-5*(1+math.Abs(want)) {
		return
	}
	t.Fatalf("%s[%d] is %v, want %v", name, i, got, want)
}
