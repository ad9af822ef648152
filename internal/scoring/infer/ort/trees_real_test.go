//go:build real

package ort

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tidemill.dev/internal/scoring/infer/native"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// Both engines answer the same to ensembles of a usual size, whatever the number of rows.
func TestRealTreesAgree(t *testing.T) {
	r, source := openLibrary(t), rand.New(rand.NewPCG(seedOf(t), 3))
	for _, path := range glob(t, python(t, "testdata/trees.py"), "*.onnx") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			ours, theirs := bothEngines(t, r, path)
			for _, rows := range []int{1, 2, 3, 4, 7, 64, 67, 300} {
				in := []tensor.Tensor{numbers(source, rows, 30)}
				got, want := make([]tensor.Tensor, len(ours.Outputs())), make([]tensor.Tensor, len(ours.Outputs()))
				if err := ours.Run(in, got); err != nil {
					t.Fatal(err)
				}
				if err := theirs.Run(in, want); err != nil {
					t.Fatal(err)
				}
				for i := range want {
					wantTensor(t, fmt.Sprint(rows, " rows, output ", i), &got[i], &want[i])
				}
			}
		})
	}
}

func bothEngines(t testing.TB, r *Runtime, path string) (*native.Program, *Program) {
	t.Helper()
	file := readFile(t, path)
	ours, err := native.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := r.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(theirs.Close)
	return ours, theirs
}

// BenchmarkTrees compares the engines on ensembles of 100 trees, one after the other in short turns,
// so that both have the same neighbours on the machine. Each turn has other rows. The times are those
// of the processor for a row, without the times of other processes.
func BenchmarkTrees(b *testing.B) {
	r := openLibrary(b)
	for _, path := range glob(b, python(b, "testdata/trees.py"), "*.onnx") {
		ours, theirs := bothEngines(b, r, path)
		for _, rows := range []int{1, 2, 8, 64, 256} {
			b.Run(fmt.Sprint(strings.TrimSuffix(filepath.Base(path), ".onnx"), "/", rows), func(b *testing.B) { race(b, rows, len(ours.Outputs()), ours.Run, theirs.Run) })
		}
	}
}

func race(b *testing.B, rows, outputs int, engines ...func(in, out []tensor.Tensor) error) {
	const turns = 16
	source := rand.New(rand.NewPCG(1, 2))
	var in [turns][]tensor.Tensor
	for i := range in {
		in[i] = []tensor.Tensor{numbers(source, rows*max(1, 256/rows), 30)}
	}
	out := make([]tensor.Tensor, outputs)
	took := make([]time.Duration, len(engines))
	for n := 0; b.Loop(); n++ {
		for i, run := range engines {
			start := used(b)
			for all := in[n%turns][0]; len(all.Floats) > 0; all.Floats = all.Floats[rows*30:] {
				x := []tensor.Tensor{{Type: tensor.Float, Shape: []int{rows, 30}, Floats: all.Floats[:rows*30]}}
				if err := run(x, out); err != nil {
					b.Fatal(err)
				}
			}
			took[i] += used(b) - start
		}
	}
	all := float64(b.N * rows * max(1, 256/rows))
	b.ReportMetric(float64(took[0])/all, "ours-ns/row")
	b.ReportMetric(float64(took[1])/all, "theirs-ns/row")
	b.ReportMetric(float64(took[1])/float64(took[0]), "times")
	b.ReportMetric(0, "ns/op")
}
