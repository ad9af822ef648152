//go:build real

package ort

import (
	"errors"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"testing"

	"tidemill.dev/internal/scoring/infer/native"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// Both engines answer the same to random graphs with random inputs.
func TestRealEnginesAgree(t *testing.T) {
	r, seed := openLibrary(t), seedOf(t)
	t.Logf("seed %d", seed)
	for _, path := range glob(t, python(t, "testdata/graphs.py", "60", strconv.FormatUint(seed, 10)), "*.onnx") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			file := readFile(t, path)
			ours, err := native.Load(file)
			if err != nil {
				t.Fatal(err)
			}
			defer ours.Close()
			theirs, err := r.Load(file)
			if err != nil {
				t.Fatal(err)
			}
			defer theirs.Close()
			source := rand.New(rand.NewPCG(seed, 1))
			for _, rows := range []int{1, 2, 3, 7, 64} {
				agree(t, source, ours, theirs, rows)
			}
		})
	}
}

func agree(t *testing.T, source *rand.Rand, ours *native.Program, theirs *Program, rows int) {
	t.Helper()
	in := make([]tensor.Tensor, len(ours.Inputs()))
	for i, s := range ours.Inputs() {
		in[i] = numbers(source, rows, s.Shape[1])
	}
	a, b := make([]tensor.Tensor, len(ours.Outputs())), make([]tensor.Tensor, len(theirs.Outputs()))
	if err := errors.Join(ours.Run(in, a), theirs.Run(in, b)); err != nil {
		t.Fatal(err)
	}
	for i, s := range theirs.Outputs() {
		if s.Type == tensor.Int64 {
			sameChoice(t, &b[0], a[i].Ints, b[i].Ints)
		} else {
			wantTensor(t, s.Name, &a[i], &b[i])
		}
	}
}

// sameChoice accepts different best classes if their scores are equal.
func sameChoice(t *testing.T, scores *tensor.Tensor, a, b []int64) {
	t.Helper()
	n := scores.Shape[1]
	for row := range b {
		near(t, "the best", row, float64(scores.Floats[row*n+int(a[row])]), float64(scores.Floats[row*n+int(b[row])]))
	}
}

func numbers(source *rand.Rand, rows, columns int) tensor.Tensor {
	x := tensor.Tensor{Type: tensor.Float, Shape: []int{rows, columns}, Floats: make([]float32, rows*columns)}
	for i := range x.Floats {
		x.Floats[i] = float32(source.NormFloat64())
	}
	return x
}
