//go:build real

package ort

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// Many goroutines run many models at once, and each gets the right answer.
func TestRealManyAtOnce(t *testing.T) {
	r := openLibrary(t)
	var wait sync.WaitGroup
	for i, path := range glob(t, python(t, "testdata/graphs.py", "8", "5"), "*.onnx") {
		p, err := r.Load(readFile(t, path))
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		in := []tensor.Tensor{numbers(rand.New(rand.NewPCG(uint64(i), 3)), 3, p.Inputs()[0].Shape[1])}
		want := make([]tensor.Tensor, len(p.Outputs()))
		if err := p.Run(in, want); err != nil {
			t.Fatal(err)
		}
		for range 4 {
			wait.Go(func() { askOften(t, p, in, want) })
		}
	}
	wait.Wait()
}

func askOften(t *testing.T, p *Program, in, want []tensor.Tensor) {
	got := make([]tensor.Tensor, len(want))
	for range 200 {
		if err := p.Run(in, got); err != nil {
			t.Error(err)
			return
		}
		for i := range want {
			if !slices.Equal(got[i].Floats, want[i].Floats) || !slices.Equal(got[i].Ints, want[i].Ints) {
				t.Errorf("%v, want %v", got[i], want[i])
				return
			}
		}
	}
}

// An input that does not fit gives an error that names it, and the next call works.
func TestRealWrongInputs(t *testing.T) {
	p := network(t, openLibrary(t))
	good := numbers(rand.New(rand.NewPCG(1, 2)), 2, 512)
	narrow, short, other := good, good, good
	narrow.Shape = []int{4, 256}
	short.Floats = short.Floats[:1000]
	other.Type = tensor.Double
	for name, x := range map[string]tensor.Tensor{"narrow": narrow, "short": short, "another type": other, "no rows": {Type: tensor.Float, Shape: []int{-1, 512}}} {
		err := p.Run([]tensor.Tensor{x}, make([]tensor.Tensor, 1))
		if err == nil || !strings.Contains(err.Error(), "x") {
			t.Errorf("%s: %v, want an error about x", name, err)
		}
		out := make([]tensor.Tensor, 1)
		if err := p.Run([]tensor.Tensor{good}, out); err != nil || !slices.Equal(out[0].Shape, []int{2, 20}) {
			t.Errorf("after %s: %v, %v", name, out[0].Shape, err)
		}
	}
	if err := p.Run(nil, nil); err == nil {
		t.Error("it answers nothing to nothing")
	}
}

func TestRealMetadata(t *testing.T) {
	r := openLibrary(t)
	p := network(t, r)
	if got := p.Metadata()["labels"]; got != "a,b" {
		t.Errorf("labels are %q, want those of the file", got)
	}
	if s := p.Inputs()[0]; s.Name != "x" || s.Type != tensor.Float || !slices.Equal(s.Shape, []int{tensor.Any, 512}) {
		t.Errorf("the input is %+v", s)
	}
	if version, path := r.Version(); version == "" || path == "" {
		t.Errorf("version %q of %q", version, path)
	}
}

// network loads a network of 512→64→20.
func network(t testing.TB, r *Runtime) *Program {
	t.Helper()
	p, err := r.Load(networkFile(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func networkFile(t testing.TB) []byte {
	t.Helper()
	return readFile(t, python(t, "testdata/network.py")+"/network.onnx")
}

// used returns the processor time of this process, because the wall clock includes other processes.
func used(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkNetwork measures the network of the kernel's BenchmarkNetwork.
func BenchmarkNetwork(b *testing.B) {
	p := network(b, openLibrary(b))
	for _, rows := range []int{1, 2, 4, 8, 32, 256} {
		b.Run(fmt.Sprint(rows), func(b *testing.B) {
			in, out := []tensor.Tensor{numbers(rand.New(rand.NewPCG(1, 2)), rows, 512)}, make([]tensor.Tensor, 1)
			start := used(b)
			for b.Loop() {
				if err := p.Run(in, out); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(used(b)-start)/float64(b.N*rows), "cpu-ns/row")
		})
	}
}
